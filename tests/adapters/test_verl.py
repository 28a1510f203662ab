"""verl's own loop on a CPU, in an actor of Ray, with stubs for what it commands; counts against the stub engine's."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from adapters.environments import OLDER_VERL, VERL, verl_python
from adapters.ray_cluster import QUIET, started
from adapters.standins import Outcome, run
from launch.field_run import Field

from eerl_launch.modes import Mode

FOLDER = Path(__file__).parent / "verl_job"
STEP = (
    ["+generation", "-generation"]
    + ["+logprob", "-logprob"] * 2
    + ["+training", "-training", "+refit", "-refit"]
)
#: verl starts a cluster of its own, whoever else has one here.
LOCAL = {**QUIET, "RAY_ADDRESS": "local"}
CHECK = ["+validation", "-validation"]

REWARD = ["+reward", "-reward"]
#: Engines and trainer have GPUs of their own.
SEPARATE = [
    "trainer.v1.trainer_mode=separate_async",
    "trainer.v1.separate_async.parameter_sync_step=2",
    "actor_rollout_ref.hybrid_engine=false",
    "actor_rollout_ref.rollout.nnodes=1",
    "actor_rollout_ref.rollout.n_gpus_per_node=1",
    "actor_rollout_ref.rollout.checkpoint_engine.backend=nccl",
    "actor_rollout_ref.actor.ppo_mini_batch_size=2",
    "data.gen_batch_size=1",
]

pytestmark = [pytest.mark.verl, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def python() -> Path:
    """An interpreter with verl."""
    return verl_python()


@pytest.fixture(
    scope="module",
    params=[VERL, *(pytest.param(version, marks=pytest.mark.frameworks) for version in OLDER_VERL)],
)
def release(request: pytest.FixtureRequest) -> tuple[str, Path]:
    """A version of verl and an interpreter that has it: the newest, and with ``make test-frameworks`` older ones."""
    return request.param, verl_python(request.param)


def check(outcome: Outcome, step: list[str] = STEP) -> None:
    """Phases in order, and per update the tokens that the stub engine generated."""
    assert outcome.returncode == 0, outcome.stderr[-3000:]
    assert outcome.notes() == []
    made, told = outcome.events("run")
    assert (
        (made["framework"], made["mode"]) == (told["framework"], told["mode"]) == ("verl", "colocated_sync")
    )
    assert told["total_updates"] == 4
    assert outcome.spans() == (step * 2 + CHECK) * 2
    updates = outcome.updates(Mode.COLOCATED_SYNC)
    assert [update.label for update in updates] == [1, 2, 3, 4]
    assert [
        {
            "update": update.label,
            "generated": update.tokens("generated_tokens", "generation"),
            "longest": update.longest("longest_response_tokens", "generation"),
            "valid": update.tokens("valid_tokens", "training"),
        }
        for update in updates
    ] == outcome.counts
    told = [m for m in outcome.events("metric") if m["name"] == "response_length_tokens"]
    assert [(m["update"], m["value"] * m["responses"], m["max"]) for m in told] == [
        (counts["update"], counts["valid"], counts["longest"]) for counts in outcome.counts
    ]
    assert [update.numbers.get("policy_age", 0) for update in updates] == [0, 0, 0, 0]


def test_local_cluster(python: Path) -> None:
    """verl starts Ray itself; with several turns an environment's words are nobody's tokens."""
    check(run([str(FOLDER / "job.py"), "--turns=2"], FOLDER, LOCAL, python=str(python)))


def test_cluster_that_ran_before(python: Path) -> None:
    """The trainer's actor is a process of a cluster that was started without eerl."""
    with started(python, cpus=4) as address:
        check(run([str(FOLDER / "job.py")], FOLDER, {**QUIET, "RAY_ADDRESS": address}, python=str(python)))


def test_one_pool_ahead(python: Path) -> None:
    """A batch ahead on the same GPUs: engines and trainer take turns; a response counts when it is finished."""
    options = ["trainer.v1.trainer_mode=colocate_async", "data.gen_batch_size=1"]
    outcome = run([str(FOLDER / "job.py"), *options], FOLDER, LOCAL, python=str(python))

    assert outcome.returncode == 0, outcome.stderr[-3000:]
    assert outcome.events("run")[0]["mode"] == "colocated_sync"
    assert outcome.spans() == (STEP * 2 + CHECK) * 2
    *counted, together = outcome.counts
    updates = outcome.updates(Mode.COLOCATED_SYNC)
    assert [u.tokens("valid_tokens", "training") for u in updates] == [c["valid"] for c in counted]
    generated = [u.tokens("generated_tokens", "generation") or 0 for u in updates]
    assert sum(generated) == together["generated"] > sum(c["valid"] for c in counted)


def test_separate_pools(python: Path) -> None:
    """Agent loops, which are processes of their own, tell what they generate; weights go out in a pause."""
    outcome = run([str(FOLDER / "job.py"), *SEPARATE], FOLDER, LOCAL, python=str(python))

    assert outcome.returncode == 0, outcome.stderr[-3000:]
    assert outcome.notes() == []
    first = min(outcome.markers, key=lambda marker: marker.t_s)
    assert (first.event, first.fields["mode"]) == ("run", "async_inflight"), "before any process generates"
    assert len(outcome.events("pause")) == len(outcome.events("resume")) == 4
    half = [*STEP[2:8]]
    weights = ["+refit", "+pause", "-pause", "-refit"]
    assert outcome.spans("generation") == ((half * 2 + weights) * 2 + CHECK) * 2
    *counted, together = outcome.counts
    updates = outcome.updates(Mode.ASYNC_INFLIGHT)
    assert [u.tokens("valid_tokens", "training") for u in updates[:4]] == [c["valid"] for c in counted]
    ends = [end.get("generated_tokens") for end in outcome.events("end") if end["phase"] == "generation"]
    assert sum(ends) == together["generated"]
    labels = {begin["update"] for begin in outcome.events("begin") if begin["phase"] == "generation"}
    assert len(labels) == 2
    assert all("policy_age" in update.numbers for update in updates[:4])


def test_a_whole_run_with_separate_pools(python: Path, tmp_path: Path) -> None:
    """eerl-run before the command makes a report with mode, phases, both pools and the counts of the stub engine."""
    field = Field(tmp_path)
    field.simulate("h100:1x2")
    node = os.uname().nodename
    field.policy(f"policy: governor\npools: {{generation: ['{node}:0'], training: ['{node}:1']}}\n")
    field.environment |= {**LOCAL, "PYTHONPATH": str(FOLDER)}

    done = field.run([str(python), str(FOLDER / "job.py"), *SEPARATE])

    assert done.code == 0, done.errors[-3000:]
    assert (done.report["run"]["framework"], done.report["run"]["mode"]) == ("verl", "async_inflight")
    records = [event["record"] for event in done.events("update")]
    *counted, together = [json.loads(line) for line in done.output.splitlines() if line.startswith(b"{")]
    assert [record["valid_tokens"] for record in records] == [count["valid"] for count in counted]
    assert 0 < sum(record["generated_tokens"] or 0 for record in records) <= together["generated"]
    for record in records:
        assert {"generation", "training", "logprob", "refit"} <= record["phases"].keys()
        assert all(record["pools"][role]["energy_j"] > 0 for role in ("generation", "training"))
    assert {pool["pool"] for pool in done.report["pools"]} == {"generation", "training"}


@pytest.mark.parametrize(
    ("role", "mode"), [("training", "auto"), ("training", "nccl"), ("generation", "nccl")]
)
def test_ranks_name_their_gpus(python: Path, role: str, mode: str) -> None:
    """Weights by a checkpoint engine are for separate pools only: whoever sends or gets some tells its GPU, once."""
    outcome = run([str(FOLDER / "pools.py"), role, mode], FOLDER, QUIET, python=str(python))

    assert outcome.returncode == 0, outcome.stderr[-3000:]
    assert [(f["role"], f["gpus"]) for f in outcome.events("pool")] == [(role, ["GPU-of-cuda"])]


def first_trainer(python: Path, version: str, *options: str) -> None:
    """The loop before v1: until 0.7.0 new weights are part of generation."""
    outcome = run([str(FOLDER / "job_v0.py"), *options], FOLDER, QUIET, python=str(python))

    step = [*STEP[:2], *REWARD, *STEP[2:]]
    check(outcome, step if version >= "0.7.1" else step[:-2])


@pytest.mark.parametrize("turns", [1, 2])
def test_first_trainer(release: tuple[str, Path], turns: int) -> None:
    """The loop before v1 is the same in every release; agent loops say which tokens are an environment's."""
    version, python = release
    first_trainer(python, version, f"--turns={turns}")


@pytest.mark.frameworks
@pytest.mark.parametrize("version", [version for version in OLDER_VERL if version < "0.7.1"])
def test_engines_inside_the_workers(version: str) -> None:
    """The older way hands back lengths and no mask, which is all the same where nothing else speaks."""
    first_trainer(verl_python(version), version, "--rollout=workers")
