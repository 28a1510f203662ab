"""``eerl``: replay, running jobs, policy check; each error says what to do."""

from __future__ import annotations

import json
import selectors
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from eerl_controller import (
    ClockGrid,
    Controller,
    ExecutionMode,
    PhaseRecord,
    Settings,
    UpdateRecord,
)
from eerl_launch.ledger import LedgerWriter, read_events
from eerl_launch.ledger_records import record_from_dict
from eerl_launch.operator_door import OperatorDoor
from eerl_launch.replay import replay
from eerl_launch.tools import eerl
from eerl_launch.update_lines import record_to_dict

GRID = ClockGrid(range(345, 1981, 15), 1980)


def run(*arguments: str | Path) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of one ``eerl`` command."""
    result = CliRunner().invoke(eerl, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def make_record(update: int, plan_id: int, generation_mhz: int | None) -> UpdateRecord:
    """One update of a job whose decoding hardly cares for the clock."""
    share = (generation_mhz or 1980) / 1980
    tokens = 100_000 + 700 * (update * 37 % 11)
    generation_s = tokens / 5000 * (1 + 0.02 * (1 - share))
    power_w = 8 * (120 + 230 * share**2)
    phases = {
        "generation": PhaseRecord(elapsed_s=generation_s, energy_j=generation_s * power_w),
        "training": PhaseRecord(elapsed_s=15.0, energy_j=15.0 * 8 * 690),
    }
    return UpdateRecord(
        update=update,
        plan_id=plan_id,
        elapsed_s=generation_s + 17.0,
        energy_j=sum(phase.energy_j or 0.0 for phase in phases.values()) + 2 * 8 * 120.0,
        phases=phases,
        generated_tokens=tokens,
        longest_generated_tokens=2000 + update * 53 % 400,
        valid_tokens=tokens - 1000,
        longest_consumed_tokens=2000 + update * 53 % 400,
    )


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """The ledger of 60 updates that a controller steered, written as the session writes it."""
    folder = tmp_path / "eerl-42"
    folder.mkdir()
    controller = Controller(Settings(), ExecutionMode.COLOCATED_SYNC, GRID, seed=0)
    with LedgerWriter(folder) as ledger:

        def log(event: str, **fields: Any) -> None:
            ledger.append({"ev": event, "t_s": 0.0, **fields})

        def log_plan() -> None:
            plan = controller.plan
            log(
                "plan",
                plan_id=plan.plan_id,
                generation_mhz=plan.generation_mhz,
                training_mhz=plan.training_mhz,
                idle_mhz=plan.idle_mhz,
                state=controller.state.name,
                reason=plan.reason.name,
                note=plan.note,
            )

        log("start", schema_version=1, job_id="42", run_id="r")
        log(
            "controller",
            settings=controller_settings(),
            mode="colocated_sync",
            grid={"supported_mhz": list(GRID.supported_mhz), "governor_mhz": GRID.governor_mhz},
            seed=0,
        )
        log_plan()
        for update in range(60):
            before = (controller.plan.plan_id, controller.plan.reason, controller.state)
            record = make_record(update, controller.plan.plan_id, controller.plan.generation_mhz)
            log("update", index=update, record=record_to_dict(record))
            plan = controller.observe(record)
            if (plan.plan_id, plan.reason, controller.state) != before:
                log_plan()
        log("end", status="complete", exit_code=0)
    return folder


def controller_settings() -> dict[str, Any]:
    """The settings as the session logs them."""
    return Settings().to_dict()


def test_records_come_back_as_they_were() -> None:
    """A record survives the ledger's plain values without a change."""
    record = make_record(3, 1, 1200)

    assert record_from_dict(json.loads(json.dumps(record_to_dict(record)))) == record


def test_replay_gives_the_recorded_plans(recorded: Path) -> None:
    """A run replays to the same plans, and clocks were really lowered in it."""
    code, out, err = run("replay", recorded)

    assert (code, err) == (0, "")
    assert "60 updates replayed" in out and "all as recorded" in out
    assert any(event.get("generation_mhz") for event in read_events(recorded) if event["ev"] == "plan")


def test_replay_finds_the_first_difference(recorded: Path) -> None:
    """A changed plan in the ledger is exit 1 with the update and both plans."""
    ledger = recorded / "ledger.jsonl"
    lines = ledger.read_text().splitlines()
    for number, line in enumerate(lines):
        event = json.loads(line)
        if event["ev"] == "plan" and event["generation_mhz"]:
            event["generation_mhz"] += 15
            lines[number] = json.dumps(event)
            break
    ledger.write_text("\n".join(lines) + "\n")

    code, _, err = run("replay", recorded)

    assert code == 1
    assert "the plans differ: after update" in err
    assert str(event["generation_mhz"]) in err and str(event["generation_mhz"] - 15) in err


def test_replay_misses_a_plan(recorded: Path) -> None:
    """A plan that is missing from the middle of a ledger is a difference too."""
    events = list(read_events(recorded))
    plans = [number for number, event in enumerate(events) if event["ev"] == "plan"]
    del events[plans[2]]

    assert "the ledger has no new plan" in (replay(events).difference or "")


def test_replay_of_a_killed_run(recorded: Path) -> None:
    """A ledger cut right after an update is replayed up to there without a false alarm."""
    events = list(read_events(recorded))
    plans = [number for number, event in enumerate(events) if event["ev"] == "plan"]

    result = replay(events[: plans[2]])

    assert events[plans[2] - 1]["ev"] == "update"
    assert result.difference is None
    assert result.updates > 0


def test_replay_under_another_policy(recorded: Path, tmp_path: Path) -> None:
    """Another policy gives its own plans, compared with nothing; governor never lowers a clock."""
    policy = tmp_path / "policy.yaml"
    policy.write_text("policy: governor\n")

    code, out, _ = run("replay", recorded, "--policy", policy, "--json")

    document = json.loads(out)
    assert code == 0
    assert document["updates"] == 60
    assert all(plan["generation_mhz"] is None for plan in document["plans"])
    assert document["estimated"] is True


def test_replay_without_records(tmp_path: Path) -> None:
    """A ledger in which no controller was ever asked is an error that says so."""
    (tmp_path / "ledger.jsonl").write_text('{"ev":"start","t_s":0,"schema_version":1}\n')

    code, _, err = run("replay", tmp_path)

    assert code == 1
    assert err.startswith("eerl: ") and "no controller event" in err


def test_policy_check(tmp_path: Path) -> None:
    """A good file is fine; a broken one is exit 2 with every fault."""
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text("max_throughput_loss: 1%\n")
    bad.write_text("max_slowdwon: 3\nmode: fast\n")

    fine, broken = run("policy-check", good), run("policy-check", bad)

    assert fine[0] == 0 and "fine" in fine[1]
    assert broken[0] == 2
    assert "max_throughput_loss" in broken[2] and "fast" in broken[2]
    assert json.loads(run("policy-check", good, "--json")[1])["max_throughput_loss"] == 0.01


@pytest.fixture
def running(recorded: Path, tmp_path: Path) -> Iterator[Callable[[], list[str]]]:
    """A session that answers at its door; gives the requests it got."""
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    asked: list[str] = []
    stop = threading.Event()
    selector = selectors.DefaultSelector()

    def answer(operation: str) -> dict[str, Any]:
        asked.append(operation)
        return {
            "run_id": "eerl-42", "updates": 20, "total_updates": 60, "state": "SEARCH", "hold": operation == "hold",
            "control_off": None, "applied_mhz": 1200, "nodes": {"n1": "joined", "n2": "lost"}, "gpus": 8,
            "plan": {"plan_id": 3, "generation_mhz": 1200, "training_mhz": None, "reason": "TRIAL", "note": "why"},
            "energy_saving_pct": 12.5, "throughput_change_pct": -1.0, "simulated": "h100:2x4",
        }  # fmt: skip

    lines = (recorded / "ledger.jsonl").read_text().splitlines()[:-1]  # still running: no end event
    (recorded / "ledger.jsonl").write_text("\n".join(lines) + "\n")
    door = OperatorDoor(private, recorded, socket.gethostname(), selector, answer)

    def serve() -> None:
        while not stop.is_set():
            for key, _ in selector.select(0.02):
                key.data()

    thread = threading.Thread(target=serve)
    thread.start()
    yield lambda: asked
    stop.set()
    thread.join()
    door.close()


def test_status_hold_resume(recorded: Path, running: Callable[[], list[str]]) -> None:
    """The three commands reach the session, and its answer is readable and complete."""
    shown = run("status", recorded)
    held = run("hold", recorded)
    resumed = run("resume", recorded, "--json")

    assert running() == ["status", "hold", "resume"]
    assert (shown[0], held[0], resumed[0]) == (0, 0, 0)
    for part in ("SIMULATED", "20 of 60", "search", "1200 MHz", "governor", "-12.5 %", "n2 lost"):
        assert part in shown[1]
    assert "held by an operator" in held[1]
    assert json.loads(resumed[1])["updates"] == 20


def test_status_shows_every_pool() -> None:
    """With separate pools the clocks asked for last are shown by pool."""
    from eerl_launch.control import describe

    text = describe({"applied_mhz": {"generation": 345, "training": None}, "state": "LOCKED"})

    assert "generation 345 MHz, training governor" in text


def test_status_of_a_run_that_ended(recorded: Path) -> None:
    """After the end the answer says how it ended and where the report comes from."""
    code, _, err = run("status", recorded)

    assert code == 1
    assert "has ended (complete, exit code 0)" in err and "eerl report" in err


def test_status_of_a_killed_session(recorded: Path, running: Callable[[], list[str]]) -> None:
    """A socket that nobody serves any more is told from a run that ended."""
    (recorded / "control.json").write_text(
        json.dumps({"socket": str(recorded / "gone"), "node": socket.gethostname(), "pid": 1})
    )

    code, _, err = run("status", recorded)

    assert code == 1
    assert "killed" in err


def test_status_from_another_node(recorded: Path, running: Callable[[], list[str]]) -> None:
    """On another node the message holds the command to type."""
    (recorded / "control.json").write_text(
        json.dumps({"socket": str(recorded / "gone"), "node": "node07", "pid": 1})
    )

    code, _, err = run("hold", recorded)

    assert code == 1
    assert "node07" in err
    assert f"srun --overlap --jobid=42 -w node07 -n1 eerl hold {recorded.resolve()}" in err


def test_status_of_what_is_no_run(tmp_path: Path) -> None:
    """A folder without a ledger is named as such."""
    code, _, err = run("status", tmp_path)

    assert code == 1
    assert "not a run folder" in err


def test_session_that_does_not_answer(
    recorded: Path, running: Callable[[], list[str]], tmp_path: Path
) -> None:
    """A stopped session costs a bounded wait and a message."""
    from eerl_launch.control import ControlError, ask

    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(str(tmp_path / "mute"))
        server.listen(1)
        (recorded / "control.json").write_text(json.dumps({"socket": str(tmp_path / "mute"), "node": "n"}))

        with pytest.raises(ControlError, match=r"did not answer within 0\.2 s"):
            ask(recorded, "status", timeout_s=0.2)


@pytest.mark.parametrize("command", ["profile", "report", "replay"])
def test_output_onto_a_full_disk_is_one_message(recorded: Path, command: str) -> None:
    """What cannot be printed is said in one line, with exit 1."""
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", "from eerl_launch.tools import main; main()", command, str(recorded)],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )

    assert done.returncode == 1
    assert done.stderr.splitlines()[-1:] == [
        "eerl: standard output: No space left on device; what was asked is not there"
    ]
