"""Separate pools on a real cluster, a node each: which GPU had which clock when, by the stub's call log."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from rig.cluster import Cluster
from slurm.scripts import PYTHON, RIG, Run, eerl_run, leftovers, run_job, touched_gpus

pytestmark = pytest.mark.slurm

GENERATION_MHZ, TRAINING_MHZ, IDLE_MHZ = 1500, 1200, 345
POLICY = (
    f"policy: fixed\nfixed: {{generation_mhz: {GENERATION_MHZ}, training_mhz: {TRAINING_MHZ}}}\n"
    f"clocks: {{idle_mhz: {IDLE_MHZ}}}\n"
)
TWO_NODES = ("-N2", "--gres=gpu:2", "--eerl")


@dataclass(frozen=True, slots=True)
class Held:
    """A ceiling that was set on a node's GPUs, from and until CLOCK_MONOTONIC seconds."""

    mhz: int
    begin_s: float
    end_s: float


def held(cluster: Cluster, node: str) -> list[Held]:
    """What a node's first GPU was locked to, in order, from the call log; a reset ends the last one."""
    calls = [
        call
        for call in cluster.node(node).stub.setter_calls(0)
        if call.function in ("nvmlDeviceSetGpuLockedClocks", "nvmlDeviceResetGpuLockedClocks")
    ]
    found = []
    for call, following in itertools.pairwise([*calls, None]):
        ceiling = re.search(r"max=(\d+)", call.args) if call is not None else None
        if call is not None and ceiling is not None:
            end_s = following.t_ns / 1e9 if following is not None else float("inf")
            found.append(Held(int(ceiling[1]), call.end_ns / 1e9, end_s))
    return found


def at(locks: list[Held], t_s: float) -> int | None:
    """The ceiling that held at an instant."""
    return next((lock.mhz for lock in locks if lock.begin_s <= t_s < lock.end_s), None)


def run_pools(cluster: Cluster, folder: Path, mode: str, options: str = "", policy: str = POLICY) -> Run:
    """A run of the pools job, engine on n1 and trainer on n2."""
    meet = cluster.work / f"meet-{folder.name}"
    meet.mkdir()
    meet.chmod(0o777)
    command = eerl_run(cluster, "", policy=policy).partition(" -- ")[0]
    job = f"srun -N2 -n2 --overlap --gres=gpu:2 {PYTHON} {RIG / 'pool_job.py'}"
    return run_job(cluster, f"{command} -- {job} --mode {mode} --meet {meet} {options}", *TWO_NODES)


def origin_s(run: Run, cluster: Cluster) -> float:
    """CLOCK_MONOTONIC at run time zero: of the first order, whose call both logs have."""
    first = next(event for event in run.events("clock") if event["mhz"] == GENERATION_MHZ)
    lock = next(lock for lock in held(cluster, "n1") if lock.mhz == GENERATION_MHZ)
    return float(lock.begin_s - first["t_s"])


def phases(run: Run, name: str) -> list[tuple[float, float]]:
    """Begin and end of every run of a phase, in run time."""
    return [(p["begin_s"], p["end_s"]) for p in run.events("phase") if p["phase"] == name and p["exclusive"]]


def check_whole(run: Run, cluster: Cluster, mode: str) -> None:
    """What holds in every mode: control worked, sums agree, everything is home."""
    assert run.job.exit_code == 0, run.job.errors
    assert run.events("controller")[0]["mode"] == mode
    assert run.report["controller"]["switch_failures"] == 0
    assert all(check["ok"] for check in run.report["checks"]), run.report["checks"]
    assert [event["text"] for event in run.events("event") if event["kind"] == "control_off"] == []
    assert touched_gpus(cluster, "n1") == touched_gpus(cluster, "n2") == {0, 1}
    assert leftovers(cluster) == []
    for pool in run.report["pools"]:
        assert pool["separate"] and pool["gpus"] == 2
    for update in run.events("update")[1:]:
        record = update["record"]
        assert record["energy_j"] == pytest.approx(
            sum(pool["energy_j"] for pool in record["pools"].values()), rel=1e-6
        )


def test_pools_that_take_turns(cluster: Cluster, tmp_path: Path) -> None:
    """Disaggregated: each pool has its clock in its phase and the idle clock while the other works; the idle clock is
    lifted when the other's phase ends, before its own begins."""
    run = run_pools(cluster, tmp_path, "disaggregated", "--updates 5 --late 0.2")

    check_whole(run, cluster, "disaggregated_sync")
    zero_s = origin_s(run, cluster)
    engine, trainer = held(cluster, "n1"), held(cluster, "n2")
    assert {lock.mhz for lock in engine} == {GENERATION_MHZ, IDLE_MHZ}
    assert {lock.mhz for lock in trainer} == {TRAINING_MHZ, IDLE_MHZ}
    # From the third update on, the length of a wait is known.
    for begin_s, end_s in phases(run, "generation")[2:]:
        middle_s = zero_s + (begin_s + end_s) / 2
        assert at(engine, middle_s) == GENERATION_MHZ
        assert at(trainer, middle_s) == IDLE_MHZ
        assert at(engine, zero_s + begin_s) == GENERATION_MHZ, "lifted before the phase begins"
    for begin_s, end_s in phases(run, "training")[2:]:
        middle_s = zero_s + (begin_s + end_s) / 2
        assert at(trainer, middle_s) == TRAINING_MHZ
        assert at(engine, middle_s) == IDLE_MHZ
        assert at(trainer, zero_s + begin_s) == TRAINING_MHZ, "lifted before the phase begins"
    for begin_s, end_s in phases(run, "refit")[2:]:
        middle_s = zero_s + (begin_s + end_s) / 2
        assert (at(engine, middle_s), at(trainer, middle_s)) == (GENERATION_MHZ, TRAINING_MHZ)
    assert [u["record"]["valid_tokens"] for u in run.events("update")] == [8000 + i for i in range(5)]
    waiting = {pool["pool"]: pool["waiting_energy_j"] for pool in run.report["pools"]}
    assert all(joules > 0 for joules in waiting.values())


def test_pools_that_meet(cluster: Cluster, tmp_path: Path) -> None:
    """Drained: the pool that arrives first idles until the refit begins; late counts find their update."""
    run = run_pools(cluster, tmp_path, "drained", "--updates 5 --generation 1.4 --training 3.2 --late 0.3")

    check_whole(run, cluster, "async_drained")
    zero_s = origin_s(run, cluster)
    engine, trainer = held(cluster, "n1"), held(cluster, "n2")
    assert {lock.mhz for lock in engine} == {GENERATION_MHZ, IDLE_MHZ}
    assert {lock.mhz for lock in trainer} == {TRAINING_MHZ}, "the trainer never waits"
    updates = run.events("update")
    assert [u["label"] for u in updates] == list(range(5))
    for update in updates[2:4]:
        record = update["record"]
        refit_s = next(begin for begin, end in phases(run, "refit") if end == update["end_s"])
        arrival_s = update["begin_s"] + record["generation_arrival_s"]
        assert record["generation_arrival_s"] < record["training_arrival_s"]
        assert refit_s - update["begin_s"] == pytest.approx(record["training_arrival_s"], abs=0.5)
        assert at(engine, zero_s + (arrival_s + refit_s) / 2) == IDLE_MHZ
        assert at(engine, zero_s + (refit_s + update["end_s"]) / 2) == GENERATION_MHZ
        assert record["policy_age_max"] == 1.0
        assert record["generated_tokens"] == 10_000 + update["label"] + 1, "what was generated meanwhile"
        assert record["valid_tokens"] == 8000 + update["label"], "what was trained on"


def test_pools_in_flight(cluster: Cluster, tmp_path: Path) -> None:
    """In flight: updates go from pause end to pause end, clocks follow the plan only, and nobody idles."""
    run = run_pools(cluster, tmp_path, "inflight", "--updates 4 --late 0.3")

    check_whole(run, cluster, "async_inflight")
    assert [lock.mhz for lock in held(cluster, "n1")] == [GENERATION_MHZ]
    assert [lock.mhz for lock in held(cluster, "n2")] == [TRAINING_MHZ]
    updates = run.events("update")
    assert [u["label"] for u in updates] == list(range(4))
    assert [u["record"]["valid_tokens"] for u in updates] == [8000 + i for i in range(4)], "late counts"
    pauses = phases(run, "refit")
    assert [u["end_s"] for u in updates] == pytest.approx([end_s for _, end_s in pauses], abs=0.1)
    for update in updates[1:]:
        record = update["record"]
        assert set(record["phases"]) == {"generation", "training", "refit"}
        assert record["phases"]["generation"]["elapsed_s"] + record["phases"]["refit"]["elapsed_s"] == (
            pytest.approx(record["elapsed_s"], abs=0.05)
        ), "generation goes on across the border"
        assert 0.5 < record["generation_busy_fraction"] <= 1.0
        assert record["policy_age_max"] == 1.0
    assert updates[-1]["record"]["oldest_request_plan_id"] == 0


def test_pools_of_the_policy_by_index(cluster: Cluster, tmp_path: Path) -> None:
    """N19: on one node GPU 2 generates and GPU 0 trains; each is locked for its own role, 1 and 3 never."""
    policy = POLICY + "mode: disaggregated_sync\npools: {generation: ['n1:2'], training: ['n1:0']}\n"

    run = run_job(
        cluster,
        eerl_run(
            cluster, "--updates 4 --generation 1.3 --training 1.3 --mode disaggregated_sync", policy=policy
        ),
        "-w",
        "n1",
        "--gres=gpu:4",
        "--eerl",
    )

    assert run.job.exit_code == 0, run.job.errors
    stub = cluster.node("n1").stub
    locks: dict[int, set[str]] = {
        gpu: {c.args for c in stub.setter_calls(gpu) if c.function == "nvmlDeviceSetGpuLockedClocks"}
        for gpu in range(4)
    }
    assert locks[2] == {"min=345 max=1500", "min=345 max=345"}
    assert locks[0] == {"min=345 max=1200", "min=345 max=345"}
    assert locks[1] == locks[3] == set()
    assert leftovers(cluster) == []


DRAINED = "--updates 4 --generation 1.2 --training 1.6"


@pytest.mark.parametrize(
    ("options", "policy", "words"),
    [
        (DRAINED, POLICY + "mode: disaggregated_sync\n", "the trainer says its mode is async_drained"),
        (f"{DRAINED} --silent trainer", POLICY, "nobody said which GPUs do training"),
        (f"{DRAINED} --silent engine", POLICY, "nobody said which GPUs do generation"),
    ],
)
def test_what_does_not_fit_is_told_once(
    cluster: Cluster, tmp_path: Path, options: str, policy: str, words: str
) -> None:
    """A mode that policy and trainer name differently, a pool nobody names: one message, no clock, every joule."""
    run = run_pools(cluster, tmp_path, "drained", options, policy)

    assert run.job.exit_code == 0, run.job.errors
    assert run.job.errors.count(words) == run.job.errors.count("measuring only") == 1, run.job.errors
    assert cluster.node("n1").stub.setter_calls() == cluster.node("n2").stub.setter_calls() == []
    assert run.report["allocation"]["gpus_measured"] == 4
    assert all(check["ok"] for check in run.report["checks"]), run.report["checks"]
    assert run.events("update") and all(u["plan_id"] in (0, None) for u in run.events("update"))
    assert leftovers(cluster) == []


def test_a_pool_whose_node_never_joins(cluster: Cluster, tmp_path: Path) -> None:
    """The trainer's node cannot be read: its pool never arrives, which is said once; nothing is set anywhere."""
    for function in ("nvmlInit_v2", "nvmlInitWithFlags", "nvmlInit"):
        cluster.node("n2").stub.add_fault(function, code=18)

    run = run_pools(cluster, tmp_path, "drained", DRAINED)

    told = [line for line in run.ours if "n2" in line]
    assert run.job.exit_code == 0, run.job.errors
    assert len(told) == 1 and "measuring only" in told[0], run.job.errors
    assert cluster.node("n1").stub.setter_calls() == cluster.node("n2").stub.setter_calls() == []
    assert run.report["allocation"]["nodes_seen"] == 1 and "Partial" in run.text
    assert all(u["record"]["energy_j"] is None for u in run.events("update")), "half a job is not the job"
    assert leftovers(cluster) == []


def test_a_pool_that_never_arrives_at_the_meeting(cluster: Cluster, tmp_path: Path) -> None:
    """Drained, and no end of generation is ever marked: no arrival is invented, updates go on, it is told once."""
    run = run_pools(cluster, tmp_path, "drained", f"{DRAINED} --lose-ends")

    updates = run.events("update")
    assert run.job.exit_code == 0, run.job.errors
    assert [u["label"] for u in updates] == list(range(4))
    assert all(u["record"].get("generation_arrival_s") is None for u in updates[:-1]), updates
    assert all(u["record"]["elapsed_s"] > 0 for u in updates)
    assert run.job.errors.count("generation has begun but not ended in 3 updates") == 1, run.job.errors
    assert leftovers(cluster) == []
