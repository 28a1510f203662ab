"""Whole simulated runs with separate pools: whose clock changed when and why, and what became of bad input."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from eerl_launch.devices.sim import gpu_uuid

BIN = Path(sys.executable).parent
ROOT = Path(__file__).parents[2]
DEMO = ROOT / "slurm_examples" / "simulated_grpo.py"
FIXED = "policy: fixed\nfixed: {generation_mhz: 1500, training_mhz: 1200}\nclocks: {idle_mhz: 345}\n"
UPDATES = 5

Events = list[dict[str, Any]]


def run(
    out: Path, policy: str, *command: str, simulate: str = "h100:2x1", time_scale: int = 40
) -> tuple[Events, str]:
    """The ledger and the messages of a run; its command must end well."""
    out.mkdir(exist_ok=True)
    (out / "policy.yaml").write_text(policy)
    argv = [str(BIN / "eerl-run"), "--simulate", simulate, "--time-scale", str(time_scale)]
    argv += ["--policy", str(out / "policy.yaml"), "--out", str(out), "--", sys.executable, *command]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    (ledger,) = out.glob("eerl-*/ledger.jsonl")
    return [json.loads(line) for line in ledger.read_text().splitlines()], done.stderr


def of_kind(ledger: Events, kind: str) -> Events:
    return [event for event in ledger if event["ev"] == kind]


def switches(ledger: Events, pool: str) -> list[tuple[str, int | None]]:
    """What made each switch of a pool, and to which clock."""
    return [(c["phase"], c["mhz"]) for c in of_kind(ledger, "clock") if c["pool"] == pool]


def check_sums(ledger: Events) -> Events:
    """Every GPU's joules are in one phase at a time, and pools make up the update; the updates.

    The first update is left out: on a busy machine the agents join in it.
    """
    updates = of_kind(ledger, "update")
    for before, after in itertools.pairwise(updates):
        assert before["end_s"] == after["begin_s"]
    for update in updates[1:]:
        record = update["record"]
        parts_j = sum(phase["energy_j"] for phase in record["phases"].values())
        assert parts_j + update["unattributed"]["energy_j"] == pytest.approx(record["energy_j"])
        assert update["unattributed"]["energy_j"] >= -1e-6
        pools_j = sum(pool["energy_j"] for pool in record["pools"].values())
        assert pools_j == pytest.approx(record["energy_j"])
        for role, wait in update["pool_waits"].items():
            pool = record["pools"][role]
            assert wait["wait_s"] == pytest.approx(pool["wait_s"])
            assert 0.0 <= wait["energy_j"] <= pool["energy_j"] + 1e-6
    return updates


def test_turns(tmp_path: Path) -> None:
    """Disaggregated: own clock, idle clock while the other works, lifted by the end of the other's phase."""
    ledger, _ = run(tmp_path, FIXED, str(DEMO), "--mode", "disaggregated", "--updates", str(UPDATES))

    engine = switches(ledger, "generation")
    first_idle = engine.index(("reward", 345))
    assert engine[first_idle:] == [("reward", 345), ("training", 1500)] * (len(engine[first_idle:]) // 2)
    trainer = switches(ledger, "training")
    idles = trainer[trainer.index(("generation", 345)) :]
    assert idles[:4] == [("generation", 345), ("generation", 1200)] * 2, "lifted when generation ends"
    assert not switches(ledger, "all")
    updates = check_sums(ledger)
    assert [u["label"] for u in updates] == list(range(UPDATES))
    for update in updates[2:]:
        pools = update["record"]["pools"]
        assert (pools["generation"]["requested_mhz"], pools["training"]["requested_mhz"]) == (1500, 1200)
        assert pools["training"]["achieved_mhz"] == pytest.approx(1200, abs=60)
        idle_w = update["pool_waits"]["generation"]["energy_j"] / update["pool_waits"]["generation"]["wait_s"]
        assert idle_w < 110.0, "waits at the idle clock for the most part"


def test_meeting(tmp_path: Path) -> None:
    """Drained: who has arrived idles until the refit begins; the other pool keeps its clock."""
    ledger, _ = run(tmp_path, FIXED, str(DEMO), "--mode", "drained", "--updates", str(UPDATES))

    engine = switches(ledger, "generation")
    idles = engine[engine.index(("generation", 345)) :]
    assert idles == [("generation", 345), ("refit", 1500)] * (len(idles) // 2)
    assert {mhz for _, mhz in switches(ledger, "training")} == {1200}
    updates = check_sums(ledger)
    assert [u["label"] for u in updates] == list(range(UPDATES))
    for update in updates[1:-1]:
        record = update["record"]
        assert 0 < record["generation_arrival_s"] < record["training_arrival_s"] < record["elapsed_s"]
        assert record["policy_age_max"] == 1.0
        assert 0 < record["generation_busy_fraction"] < record["training_busy_fraction"] <= 1.0
        assert record["oldest_request_plan_id"] is None
    generated = [u["record"]["generated_tokens"] for u in updates]
    consumed = [u["record"]["longest_consumed_tokens"] for u in updates]
    longest = [u["record"]["longest_generated_tokens"] for u in updates]
    assert generated[-1] == 0, "nothing was generated beside the last training"
    assert longest[1:-2] == consumed[2:-1], "what is generated now is consumed next"


def test_in_flight(tmp_path: Path) -> None:
    """In flight: one clock a pool, no idling; generation runs on across borders, old requests have their plan."""
    ledger, _ = run(tmp_path, FIXED, str(DEMO), "--mode", "inflight", "--updates", str(UPDATES))

    assert {mhz for _, mhz in switches(ledger, "generation")} == {1500}
    assert {mhz for _, mhz in switches(ledger, "training")} == {1200}
    updates = check_sums(ledger)
    assert [u["label"] for u in updates] == list(range(UPDATES))
    assert [u["record"]["policy_age_max"] for u in updates] == [0, 1, 2, 2, 2]
    assert updates[-1]["record"]["oldest_request_plan_id"] == 0
    report = json.loads(next(tmp_path.glob("eerl-*/report.json")).read_text())
    assert all(check["ok"] for check in report["checks"])
    rest = next(row for row in report["phases"] if row["phase"] == "unattributed")
    assert rest["elapsed_s"] is not None and rest["elapsed_s"] < 0.5 * report["allocation"]["elapsed_s"]


IN_FLIGHT = """
import threading, time
from eerl_launch import mark
from eerl_launch.simulate import SimWorkload

time.sleep(1.0)  # as a model takes to load, and agents to join
with SimWorkload(gpus=[(0, 0)]) as engine, SimWorkload(gpus=[(1, 0)]) as trainer:
    mark.run(mode="async_inflight", total_updates=1000)
    mark.pool("generation", engine.uuids)
    mark.pool("training", trainer.uuids)
    running, gate, over = threading.Lock(), threading.Event(), threading.Event()
    gate.set()

    def generate():
        with mark.phase("generation"):
            while not over.is_set():
                gate.wait()
                with running:
                    engine.run_phase("generation", 0.2)

    thread = threading.Thread(target=generate)
    thread.start()
    for update in range(66):
        with mark.phase("training", update):
            trainer.run_phase("training", 4.0)
        gate.clear()
        with running:
            mark.pause(update)
            time.sleep(0.02)
            mark.resume(update)
        gate.set()
        mark.update(update, generated_tokens=1000, valid_tokens=900, longest_response_tokens=50, policy_age=1)
    over.set()
    thread.join()
"""


def test_clocks_change_in_the_pause_only(tmp_path: Path) -> None:
    """In flight with a controller that searches: every order is made by a pause, and plans count from its end."""
    program = tmp_path / "in_flight.py"
    program.write_text(IN_FLIGHT)

    ledger, _ = run(tmp_path / "out", "policy: paper\n", str(program), time_scale=60)

    orders = of_kind(ledger, "clock")
    assert orders, "the controller tried a clock"
    assert {order["phase"] for order in orders} == {"pause"}
    updates = check_sums(ledger)[1:]
    assert all(u["plan_id"] is not None for u in updates), "no update ran under two plans"
    plans = {plan["plan_id"]: plan for plan in of_kind(ledger, "plan")}
    for update in updates:
        plan = plans[update["plan_id"]]
        assert update["record"]["pools"]["training"]["requested_mhz"] == plan["training_mhz"]
    first = next(u for u in updates if u["plan_id"] > 0)
    assert first["record"]["oldest_request_plan_id"] == 0, "it consumed what was begun under the plan before"


ASYNCHRONOUS = """
import sys, time
from eerl_launch import mark

time.sleep(1.0)  # as a model takes to load, and agents to join
mode, roles = sys.argv[1], sys.argv[2]
mark.run(mode=mode, total_updates=4)
for role, gpu in zip(("generation", "training"), roles.split(",") if roles else ()):
    mark.pool(role, [gpu])
for update in range(4):
    mark.begin("generation", update + 1)
    with mark.phase("training", update):
        time.sleep(0.1)
    mark.end("generation", update + 1, generated_tokens=100, longest_response_tokens=9)
    with mark.phase("refit", update):
        time.sleep(0.05)
    mark.update(update, valid_tokens=90, longest_response_tokens=9, policy_age=1)
"""

ENGINE, TRAINER = gpu_uuid(0, 0), gpu_uuid(1, 0)


@pytest.mark.parametrize(
    ("mode", "roles", "policy", "words"),
    [
        ("async_drained", "", FIXED, "nobody said which GPUs do generation and training"),
        ("async_drained", ENGINE, FIXED, "nobody said which GPUs do training"),
        ("async_drained", f"{ENGINE},{ENGINE}", FIXED, "in both pools"),
        ("async_drained", f"{ENGINE},GPU-none", FIXED, "not the job's or not measured: GPU-none"),
        ("async_drained", f"{ENGINE},{TRAINER}", FIXED + "mode: async_inflight\n", "the policy says"),
        ("sideways", f"{ENGINE},{TRAINER}", FIXED, "unknown mode 'sideways'"),
        ("colocated_sync", "", FIXED, "overlap but the run is not marked asynchronous"),
    ],
)
def test_what_does_not_fit_is_measured_only(
    tmp_path: Path, mode: str, roles: str, policy: str, words: str
) -> None:
    """R08: unknown or impossible pools and modes that contradict: one message with the cure, no clock, all joules."""
    program = tmp_path / "program.py"
    program.write_text(ASYNCHRONOUS)

    ledger, errors = run(tmp_path / "out", policy, str(program), mode, roles)

    assert errors.count(words) == 1, errors
    lowered = [order for order in of_kind(ledger, "clock") if order["mhz"] is not None]
    assert not lowered or mode == "colocated_sync", "overlap shows only after the first update"
    assert not lowered or of_kind(ledger, "clock")[-1]["mhz"] is None
    for update in of_kind(ledger, "update")[1:]:
        rest_j = update["unattributed"]["energy_j"]
        assert rest_j is None or rest_j >= -1e-6
    (end,) = of_kind(ledger, "end")
    assert all(joules > 0 for joules in end["gpu_energy_j"].values())
    assert not [event for event in of_kind(ledger, "event") if event["kind"] == "session_failed"]


LATE = (
    """
import subprocess, sys
for loop in (1001, 1002, 1001):
    marks = f"from eerl_launch import mark\\nwith mark.phase('generation', {loop}): pass"
    subprocess.run([sys.executable, "-c", marks], check=True)
"""
    + ASYNCHRONOUS
)


def test_processes_that_generate_before_the_mode_is_told(tmp_path: Path) -> None:
    """Two generate and are gone before the trainer says what kind of run it is: it counts as if it had come first."""
    program = tmp_path / "program.py"
    program.write_text(LATE)

    ledger, errors = run(
        tmp_path / "out", "policy: eerl\n", str(program), "async_drained", f"{ENGINE},{TRAINER}"
    )

    (made,) = of_kind(ledger, "controller")
    assert (made["mode"], made["mode_source"]) == ("async_drained", "trainer")
    assert "measuring only" not in errors
    assert [update["label"] for update in of_kind(ledger, "update")] == [0, 1, 2, 3]


def test_refits_that_are_not_marked(tmp_path: Path) -> None:
    """A drained trainer without refit phases hears once what is missing; its time and joules are one update."""
    program = tmp_path / "program.py"
    program.write_text(
        "from eerl_launch import mark\n"
        "mark.run(mode='async_drained')\n"
        "for update in range(30):\n"
        "    with mark.phase('training', update):\n"
        "        pass\n"
    )

    ledger, errors = run(tmp_path / "out", FIXED, str(program))

    assert errors.count("no refit has ended") == 1
    assert len(of_kind(ledger, "update")) == 1


def test_pools_of_the_policy_on_one_node(tmp_path: Path) -> None:
    """N19: GPU 2 generates and GPU 0 trains, by the policy alone; the report shows pools and spare GPUs."""
    program = tmp_path / "program.py"
    program.write_text(ASYNCHRONOUS)
    policy = FIXED + 'pools: {generation: ["sim00:2"], training: ["sim00:0"]}\n'

    ledger, _ = run(tmp_path / "out", policy, str(program), "async_drained", "", simulate="h100:1x4")

    pools = {event["role"]: event for event in of_kind(ledger, "pool")}
    assert pools["generation"]["gpus"] == [gpu_uuid(0, 2)] and pools["training"]["gpus"] == [gpu_uuid(0, 0)]
    assert {event["source"] for event in pools.values()} == {"policy"}
    assert of_kind(ledger, "clock"), "clocks were set"
    assert {order["gpus_set"] for order in of_kind(ledger, "clock")} == {1}
    report = json.loads(next((tmp_path / "out").glob("eerl-*/report.json")).read_text())
    assert {gpu["index"]: gpu["pools"] for gpu in report["gpus"]} == {
        0: ["training"],
        1: [],
        2: ["generation"],
        3: [],
    }


def test_one_gpu_cannot_be_two_pools(tmp_path: Path) -> None:
    """The simulated trainer says what separate pools need."""
    argv = [str(BIN / "eerl-run"), "--simulate", "h100:1x1", "--out", str(tmp_path), "--", sys.executable]

    done = subprocess.run(
        [*argv, str(DEMO), "--mode", "drained"], capture_output=True, text=True, timeout=60, check=False
    )

    assert done.returncode == 2
    assert "at least two GPUs" in done.stderr
