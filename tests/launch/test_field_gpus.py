"""Field cases about reading GPUs, on whole runs over the NVML stub: N08, N11-N15, N23, E05, E07, E11, E12."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from launch.field_run import Field


@pytest.fixture
def field(tmp_path: Path) -> Field:
    """A place for runs on the stub's GPUs."""
    return Field(tmp_path)


def gpu(report: dict[str, Any], uuid: str) -> dict[str, Any]:
    return next(row for row in report["gpus"] if row["uuid"] == uuid)


STEADY = """
for gpu in range(len(stub)):
    stub.set_load(gpu, training=1.0)
before = [stub.true_energy_mj(gpu) for gpu in range(len(stub))]
Path(os.environ["STUB_DIR"], "started").touch()
time.sleep(SECONDS)
print(*[(stub.true_energy_mj(gpu) - mj) / 1000 for gpu, mj in enumerate(before)], flush=True)
for gpu in range(len(stub)):
    stub.set_load(gpu)
raise SystemExit(CODE)
"""


def steady(field: Field, seconds: float, code: int = 0) -> list[str]:
    return field.trainer(STEADY.replace("SECONDS", str(seconds)).replace("CODE", str(code)))


def started(field: Field) -> bool:
    return (field.folder / "state" / "started").exists()


def test_a_counter_that_restarts_costs_nothing(field: Field) -> None:
    """N08: the restart is told with its time, and the GPU's energy is as true as its neighbour's."""
    stub = field.stub(gpus=2)
    running = field.start(steady(field, 8))
    running.until(lambda: started(field), "the load")
    time.sleep(4)

    stub.restart_energy_counter(0)
    done = running.wait()

    true_j = [float(word) for word in done.output.split()]
    seen_j = [gpu(done.report, uuid)["energy_j"] for uuid in stub.uuids()]
    (told,) = [event for event in done.events("event") if event["kind"] == "counter_restart"]
    assert seen_j[0] / seen_j[1] == pytest.approx(true_j[0] / true_j[1], rel=0.02)
    assert told["uuid"] == stub.uuid(0) and 3 < told["at_s"] < 9
    assert "counter" in done.text and "restart" in done.text


def test_power_samples_with_a_hole(field: Field) -> None:
    """N11: no counter, and no power for 5 s: the total is near the truth, called estimated, with its coverage."""
    stub = field.stub(gpus=1)
    stub.add_fault("nvmlDeviceGetTotalEnergyConsumption", code=3)
    running = field.start(steady(field, 14))
    running.until(lambda: started(field), "the load")
    time.sleep(4)

    rules = [stub.add_fault(name, code=3) for name in ("nvmlDeviceGetPowerUsage", "nvmlDeviceGetFieldValues")]
    time.sleep(5)
    for rule in rules:
        stub.clear_faults(rule)
    done = running.wait()

    row = gpu(done.report, stub.uuid(0))
    estimated = [line for line in done.ours if "power samples" in line]
    assert row["energy_j"] == pytest.approx(float(done.output), rel=0.08)
    assert 0.4 < row["coverage_fraction"] < 0.85
    assert len(estimated) == 1, done.errors
    assert "estimated" in done.text


def test_a_module_counter_is_called_so(field: Field) -> None:
    """N12: on a Grace Hopper the counter is the module's: that is said, with the GPU's own power beside it."""
    stub = field.stub(gpus=1, name="NVIDIA GH200 480GB", module_extra_w=150)

    done = field.run(steady(field, 4))

    row = gpu(done.report, stub.uuid(0))
    module_w = row["energy_j"] / row["coverage_fraction"] / done.report["allocation"]["elapsed_s"]
    assert row["energy_scope"] == "module"
    assert module_w - row["gpu_only_power_w"] == pytest.approx(150, abs=40)
    assert "GPUs alone" in done.text and "CPU and memory" in done.text
    assert row["energy_j"] == pytest.approx(float(done.output), rel=0.25)
    assert "module" in done.text


def test_a_power_limit_that_falls_and_returns(field: Field) -> None:
    """C08: the enforced limit falls to 400 W and comes back: two events with time and watts, in the report."""
    stub = field.stub(gpus=2)
    running = field.start(steady(field, 8))
    running.until(lambda: started(field), "the load")
    time.sleep(3)

    stub.set(1, power_limit_mw=400_000)
    time.sleep(2.5)
    stub.set(1, power_limit_mw=700_000)
    done = running.wait()

    changes = [event for event in done.events("event") if event["kind"] == "power_limit_changed"]
    assert [(e["limit_before_w"], e["limit_w"]) for e in changes] == [(700, 400), (400, 700)]
    assert {event["uuid"] for event in changes} == {stub.uuid(1)}
    assert changes[1]["at_s"] - changes[0]["at_s"] == pytest.approx(2.5, abs=1.5)
    assert sum("power limit" in line for line in done.ours) == 1, done.errors
    assert "from 700 W to 400 W" in done.text
    assert any("power limit changed" in note for note in gpu(done.report, stub.uuid(1))["notes"])


def test_what_the_agent_remarks_reaches_the_user(field: Field) -> None:
    """N14: a list of visible devices that ends early is mentioned once on stderr, and kept with the node."""
    stub = field.stub(gpus=2)
    field.environment["CUDA_VISIBLE_DEVICES"] = f"{stub.uuid(1)},7"

    done = field.run(["sleep", "1.5"])

    assert sum("the list ends before '7'" in line for line in done.ours) == 1, done.errors
    assert "the list ends before '7'" in done.events("node")[-1]["notes"][0]


def test_visible_devices_by_uuid(field: Field) -> None:
    """N14: full UUIDs and short prefixes choose the GPUs, in the order given; no other one is counted."""
    stub = field.stub(gpus=4)
    chosen = f"{stub.uuid(3)},{stub.uuid(1)[:12]}"
    field.environment["CUDA_VISIBLE_DEVICES"] = chosen

    done = field.run(["sh", "-c", "echo $CUDA_VISIBLE_DEVICES; sleep 1.5"])

    assert done.output.decode().strip() == chosen
    assert {row["uuid"] for row in done.report["gpus"]} == {stub.uuid(3), stub.uuid(1)}
    assert [row["uuid"] for row in done.events("node")[0]["gpus"]] == [stub.uuid(3), stub.uuid(1)]
    assert stub.setter_calls() == []


def test_only_the_jobs_gpu_is_counted(field: Field) -> None:
    """E05: the job's GPU rests while the three others draw full power: the report has the first one's joules."""
    stub = field.stub(gpus=4)
    for other in (0, 2, 3):
        stub.set_load(other, training=1.0)
    field.environment["CUDA_VISIBLE_DEVICES"] = "1"
    program = """
    before = stub.true_energy_mj(1)
    time.sleep(5)
    print((stub.true_energy_mj(1) - before) / 1000)
    """

    done = field.run(field.trainer(program))

    total_j, covered = (done.report["allocation"][key] for key in ("energy_j", "coverage_fraction"))
    assert [row["uuid"] for row in done.report["gpus"]] == [stub.uuid(1)]
    assert total_j <= float(done.output) * 1.06
    assert total_j / covered == pytest.approx(float(done.output), rel=0.12)


def test_mig_is_called_shared(field: Field) -> None:
    """N15: with MIG on, the energy is called the whole card's, missing utilisation is unknown, nothing is set."""
    stub = field.stub(gpus=2)
    stub.set(0, mig=1)
    stub.add_fault("nvmlDeviceGetUtilizationRates", gpu=0, code=3)
    program = "phase('generation', 1.2, 1); phase('training', 1.2, 1); phase('generation', 1.2, 2)"

    done = field.run(field.trainer(program))

    assert gpu(done.report, stub.uuid(0))["mig"] is True
    assert gpu(done.report, stub.uuid(1))["mig"] is False
    assert gpu(done.report, stub.uuid(0)).get("idle_fraction") is None
    assert "MIG" in done.text and "whole" in done.text
    assert stub.setter_calls() == []


def test_a_query_that_hangs_holds_nothing_up(field: Field) -> None:
    """N23: a query of 90 s on GPU 0: markers, code and end are as ever, GPU 0 is flagged, GPU 1 complete."""
    stub = field.stub(gpus=2)
    program = """
    for update in range(1, 9):
        phase("generation", 0.4, update); phase("training", 0.4, update)
        if update == 2:
            Path(os.environ["STUB_DIR"], "started").touch()
    print(time.time())
    raise SystemExit(6)
    """
    running = field.start(field.trainer(program))
    running.until(lambda: started(field), "the second update")

    stub.add_fault("nvmlDeviceGetTotalEnergyConsumption", gpu=0, delay_ms=90_000)
    done = running.wait()
    ended_s = time.time()

    hung, other = (gpu(done.report, uuid) for uuid in stub.uuids())
    assert done.code == 6
    assert ended_s - float(done.output) < 25  # the case's 10 s on a busy machine
    assert [event["label"] for event in done.events("update")] == list(range(1, 9))
    assert hung["coverage_fraction"] < other["coverage_fraction"] - 0.2
    assert any(e["kind"] == "gpu_lost" and e["uuid"] == stub.uuid(0) for e in done.events("event"))
    assert sum(stub.uuid(0) in line for line in done.ours) == 1, done.errors
    assert "Partial" in done.text and "code 10" in done.text


def test_a_run_with_every_gap_is_strict_in_every_format(field: Field) -> None:
    """E07: a zero-length phase, a lost GPU and no tokens: strict JSON, whole CSV rows, a schema version."""
    stub = field.stub(gpus=2)
    program = """
    mark.begin("generation", update=1); mark.end("generation", update=1)
    phase("training", 0.6, 1)
    Path(os.environ["STUB_DIR"], "started").touch()
    for update in range(2, 6):
        phase("generation", 0.6, update); phase("training", 0.6, update)
    """
    running = field.start(field.trainer(program))
    running.until(lambda: started(field), "the first update")

    stub.add_fault("*", gpu=1, code=15)
    done = running.wait()

    assert done.report["schema_version"] == 1
    assert [len(done.rows(name)) > 0 for name in ("updates.csv", "phases.csv", "gpus.csv")] == [True] * 3
    for name in ("updates.csv", "phases.csv", "gpus.csv"):
        cells = {cell.lower() for row in done.rows(name) for cell in row.values()}
        assert cells.isdisjoint({"nan", "inf", "-inf", "none", "null", "n/a"}), cells
    assert gpu(done.report, stub.uuid(1))["coverage_fraction"] < 1
    assert all(row["energy_j"] is None or row["energy_j"] >= 0 for row in done.report["phases"])


STEPPED = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long step(void)
{
    char text[32] = "";
    int fd = open(getenv("STEP_FILE"), O_RDONLY | O_CLOEXEC);
    if (fd >= 0) { if (read(fd, text, sizeof text - 1) < 0) text[0] = 0; close(fd); }
    return atol(text);
}
int clock_gettime(clockid_t id, struct timespec *t)
{
    static int (*next)(clockid_t, struct timespec *);
    if (!next) next = dlsym(RTLD_NEXT, "clock_gettime");
    int rc = next(id, t);
    if (!rc && id == CLOCK_REALTIME) t->tv_sec += step();
    return rc;
}
time_t time(time_t *out)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    if (out) *out = t.tv_sec;
    return t.tv_sec;
}
int gettimeofday(struct timeval *restrict t, void *restrict zone)
{
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    t->tv_sec = now.tv_sec;
    t->tv_usec = now.tv_nsec / 1000;
    return 0;
}
"""


def test_a_wall_clock_that_is_stepped(field: Field) -> None:
    """E11: the clock goes back 30 s and then on by an hour: durations and energies are those of the monotonic one."""
    field.stub(gpus=1)
    step = field.folder / "step"
    step.write_text("0")
    field.environment |= {"LD_PRELOAD": field.shim(STEPPED), "STEP_FILE": str(step)}
    program = """
    step = Path(os.environ["STEP_FILE"])
    def set_step(seconds):
        new = step.with_suffix(".new"); new.write_text(str(seconds)); new.replace(step)
    began = time.monotonic()
    lengths = []
    for update in range(1, 10):
        if update in (3, 6):
            set_step(-30 if update == 3 else 3570)
        for name in ("generation", "training"):
            begin = time.monotonic()
            phase(name, 0.5, update)
            lengths.append(time.monotonic() - begin)
    print(time.time() - began, *lengths)
    """
    from_wall = time.time()

    done = field.run(field.trainer(program))

    words = [float(word) for word in done.output.split()]
    phases = done.events("phase")
    assert done.code == 0
    assert words[0] + 1 > 3500, "the clock was not stepped"
    assert abs(time.time() - from_wall) < 300, "the test's own clock was"
    assert [event["elapsed_s"] for event in phases] == pytest.approx(words[1:], abs=0.2)
    assert all(event["energy_j"] is None or event["energy_j"] >= 0 for event in phases)
    powers = [event["energy_j"] / event["elapsed_s"] for event in phases[4:] if event["energy_j"] is not None]
    assert len(powers) > 8 and max(powers) < 1000 and min(powers) > 20
    assert 9 < done.events("end")[0]["run_s"] < 60
    assert 9 < done.report["allocation"]["elapsed_s"] < 60


def test_what_waiting_for_the_other_role_costs(field: Field) -> None:
    """E12: two GPUs generate, two train, in turns: the report has the joules that each pair spent waiting."""
    field.stub(gpus=4)
    program = """
    mark.run(framework="rig", mode="disaggregated_sync")
    mark.pool("generation", [stub.uuid(0), stub.uuid(1)])
    mark.pool("training", [stub.uuid(2), stub.uuid(3)])
    waited = {"generation": 0.0, "training": 0.0}
    time.sleep(1)  # agents join
    for gpu in range(4):
        stub.set_load(gpu)
    time.sleep(0.5)
    for update in (1, 2):
        for name, own, others in (("generation", (0, 1), (2, 3)), ("training", (2, 3), (0, 1))):
            with mark.phase(name, update=update):
                for gpu in own:
                    stub.set_load(gpu, **{name: 1.0})
                before = [stub.true_energy_mj(gpu) for gpu in others]
                time.sleep(4.0)
                spent = sum(stub.true_energy_mj(gpu) - mj for gpu, mj in zip(others, before)) / 1000
                waited["training" if name == "generation" else "generation"] += spent
                for gpu in own:
                    stub.set_load(gpu)
    print(waited["generation"], waited["training"])
    """

    done = field.run(field.trainer(program))

    true_j = [float(word) for word in done.output.split()]
    pools = {row["pool"]: row for row in done.report["pools"]}
    waiting_j = [pools[role]["other_phase_energy_j"] for role in ("generation", "training")]
    assert waiting_j == pytest.approx(true_j, rel=0.05)
    assert all(pools[role]["own_phase_energy_j"] > 2 * pools[role]["other_phase_energy_j"] for role in pools)
