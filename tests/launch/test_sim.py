"""Simulated GPUs: one state for all processes, exact energy, work that follows the clock, virtual time."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eerl_launch.devices.base import DeviceError, GpuSource
from eerl_launch.devices.sim import SimGpus, SimSource, SimSpec
from eerl_launch.devices.sim_model import (
    GENERATION,
    IDLE,
    MODELS,
    REASON_IDLE,
    REASON_SW_POWER_CAP,
    TRAINING,
)
from eerl_launch.errors import OptionError
from eerl_launch.simulate import SimWorkload, parse_spec

SPEC = SimSpec("h100", 2, 4)


@pytest.fixture
def simulation(tmp_path: Path) -> SimGpus:
    """Two nodes with four H100 each, 200 times as fast as life."""
    return SimGpus.create(tmp_path / "sim", SPEC, time_scale=200.0)


def test_specifications() -> None:
    """A specification is read back as it was written, in either case."""
    assert parse_spec("h100:2x8") == SimSpec("h100", 2, 8)
    assert parse_spec("GB200:1x4") == SimSpec("gb200", 1, 4)
    assert str(parse_spec("a100:3x2")) == "a100:3x2"


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("h100", "such as h100:2x8"),
        ("h100:2", "such as h100:2x8"),
        ("h10:2x8", "nearest: h100"),
        ("h100:0x8", "1 to"),
        ("h100:2x99", "GPUs each"),
        ("", "such as h100:2x8"),
    ],
)
def test_bad_specifications(text: str, part: str) -> None:
    """What cannot be simulated is an option error that says what can."""
    with pytest.raises(OptionError, match=part):
        parse_spec(text)


def test_clock_tables_are_those_of_the_cards() -> None:
    """Tables have the ends, steps and lengths of real captures; GB200 steps show as 8 and 7 MHz."""
    h100, gb200 = MODELS["h100"].supported_mhz, MODELS["gb200"].supported_mhz

    assert (h100[0], h100[-1], len(h100)) == (345, 1980, 110)
    assert (gb200[0], gb200[-1], len(gb200)) == (120, 2062, 260)
    assert {b - a for a, b in itertools.pairwise(gb200)} == {7, 8}


@given(
    st.sampled_from(sorted(MODELS)), st.sampled_from([IDLE, GENERATION, TRAINING]), st.floats(0, 1), st.data()
)
def test_model_is_monotonic(name: str, kind: int, load: float, data: st.DataObject) -> None:
    """A higher clock never draws less and never works slower; the cap is kept by a supported clock."""
    model = MODELS[name]
    low, high = sorted(data.draw(st.lists(st.sampled_from(model.supported_mhz), min_size=2, max_size=2)))

    reached, reasons = model.settle(high, kind, load)

    assert model.power_w(low, kind, load) <= model.power_w(high, kind, load)
    assert model.speed(low, kind) <= model.speed(high, kind) <= 1.0
    assert reached in model.supported_mhz and reached <= high
    assert model.power_w(reached, kind, load) <= model.power_limit_w
    assert bool(reasons & REASON_SW_POWER_CAP) == (reached < high)


def test_a_lowered_power_limit_is_seen_and_kept(simulation: SimGpus) -> None:
    """C08: somebody lowers a GPU's limit: its samples say so, and a busy GPU draws no more than that."""
    source = SimSource(simulation.directory, 0)
    lowered, other = (gpu.uuid for gpu in source.gpus()[:2])
    assert {sample.limit_mw for sample in source.sample().values()} == {700_000}

    with simulation.node(0).gpus() as gpus:
        for gpu in gpus[:2]:
            gpu.kind, gpu.load, gpu.context = TRAINING, 1.0, 1
        gpus[0].limit_w = 400.0
        for gpu in gpus[:2]:
            gpu.settle(simulation.model)
    after = source.sample()

    assert (after[lowered].limit_mw, after[other].limit_mw) == (400_000, 700_000)
    assert (after[lowered].power_mw or 0) <= 400_000 < (after[other].power_mw or 0)
    assert (after[lowered].reasons or 0) & REASON_SW_POWER_CAP


def test_source_is_a_gpu_source(simulation: SimGpus) -> None:
    """The source has what agents need, with UUIDs that differ over the nodes and a name that says simulated."""
    sources: list[GpuSource] = [SimSource(simulation.directory, node) for node in range(2)]

    uuids = [gpu.uuid for source in sources for gpu in source.gpus()]
    assert len(set(uuids)) == 8
    assert all("simulated" in gpu.name for gpu in sources[0].gpus())
    assert sources[0].kind == "sim"
    assert list(sources[0].sample()) == uuids[:4]


def test_idle_energy_is_power_times_virtual_time(simulation: SimGpus) -> None:
    """An idle GPU's counter grows by its power times virtual time, exactly."""
    source = SimSource(simulation.directory, 0)
    first = source.sample()
    time.sleep(0.05)

    second = source.sample()

    for uuid, before in first.items():
        after = second[uuid]
        assert before.energy_mj is not None and after.energy_mj is not None and after.power_mw is not None
        elapsed_s = (after.t_ns - before.t_ns) / 1e9
        assert elapsed_s >= 0.05 * 200
        assert after.energy_mj - before.energy_mj == pytest.approx(
            after.power_mw * elapsed_s, abs=elapsed_s + 2
        )
        assert after.reasons == REASON_IDLE
        assert after.sm_mhz == 345


def test_lock_reaches_only_the_named_gpus(simulation: SimGpus) -> None:
    """A lock is snapped to the table, holds for the GPUs named, and a reset brings them back."""
    with SimWorkload(simulation.directory):
        source = SimSource(simulation.directory, 1)
        chosen = source.gpus()[2].uuid

        source.lock(1234, [chosen])
        locked = {uuid: sample.sm_mhz for uuid, sample in source.sample().items()}
        source.reset()
        after = [sample.sm_mhz for sample in source.sample().values()]

        assert locked.pop(chosen) == 1230
        assert set(locked.values()) == {1980}
        assert after == [1980] * 4


def test_closing_hands_clocks_back(simulation: SimGpus) -> None:
    """A source that is closed leaves no lock behind."""
    source = SimSource(simulation.directory, 0)
    source.lock(600)

    source.close()

    with simulation.node(0).gpus() as gpus:
        assert [gpu.locked_mhz for gpu in gpus] == [0] * 4


def test_clock_changes_time_and_energy_of_work(simulation: SimGpus) -> None:
    """At 1200 MHz decoding draws much less; no work ends sooner than its clock allows (a busy machine: later)."""
    sources = [SimSource(simulation.directory, node) for node in range(2)]

    def run(kind: str, mhz: int | None) -> tuple[float, float]:
        for source in sources:
            if mhz is None:
                source.reset()
            else:
                source.lock(mhz)
        before = sum(s.energy_mj or 0 for source in sources for s in source.sample().values())
        elapsed_s = workload.run_phase(kind, 20.0)
        after = sum(s.energy_mj or 0 for source in sources for s in source.sample().values())
        return elapsed_s, after - before

    with SimWorkload(simulation.directory) as workload:
        decode, decode_low = run("generation", None), run("generation", 1200)
        train_low = run("training", 1200)

    assert decode[0] >= 20.0
    assert decode_low[1] / decode_low[0] < 0.85 * decode[1] / decode[0]
    model = MODELS["h100"]
    assert decode_low[0] >= 20.0 / model.speed(1200, GENERATION)
    assert train_low[0] >= 20.0 / model.speed(1200, TRAINING)


def test_training_runs_into_the_power_cap(simulation: SimGpus) -> None:
    """Under the governor a training H100 stays below its top clock, with the power-cap reason shown."""
    source = SimSource(simulation.directory, 0)
    with SimWorkload(simulation.directory) as workload:
        thread = threading.Thread(target=workload.run_phase, args=("training", 60.0))
        thread.start()
        samples = source.sample()
        while all(sample.reasons == REASON_IDLE for sample in samples.values()):
            time.sleep(0.001)
            samples = source.sample()
        thread.join()

    busy = [sample for sample in samples.values() if sample.reasons != REASON_IDLE]
    assert busy
    assert all((sample.reasons or 0) & REASON_SW_POWER_CAP for sample in busy)
    assert all(345 < (sample.sm_mhz or 0) < 1980 for sample in busy)


def test_change_of_clock_in_the_middle(simulation: SimGpus) -> None:
    """Work under way speeds up when the lock goes: it ends well before it would have at the low clock."""
    source = [SimSource(simulation.directory, node) for node in range(2)]
    model = MODELS["h100"]
    for node in source:
        node.lock(345)

    with SimWorkload(simulation.directory) as workload:
        timer = threading.Timer(0.05, lambda: [node.reset() for node in source])
        timer.start()
        elapsed_s = workload.run_phase("training", 60.0)
        timer.join()

    assert 60.0 < elapsed_s < 0.95 * 60.0 / model.speed(345, TRAINING)


def test_workloads_on_pools_of_their_own(simulation: SimGpus) -> None:
    """Two workloads run at the same time, each at the pace of its own GPUs' clocks, and name them by UUID."""
    sources = [SimSource(simulation.directory, node) for node in range(2)]
    members = [(node, gpu) for node in range(2) for gpu in range(simulation.spec.gpus_per_node)]
    low, free = members[: len(members) // 2], members[len(members) // 2 :]
    took_s: dict[str, float] = {}
    with SimWorkload(simulation.directory, low) as slow, SimWorkload(simulation.directory, free) as fast:
        for source in sources:
            source.lock(600, slow.uuids)

        def work(name: str, workload: SimWorkload) -> None:
            took_s[name] = workload.run_phase("training", 20.0)

        threads = [threading.Thread(target=work, args=pair) for pair in (("slow", slow), ("fast", fast))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        known = {gpu.uuid for source in sources for gpu in source.gpus()}
        assert set(slow.uuids) | set(fast.uuids) == known
        assert not set(slow.uuids) & set(fast.uuids)
    model = MODELS["h100"]
    assert took_s["slow"] >= 20.0 / model.speed(600, TRAINING)
    assert took_s["fast"] < took_s["slow"]


@pytest.mark.parametrize("members", [[], [(9, 0)], [(0, 0), (0, 99)]])
def test_workload_on_gpus_that_are_not_there(simulation: SimGpus, members: list[tuple[int, int]]) -> None:
    """A pool must be of GPUs that are simulated."""
    with pytest.raises(DeviceError, match="no such GPUs"):
        SimWorkload(simulation.directory, members)


def test_processes_share_the_gpus(simulation: SimGpus) -> None:
    """Another process's lock is seen here, and both agree on the time."""
    code = (
        "import sys; from pathlib import Path; from eerl_launch.devices.sim import SimSource; "
        "s = SimSource(Path(sys.argv[1]), 0); s.lock(990); print(s.clock_ns())"
    )
    source = SimSource(simulation.directory, 0)
    with SimWorkload(simulation.directory):
        before_ns = source.clock_ns()
        result = subprocess.run(
            [sys.executable, "-c", code, str(simulation.directory)],
            capture_output=True,
            text=True,
            check=True,
        )
        after_ns = source.clock_ns()

        assert [sample.sm_mhz for sample in source.sample().values()] == [990] * 4
    assert before_ns < int(result.stdout) < after_ns


def test_threads_and_nodes_do_not_disturb_each_other(simulation: SimGpus) -> None:
    """Many lockers and readers at once lose no change."""
    sources = [SimSource(simulation.directory, 0) for _ in range(4)]

    def work(source: SimSource) -> None:
        for _ in range(50):
            source.lock(900)
            source.sample()

    threads = [threading.Thread(target=work, args=(sources[n % 4],)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    with simulation.node(0).gpus() as gpus:
        assert [gpu.locks for gpu in gpus] == [8 * 50] * 4


def test_missing_simulation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a simulation the errors say what is missing and how to start one."""
    monkeypatch.delenv("EERL_SIM_DIR", raising=False)

    with pytest.raises(DeviceError, match="no simulated GPUs"):
        SimSource(tmp_path, 0)
    with pytest.raises(DeviceError, match="--simulate h100:2x8"):
        SimWorkload()
    with pytest.raises(DeviceError, match="simulated node 7"):
        SimSource(SimGpus.create(tmp_path / "s", SPEC).directory, 7)


def test_unknown_kind_of_work(simulation: SimGpus) -> None:
    """A kind of work that does not exist is the caller's mistake and is named."""
    with SimWorkload(simulation.directory) as workload, pytest.raises(ValueError, match="generation"):
        workload.run_phase("decode", 1.0)
