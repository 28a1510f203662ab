"""Field cases about markers and clocks on whole runs with simulated GPUs: R11, R15, C05, C10, N22."""

from __future__ import annotations

from pathlib import Path

import pytest
from launch.field_run import Field


@pytest.fixture
def field(tmp_path: Path) -> Field:
    """A place for runs on simulated GPUs."""
    field = Field(tmp_path)
    field.simulate()
    return field


def test_a_stopped_session_does_not_stop_training(field: Field) -> None:
    """R11: with the session stopped 100 000 markers are sent; calls do not block, what was lost is counted."""
    program = """
    phase("generation", 0.3, 1)
    children = Path(f"/proc/{os.getppid()}/task/{os.getppid()}/children").read_text().split()
    (session,) = [c for c in children if b"eerl_launch.session" in Path(f"/proc/{c}/cmdline").read_bytes()]
    os.kill(int(session), signal.SIGSTOP)
    costs = []
    try:
        for number in range(50_000):
            begin = time.perf_counter()
            mark.begin("training", update=1); mark.end("training", update=1)
            costs.append((time.perf_counter() - begin) / 2)
    finally:
        os.kill(int(session), signal.SIGCONT)
    time.sleep(1)
    phase("generation", 0.3, 2)
    costs.sort()
    print(costs[len(costs) // 2], costs[-len(costs) // 1000])
    raise SystemExit(3)
    """

    done = field.run(field.trainer(program))

    median_s, slowest_s = (float(word) for word in done.output.split())
    assert done.code == 3
    assert median_s < 0.01 and slowest_s < 0.1
    assert done.events("end")[0]["markers"]["lost"] > 0
    assert done.events("update")[-1]["label"] == 2
    assert "lost" in done.text


def test_a_run_without_markers(field: Field) -> None:
    """R15: no markers: no clock is set, the whole job is measured, one hint says how to add them."""
    done = field.run(["sh", "-c", "sleep 3; exit 2"])

    assert done.code == 2
    assert done.events("clock") == []
    assert done.report["allocation"]["energy_j"] > 0
    assert sum("no markers came" in line and "README" in line for line in done.ours) == 1
    assert {node["state"] for node in done.report["clocks_at_end"]} == {"untouched"}


def test_measuring_sets_nothing(field: Field) -> None:
    """N22a: under the policy governor a marked run neither sets nor resets a clock, and the report says so."""
    field.policy("policy: governor\n")

    done = field.run(
        field.trainer("for u in (1, 2, 3):\n    phase('generation', 0.3, u); phase('training', 0.3, u)")
    )

    assert len(done.events("update")) == 3
    assert done.events("clock") == []
    assert {node["state"] for node in done.report["clocks_at_end"]} == {"untouched"}


def test_equal_clocks_are_set_once(field: Field) -> None:
    """C04: where both phases want the same clock there is one order to lock in the whole run."""
    field.policy("policy: fixed\nfixed: {generation_mhz: 1200, training_mhz: 1200}\n")
    program = "for u in range(1, 5):\n    phase('generation', 1.1, u); phase('training', 1.1, u)\n"

    done = field.run(field.trainer(program))

    assert len(done.events("update")) == 4
    assert [event["mhz"] for event in done.events("clock") if event["mhz"] is not None] == [1200]


def test_one_order_for_each_change_of_phase(field: Field) -> None:
    """C04: a change of phase is one order for each GPU; phases shorter than a second do not switch at all."""
    field.policy("policy: fixed\nfixed: {generation_mhz: 1500, training_mhz: 1200}\n")
    program = """
    for update in range(1, 5):
        phase("generation", 1.2, update); phase("training", 1.2, update)
    for update in range(5, 25):
        phase("generation", 0.1, update); phase("training", 0.1, update)
    """

    done = field.run(field.trainer(program))

    long_s, settled_s = (u["end_s"] for u in done.events("update") if u["label"] in (4, 10))
    clocks = [event for event in done.events("clock") if event["mhz"] is not None]
    early = [event["mhz"] for event in clocks if event["t_s"] < long_s]
    assert early in (
        [1500, 1200] * 4,
        [1500, 1200] * 3,
    )  # without the first update when agents joined during it
    assert [event for event in clocks if event["t_s"] > settled_s] == []


def test_overlap_that_nobody_declared(field: Field) -> None:
    """R08: generation and training at the same time without a mode: no control from there on, and one message."""
    field.policy("policy: fixed\nfixed: {generation_mhz: 1500, training_mhz: 1200}\n")
    program = """
    import threading
    def train(update):
        with mark.phase("training", update=update):
            time.sleep(2.0)
    for update in range(1, 5):
        with mark.phase("generation", update=update):
            time.sleep(0.7)
            thread = threading.Thread(target=train, args=(update,)); thread.start()
            time.sleep(1.5)
        thread.join()
    """

    done = field.run(field.trainer(program))

    told = [line for line in done.ours if "training overlap" in line]
    off_s = next(e["t_s"] for e in done.events("event") if e["kind"] == "warning" and "overlap" in e["text"])
    assert done.code == 0
    assert len(told) == 1, done.errors
    assert [
        event for event in done.events("clock") if event["mhz"] is not None and event["t_s"] > off_s + 1
    ] == []
    assert "overlap" in done.text
    assert all(check["ok"] is not False for check in done.report["checks"])


FIXED = "policy: fixed\nfixed: {generation_mhz: 1234, training_mhz: 5000}\nclocks: {min_mhz: 100, max_mhz: 3000}\n"


def test_clocks_outside_the_table(field: Field) -> None:
    """C05: wishes between and beyond the table's clocks are set as supported ones, which is said once, also aloud."""
    field.policy(FIXED)
    program = "for u in (1, 2, 3):\n    phase('generation', 1.2, u); phase('training', 1.2, u)\n"

    done = field.run(field.trainer(program))

    table = done.events("controller")[0]["grid"]["supported_mhz"]
    asked = {event["mhz"] for event in done.events("clock")} - {None}
    assert done.code == 0, done.errors
    assert 1234 not in table and asked <= set(table)
    assert 1230 in asked
    notes = [event["note"] for event in done.events("plan") if "1234" in event["note"]]
    assert len(notes) == 1 and "1230" in notes[0] and "5000" in notes[0], notes
    assert "1234 MHz became 1230 MHz" in done.text
    (told,) = (line for line in done.ours if "became" in line)
    assert all(part in told for part in ("1234 MHz", "5000 MHz", "min_mhz 100 MHz", "max_mhz 3000 MHz")), told


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("max_slowdwon: 3\n", ("max_slowdwon", "policy.yaml:1:", "nearest valid key")),
        ("clocks: {min_mhz: 1500, max_mhz: 900}\n", ("1500", "900")),
        ("policy: fixed\nfixed: {generation_mhz: fast}\n", ("fast", "policy.yaml:2:")),
        ("max_throughput_loss: [2]\n", ("max_throughput_loss",)),
    ],
)
def test_a_broken_policy_never_starts_the_command(field: Field, text: str, words: tuple[str, ...]) -> None:
    """C10: each fault is named with its line; the exit code is 2, also of the check; the command is not started."""
    field.policy(text)

    done = field.run(["touch", str(field.folder / "started")])
    checked = field.check_policy()

    assert done.code == 2 and checked.returncode == 2
    assert all(word in done.errors for word in words), done.errors
    assert all(word in checked.stderr for word in words), checked.stderr
    assert not (field.folder / "started").exists()
    assert "Traceback" not in done.errors + checked.stderr


def test_one_e_minus_three_is_a_number(field: Field) -> None:
    """C10: 1e-3, which YAML 1.1 reads as text, is taken as the number that was meant."""
    field.policy("max_throughput_loss: 1e-3\n")

    done = field.run(["true"])

    assert done.code == 0
    assert done.events("start")[0]["policy"]["max_throughput_loss"] == 0.001
