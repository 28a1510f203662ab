"""NeMo RL's adapter on label sequences of its releases, replayed by a stand-in; counts against the loop's own."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from adapters.standins import Outcome, run

from eerl_launch.modes import Mode

FOLDER = Path(__file__).parent / "nemo_rl_standin"
VERSIONS = ("0.5.0", "0.7.0", "main")
TURN = ["+refit", "-refit", "+generation", "-generation", "+reward", "-reward"]
LEARN = ["+logprob", "-logprob", "+training", "-training"]
CONFIG: dict[str, Any] = {
    "grpo": {
        "max_num_steps": 4,
        "num_prompts_per_step": 2,
        "num_generations_per_prompt": 3,
        "async_grpo": {"enabled": False, "in_flight_weight_updates": False},
    },
    "policy": {
        "train_global_batch_size": 6,
        "generation": {
            "backend": "vllm",
            "vllm_cfg": {"async_engine": True},
            "colocated": {"enabled": True},
        },
    },
}


def job(version: str = "0.7.0", *, colocated: bool = True, moved: str = "", **grpo: Any) -> Outcome:
    """A run of the stand-in under the adapter."""
    config = copy.deepcopy(CONFIG)
    config["grpo"].update(grpo)
    config["policy"]["generation"]["colocated"]["enabled"] = colocated
    environment = {"STANDIN_VERSION": version, "STANDIN_MOVED": moved}
    return run(["-m", "standin_job", json.dumps(config)], FOLDER, environment)


def asynchronous(*, in_flight: bool) -> dict[str, Any]:
    return {"async_grpo": {"enabled": True, "in_flight_weight_updates": in_flight}}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("rollouts", ["sync", "async"])
def test_sync_phases_and_tokens(version: str, rollouts: str) -> None:
    """Each update has its phases in order and the very tokens that the loop itself counts, masks included."""
    outcome = job(version, rollouts=rollouts)

    assert outcome.returncode == 0, outcome.stderr
    assert outcome.spans() == (TURN + LEARN) * 4
    assert outcome.events("run")[0]["mode"] == "colocated_sync"
    updates = outcome.updates(Mode.COLOCATED_SYNC)
    assert [
        {
            "update": update.label,
            "generated": update.tokens("generated_tokens", "generation"),
            "longest": update.longest("longest_response_tokens", "generation"),
            "valid": update.tokens("valid_tokens", "training"),
        }
        for update in updates
    ] == outcome.counts
    assert outcome.counts[1]["valid"] < outcome.counts[1]["generated"]  # the trap was set
    told = [m for m in outcome.events("metric") if m["name"] == "response_length_tokens"]
    assert [(m["update"], m["value"] * m["responses"]) for m in told] == [
        (counted["update"], counted["valid"]) for counted in outcome.counts
    ]
    assert outcome.notes() == []


@pytest.mark.parametrize("version", VERSIONS)
def test_dynamic_sampling_is_one_update(version: str) -> None:
    """Two rounds of generation before training are one update that generated both, and consumed half."""
    outcome = job(version, use_dynamic_sampling=True)

    assert outcome.spans() == TURN + LEARN + TURN + TURN + LEARN + TURN + LEARN + TURN + TURN + LEARN
    updates = outcome.updates(Mode.COLOCATED_SYNC)
    assert [update.label for update in updates] == [1, 2, 3, 4]
    for update, counted in zip(updates, outcome.counts, strict=True):
        assert update.tokens("generated_tokens", "generation") == counted["generated"]
        assert update.longest("longest_response_tokens", "generation") == counted["longest"]
        assert update.tokens("valid_tokens", "training") == counted["valid"]
        assert (update.longest_consumed() or 0) <= counted["longest"]


def test_validation_and_its_refit() -> None:
    """The refit before validation has no label of theirs; validation's own tokens are nobody's."""
    outcome = job(val_period=2, val_at_start=True, save_period=2)

    check = ["+refit", "-refit", "+validation", "-validation"]
    assert (
        outcome.spans() == check + (TURN + LEARN + TURN + LEARN + check + ["+checkpoint", "-checkpoint"]) * 2
    )
    assert [u.tokens("generated_tokens", "generation") for u in outcome.updates(Mode.COLOCATED_SYNC)] == [
        counted["generated"] for counted in outcome.counts
    ]
    told = [m for m in outcome.events("metric") if m["name"] == "validation_accuracy"]
    assert [(m["update"], m["value"]) for m in told] == [(0, 0.25), (2, 0.27), (4, 0.29)]


def test_several_epochs_consume_once() -> None:
    """A batch that is trained on three times was consumed once."""
    outcome = job(epochs=3)

    assert [u.tokens("valid_tokens", "training") for u in outcome.updates(Mode.COLOCATED_SYNC)] == [
        counted["valid"] for counted in outcome.counts
    ]


def test_resumed_run_goes_on_counting() -> None:
    """Updates have the run's own numbers, and what is left is what this job will make."""
    outcome = job(done=17, max_num_steps=19)

    assert [update.label for update in outcome.updates(Mode.COLOCATED_SYNC)] == [18, 19]
    assert outcome.events("run")[0]["total_updates"] == 2


@pytest.mark.parametrize("batch", [6, 3])
def test_data_plane_tells_means_only(batch: int) -> None:
    """Where the driver sees no token, a mean gives the sum if it must be that; a mean of several steps does not."""
    config = copy.deepcopy(CONFIG)
    config["policy"]["train_global_batch_size"] = batch
    config["grpo"]["data_plane"] = True

    outcome = run(["-m", "standin_job", json.dumps(config)], FOLDER, {"STANDIN_VERSION": "main"})

    updates = outcome.updates(Mode.COLOCATED_SYNC)
    assert [u.tokens("generated_tokens", "generation") for u in updates] == [
        c["generated"] for c in outcome.counts
    ]
    valid = [c["valid"] if batch == 6 else None for c in outcome.counts]
    assert [u.tokens("valid_tokens", "training") for u in updates] == valid
    assert [("mean" in note) for note in outcome.notes()] == ([] if batch == 6 else [True])


def test_separate_pools_in_turns() -> None:
    """Without colocation the synchronous loop takes turns on two pools."""
    assert job(colocated=False).events("run")[0]["mode"] == "disaggregated_sync"


@pytest.mark.parametrize("version", VERSIONS)
def test_drained(version: str) -> None:
    """What the collector generates is told apart from what training consumes, and a refit ends an update."""
    outcome = job(version, colocated=False, **asynchronous(in_flight=False))

    assert outcome.returncode == 0, outcome.stderr
    assert outcome.events("run")[0]["mode"] == "async_drained"
    assert outcome.spans("generation") == [
        "+refit",
        "-refit",
        *(["+reward", "-reward", *LEARN, "+refit", "-refit"] * 4),
    ]
    updates = outcome.updates(Mode.ASYNC_DRAINED)
    *counted, collected = outcome.counts
    assert [u.tokens("valid_tokens", "training") for u in updates] == [c["valid"] for c in counted]
    assert [u.longest_consumed() for u in updates] == [c["longest_consumed"] for c in counted]
    assert sum(u.tokens("generated_tokens", "generation") or 0 for u in updates) == collected["collected"]
    assert [u.numbers["policy_age"] for u in updates] == [0, 1, 1, 1]
    assert outcome.events("pause") == []


@pytest.mark.parametrize("version", VERSIONS)
def test_in_flight(version: str) -> None:
    """Generation goes on across the pause for new weights, which ends an update; every finished token counts once."""
    outcome = job(version, colocated=False, **asynchronous(in_flight=True))

    assert outcome.events("run")[0]["mode"] == "async_inflight"
    assert len(outcome.events("pause")) == len(outcome.events("resume")) == 4
    updates = outcome.updates(Mode.ASYNC_INFLIGHT)
    generated = [f["generated_tokens"] for f in outcome.events("end") if f["phase"] == "generation"]
    assert sum(generated) == outcome.counts[-1]["collected"]
    assert [u.tokens("valid_tokens", "training") for u in updates[:4]] == [
        c["valid"] for c in outcome.counts[:4]
    ]


def test_drains_whatever_is_asked() -> None:
    """An engine without asynchronous requests drains, whatever the configuration says of in-flight updates."""
    config = copy.deepcopy(CONFIG)
    config["policy"]["generation"]["vllm_cfg"]["async_engine"] = False
    config["policy"]["generation"]["colocated"]["enabled"] = False
    config["grpo"].update(asynchronous(in_flight=True))

    outcome = run(["-m", "standin_job", json.dumps(config)], FOLDER, {"STANDIN_VERSION": "0.7.0"})

    assert outcome.events("run")[0]["mode"] == "async_drained"


def test_asynchronous_on_one_pool() -> None:
    """Engines sleep while the policy trains: they take turns, and what an update generated is not known."""
    outcome = job("main", **asynchronous(in_flight=False))

    assert outcome.events("run")[0]["mode"] == "colocated_sync"
    updates = outcome.updates(Mode.COLOCATED_SYNC)
    assert [update.label for update in updates] == [1, 2, 3, 4]
    assert all(update.begun("generation") and update.begun("training") for update in updates)
    assert [u.tokens("generated_tokens", "generation") for u in updates] == [None] * 4
    assert [u.tokens("valid_tokens", "training") for u in updates] == [c["valid"] for c in outcome.counts[:4]]
    assert ["generated tokens are unknown" in note for note in outcome.notes()] == [True]


def test_single_controller() -> None:
    """Training in chunks is one update, each finished group ends generation, and a resumed run goes on."""
    config = copy.deepcopy(CONFIG)
    config["single_controller"] = True
    config["policy"]["generation"]["colocated"]["enabled"] = False
    config["grpo"].update(done=3, max_num_steps=6)

    outcome = run(["-m", "standin_job", json.dumps(config)], FOLDER, {"STANDIN_VERSION": "main"})

    assert outcome.returncode == 0, outcome.stderr
    assert outcome.events("run")[0]["mode"] == "async_inflight"
    assert outcome.events("run")[0]["total_updates"] == 3
    *counted, collected = outcome.counts
    updates = outcome.updates(Mode.ASYNC_INFLIGHT)
    assert [u.tokens("valid_tokens", "training") for u in updates] == [c["valid"] for c in counted]
    assert sum(u.tokens("generated_tokens", "generation") or 0 for u in updates) == collected["collected"]


def test_crash_inside_generation() -> None:
    """The trainer's exception stays its own, and the phase it died in ends."""
    outcome = job(fails_at=2)

    assert outcome.returncode == 1
    assert "MemoryError: the engine died" in outcome.stderr
    assert "eerl" not in outcome.stderr
    assert outcome.spans()[-2:] == ["+generation", "-generation"]


def test_moved_name_costs_markers_only() -> None:
    """A timer without its stop: the run is the same, and one message names framework, version and name."""
    outcome = job(moved="timer")

    assert outcome.returncode == 0, outcome.stderr
    assert len(outcome.counts) == 4
    (note,) = (text for text in outcome.notes() if "Timer.stop" in text)
    assert note.startswith("nemo_rl of unknown version: Timer.stop is not there")


def test_other_adapters_leave_it_alone() -> None:
    """With another framework's name nothing is hooked."""
    config = json.dumps(CONFIG)

    outcome = run(["-m", "standin_job", config], FOLDER, {"STANDIN_VERSION": "0.7.0"}, adapter="trl")

    assert outcome.returncode == 0
    assert outcome.markers == []


@pytest.mark.parametrize(
    ("role", "torch", "uuid"),
    [
        ("training", "told", "GPU-of-cuda"),
        ("generation", "told", "GPU-of-cuda"),
        ("training", "old", "GPU-by-nvml-0"),
    ],
)
def test_ranks_name_their_gpus(role: str, torch: str, uuid: str) -> None:
    """Each rank of a separate pool tells its GPU once, by CUDA's UUID; its own timers mark nothing."""
    outcome = run(["-m", "standin_worker", role], FOLDER, {"STANDIN_TORCH": torch})

    assert outcome.returncode == 0, outcome.stderr
    assert [(f["ev"], f["role"], f["gpus"]) for f in outcome.events("pool", "begin")] == [
        ("pool", role, [uuid])
    ]
