"""OpenRLHF's adapter on the order of calls of its release, replayed by a stand-in; counts against the loop's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from adapters.standins import Outcome, run

from eerl_launch.modes import Mode

FOLDER = Path(__file__).parent / "openrlhf_standin"
STEP = [sign + phase for phase in ("generation", "logprob", "training", "refit") for sign in ("+", "-")]


def job(**arguments: Any) -> Outcome:
    """A run of the stand-in under the adapter."""
    outcome = run(["-m", "standin_job", json.dumps(arguments)], FOLDER, {})
    assert outcome.returncode == 0 or arguments.get("fails_at"), outcome.stderr
    assert outcome.notes() == []
    return outcome


def told(outcome: Outcome, what: str) -> list[Any]:
    """One of the loop's own counts, update by update."""
    return [counts[what] for counts in outcome.counts if what in counts]


def test_sync() -> None:
    """Phases in order, and per update the tokens that were generated and trained on, an environment's left out."""
    outcome = job()

    assert outcome.spans() == STEP * 4
    (started,) = outcome.events("run")
    assert (started["mode"], started["total_updates"]) == ("colocated_sync", 6)
    updates = outcome.updates(Mode.COLOCATED_SYNC)
    assert [update.label for update in updates] == [1, 2, 3, 4]
    generated = told(outcome, "generated")
    assert [u.tokens("generated_tokens", "generation") for u in updates] == list(map(sum, generated))
    assert [u.longest("longest_response_tokens", "generation") for u in updates] == list(map(max, generated))
    assert [u.tokens("valid_tokens", "training") for u in updates] == told(outcome, "valid")


def test_filtered_responses_were_generated() -> None:
    """Groups that dynamic filtering drops cost energy too: generated they count, consumed they do not."""
    outcome = job(filter=True)

    updates = outcome.updates(Mode.COLOCATED_SYNC)
    assert [u.tokens("generated_tokens", "generation") for u in updates] == list(
        map(sum, told(outcome, "generated"))
    )
    assert [u.tokens("valid_tokens", "training") for u in updates] == told(outcome, "valid")
    assert all(v < sum(g) for v, g in zip(told(outcome, "valid"), told(outcome, "generated"), strict=True))
    assert "total_updates" not in outcome.events("run")[0]


def test_resumed_run_goes_on_counting() -> None:
    """Weights go out before the first update of a resumed run, which has the next number of all."""
    outcome = job(done=6, last=8)

    assert outcome.spans() == ["+refit", "-refit", *(STEP * 2)]
    assert [u.label for u in outcome.updates(Mode.COLOCATED_SYNC)] == [7, 8]


def test_validation_and_checkpoints() -> None:
    """Only a save that is due is a phase, and validation's tokens are nobody's."""
    outcome = job(eval=4, save=2)

    save = ["+checkpoint", "-checkpoint"]
    assert outcome.spans() == STEP * 2 + save + STEP * 2 + save + ["+validation", "-validation"] + save
    metrics = [(m["name"], m["value"]) for m in outcome.events("metric")]
    assert [metric for metric in metrics if metric[0] != "response_length_tokens"] == [
        ("eval_math_pass1", 0.5)
    ]
    assert len(metrics) == 1 + 4
    assert max(map(max, told(outcome, "generated"))) < 500


def test_engines_of_their_own() -> None:
    """Without colocation engines wait for training and training for them."""
    assert job(colocate=False).events("run")[0]["mode"] == "disaggregated_sync"


@pytest.mark.parametrize("partial", [False, True])
def test_asynchronous(partial: bool) -> None:
    """An actor beside the trainer generates and says so; what is generated and what is consumed are told apart."""
    outcome = job(**{"async": True}, partial=partial)

    mode = Mode.ASYNC_INFLIGHT if partial else Mode.ASYNC_DRAINED
    assert outcome.events("run")[0]["mode"] == mode.value
    assert len(outcome.events("pause")) == len(outcome.events("resume")) == (4 if partial else 0)
    updates = outcome.updates(mode)
    assert [u.tokens("valid_tokens", "training") for u in updates] == told(outcome, "valid")
    ends = [end["generated_tokens"] for end in outcome.events("end") if end["phase"] == "generation"]
    assert ends == list(map(sum, told(outcome, "generated")))
    assert "generated_tokens" not in outcome.events("update")[0]
    spans = outcome.spans("generation", "logprob", "training", "refit")
    # The actor may pause for the last weights at any time.
    assert [span for span in spans if not span.endswith("pause")][-2:] == ["+validation", "-validation"]


def test_crash_inside_generation() -> None:
    """The trainer's exception stays its own, and the phase it died in ends."""
    outcome = job(fails_at=[2])

    assert outcome.returncode == 1
    assert "MemoryError: the engine died" in outcome.stderr
    assert outcome.spans()[-2:] == ["+generation", "-generation"]


@pytest.mark.parametrize(
    ("role", "arguments", "told"),
    [("training", {"colocate": False}, True), ("training", {}, False), ("generation", {}, True)],
)
def test_ranks_name_their_gpus(role: str, arguments: dict[str, Any], told: bool) -> None:
    """Ranks of separate pools tell their GPU once; those of a colocated run, which does all on each, tell nothing."""
    outcome = run(["-m", "standin_worker", role, json.dumps(arguments)], FOLDER, {})

    assert outcome.returncode == 0, outcome.stderr
    assert [(f["role"], f["gpus"]) for f in outcome.events("pool")] == (
        [(role, ["GPU-of-cuda"])] if told else []
    )
