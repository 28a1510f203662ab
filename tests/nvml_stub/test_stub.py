"""The stub behaves as the driver where it matters, seen through the real pynvml."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from nvml_stub.stub import SW_POWER_CAP, Stub, build_library, install_library
from rig.folders import open_to_others

Client = Callable[..., str]


@pytest.fixture
def stub(tmp_path: Path) -> Stub:
    return Stub.create(tmp_path / "state", gpus=4, seed="here")


@pytest.fixture
def client(tmp_path: Path, stub: Stub) -> Client:
    """Run pynvml statements in a process of its own and give back what they print."""
    install_library(tmp_path / "lib", stub.directory)

    def run(code: str, *, uid: int | None = None, lib: Path = tmp_path / "lib") -> str:
        program = f"import os, pynvml as n\nn.nvmlInit()\nh = n.nvmlDeviceGetHandleByIndex(0)\n{code}"
        program = f"import os\nimport pynvml\n{f'os.setuid({uid})' if uid else ''}\n{program}"
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={"LD_LIBRARY_PATH": str(lib), "PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return run


root_only = pytest.mark.skipif(os.geteuid() != 0, reason="setting clocks needs root, as with a real driver")


def test_identity_and_clock_tables(client: Client, stub: Stub) -> None:
    """Names, UUIDs, PCI ids and the H100's clock list arrive as pynvml clients expect them."""
    out = client(
        "print(n.nvmlDeviceGetCount(), n.nvmlDeviceGetName(h), n.nvmlDeviceGetUUID(h))\n"
        "clocks = n.nvmlDeviceGetSupportedGraphicsClocks(h, n.nvmlDeviceGetSupportedMemoryClocks(h)[0])\n"
        "print(len(clocks), clocks[0], clocks[-1], n.nvmlDeviceGetPciInfo(h).busId)\n"
        "print(n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByUUID(n.nvmlDeviceGetUUID(h))), n.nvmlDeviceGetMigMode(h))"
    ).splitlines()

    assert out[0] == f"4 NVIDIA H100 80GB HBM3 {stub.uuid(0)}"
    assert out[1] == "110 1980 345 00000000:19:00.0"
    assert out[2] == "0 [0, 0]"


def test_gb200_steps_are_eight_and_seven(tmp_path: Path) -> None:
    """A GB200 counts in 7.5 MHz shown as whole numbers, which breaks code that assumes 15."""
    clocks = Stub.create(tmp_path, model="gb200", gpus=1).clocks_mhz()

    assert (len(clocks), clocks[0], clocks[-1]) == (260, 120, 2062)
    assert {b - a for a, b in pairwise(clocks)} == {7, 8}


def test_every_getter_answers(client: Client) -> None:
    """Each query nvidia-ml-py can make of the stub returns a plausible value instead of a missing symbol."""
    out = client(
        "import sys\n"
        "for name in ('Serial MinorNumber ModuleId Architecture PersistenceMode PowerUsage TotalEnergyConsumption "
        "PowerManagementLimit PowerManagementDefaultLimit EnforcedPowerLimit CurrentClocksEventReasons "
        "SupportedClocksEventReasons CurrentClocksThrottleReasons UtilizationRates MemoryInfo "
        "PowerManagementLimitConstraints ComputeRunningProcesses PerformanceState').split():\n"
        "    getattr(n, 'nvmlDeviceGet' + name)(h)\n"
        "n.nvmlDeviceGetTemperatureV(h, 0); n.nvmlDeviceGetClock(h, 1, 0); n.nvmlDeviceGetMaxClockInfo(h, 1)\n"
        "n.nvmlDeviceGetApplicationsClock(h, 0); n.nvmlDeviceGetDefaultApplicationsClock(h, 0)\n"
        "f = n.nvmlDeviceGetFieldValues(h, [186, 185, 83, (186, 1)])\n"
        "print([v.nvmlReturn for v in f], n.nvmlSystemGetDriverVersion(), n.nvmlSystemGetCudaDriverVersion())"
    )

    assert out == "[0, 0, 0, 3] 580.105.08 13000"


@root_only
def test_lock_lowers_the_clock_and_is_logged(client: Client, stub: Stub) -> None:
    """Root's lock is a ceiling for the achieved clock, snapped to a supported one, and stands in the call log."""
    stub.set_load(0, generation=1.0)

    client("n.nvmlDeviceSetGpuLockedClocks(h, 345, 1203)\nprint(n.nvmlDeviceGetClockInfo(h, 1))")

    assert stub.locked_mhz(0) == (345, 1200)
    assert stub.achieved_mhz(0) == 1200
    (call,) = stub.setter_calls()
    assert (call.function, call.uuid, call.args, call.result, call.uid) == (
        "nvmlDeviceSetGpuLockedClocks",
        stub.uuid(0),
        "min=345 max=1203",
        0,
        0,
    )


@root_only
def test_reset_hands_back_to_the_governor(client: Client, stub: Stub) -> None:
    """After a reset the achieved clock is the top one again."""
    stub.set_load(0, generation=1.0)
    stub.lock_from_outside(0, 345, 900)

    client("n.nvmlDeviceResetGpuLockedClocks(h)")

    assert stub.at_default() and stub.achieved_mhz(0) == 1980


@root_only
def test_ordinary_users_get_code_4(client: Client, stub: Stub, tmp_path: Path) -> None:
    """Without CAP_SYS_ADMIN no setter does anything, except application clocks once their restriction is lifted."""
    open_to_others(tmp_path)
    attempt = (
        "for call in (lambda: n.nvmlDeviceSetGpuLockedClocks(h, 345, 900),"
        " lambda: n.nvmlDeviceResetGpuLockedClocks(h),"
        " lambda: n.nvmlDeviceSetAPIRestriction(h, 0, 0), lambda: n.nvmlDeviceSetApplicationsClocks(h, 2619, 900)):\n"
        "    try: call(); print(0)\n"
        "    except n.NVMLError as e: print(e.value)"
    )

    before = client(attempt, uid=4001).split()
    stub.set(0, application_restricted=0)
    after = client(attempt, uid=4001).split()

    assert before == ["4", "4", "4", "4"]
    assert after == ["4", "4", "4", "0"]
    assert {call.uid for call in stub.setter_calls()} == {4001}


def test_power_cap_lowers_the_achieved_clock(client: Client, stub: Stub) -> None:
    """Full training on an H100 wants more than 700 W: the clock falls below the top and reason 0x4 says why."""
    stub.set_load(0, training=1.0)

    reasons, clock = client(
        "print(n.nvmlDeviceGetCurrentClocksEventReasons(h), n.nvmlDeviceGetClockInfo(h, 1))"
    ).split()

    assert int(reasons) == SW_POWER_CAP
    assert 1500 < int(clock) < 1980
    assert 650 < stub.power_w(0) <= 700


def test_anchors_of_the_power_model(stub: Stub) -> None:
    """Idle, context-idle and decoding draw what public measurements of an H100 say, within a few watts."""
    idle_w = stub.power_w(0)
    stub.set_load(0)
    context_w = stub.power_w(0)
    stub.set_load(0, generation=1.0)

    assert idle_w == pytest.approx(71, abs=3)
    assert context_w == pytest.approx(122, abs=1)
    assert stub.power_w(0) == pytest.approx(350, abs=1)


def test_energy_is_the_integral_published_every_100_ms(stub: Stub) -> None:
    """The exact integral follows power times time; the counter shows it at the last tick, never ahead of it."""
    stub.set_load(0, generation=1.0)
    t0, e0 = time.monotonic(), stub.true_energy_mj(0)
    time.sleep(0.35)
    e1, t1 = stub.true_energy_mj(0), time.monotonic()
    published = stub.get(0, "published_mj")

    assert 0.35 * 350e3 * 0.99 <= e1 - e0 <= (t1 - t0) * 350e3 * 1.01
    assert 0 <= e1 - published <= 0.1 * 350e3 * 1.01


def test_counter_stands_still_between_ticks(client: Client, stub: Stub) -> None:
    """Reading faster than the counter is published shows few distinct values."""
    stub.set_load(0, generation=1.0)

    out = client(
        "import time; seen = set(); end = time.monotonic() + 0.5; reads = 0\n"
        "while time.monotonic() < end: seen.add(n.nvmlDeviceGetTotalEnergyConsumption(h)); reads += 1\n"
        "print(len(seen), reads)"
    ).split()

    assert 4 <= int(out[0]) <= 7 < int(out[1])


def test_counter_restart(client: Client, stub: Stub) -> None:
    """A restarted counter shows a small number while the true integral goes on."""
    before = stub.true_energy_mj(0)
    stub.restart_energy_counter(0, 1200)

    assert int(client("print(n.nvmlDeviceGetTotalEnergyConsumption(h))")) < 1_000_000
    assert stub.true_energy_mj(0) >= before


def test_fault_rules(client: Client, stub: Stub) -> None:
    """A rule answers the named function of the named GPU, after the calls it lets pass, as often as it says."""
    rule = stub.add_fault("nvmlDeviceGetPowerUsage", gpu=0, code=15, skip_calls=1, times=2)
    code = (
        "for i in (0, 0, 0, 0, 1):\n"
        "    try: n.nvmlDeviceGetPowerUsage(n.nvmlDeviceGetHandleByIndex(i)); print(0)\n"
        "    except n.NVMLError as e: print(e.value)"
    )

    assert client(code).split() == ["0", "15", "15", "0", "0"]
    assert stub.fault_fired(rule) == 2
    assert [call.result for call in stub.calls("nvmlDeviceGetPowerUsage")] == [15, 15]


def test_init_can_fail(client: Client, stub: Stub) -> None:
    """A driver that does not match its library refuses init with code 18."""
    stub.add_fault("nvmlInitWithFlags", code=18, skip_calls=1)

    out = client("n.nvmlShutdown()\ntry: n.nvmlInit()\nexcept n.NVMLError as e: print(e.value)")

    assert out == "18"


def test_a_hanging_gpu_does_not_stop_the_others(client: Client, stub: Stub) -> None:
    """A delayed call holds no lock: another thread reads another GPU meanwhile."""
    stub.add_fault("nvmlDeviceGetPowerUsage", gpu=0, delay_ms=3000)

    out = client(
        "import threading\n"
        "slow = threading.Thread(target=n.nvmlDeviceGetPowerUsage, args=(h,)); slow.start()\n"
        "n.nvmlDeviceGetPowerUsage(n.nvmlDeviceGetHandleByIndex(1))\n"
        "print(slow.is_alive()); slow.join()"
    )

    assert out == "True"


def test_absent_symbols(client: Client, stub: Stub, tmp_path: Path) -> None:
    """A library built without a symbol lacks it, and only it."""
    lib = tmp_path / "without"
    install_library(lib, stub.directory, without=["nvmlDeviceGetFieldValues"])

    out = client(
        "try: n.nvmlDeviceGetFieldValues(h, [186])\n"
        "except n.NVMLError_FunctionNotFound: print('absent', n.nvmlDeviceGetPowerUsage(h) > 0)",
        lib=lib,
    )

    assert out == "absent True"


@root_only
def test_without_persistence_the_last_client_takes_the_lock_along(client: Client, stub: Stub) -> None:
    """With persistence mode off the driver forgets a lock when the process that set it has gone."""
    stub.set(0, persistence=0)

    client(
        "n.nvmlDeviceSetGpuLockedClocks(h, 345, 900)\n"
        "n.nvmlDeviceSetGpuLockedClocks(n.nvmlDeviceGetHandleByIndex(1), 345, 900)"
    )

    assert stub.clients() == ()
    assert (stub.locked_mhz(0), stub.locked_mhz(1)) == (None, (345, 900))


def test_a_killed_client_leaves_the_lock_of_the_state_usable(client: Client, stub: Stub) -> None:
    """A process killed in mid-call neither blocks the others nor stays listed as a client."""
    for delay_s in (0.0, 0.001, 0.002, 0.005):
        client(
            "import signal, threading, time\n"
            f"threading.Timer({delay_s}, os._exit, (0,)).start()\n"
            "while True: n.nvmlDeviceGetPowerUsage(h)"
        )

    assert stub.power_w(0) > 0
    assert stub.clients() == ()


def test_switch_delay(stub: Stub) -> None:
    """A lock reaches the clock after the switch delay, and the energy before it is counted at the old clock."""
    stub.set(0, switch_delay_s=30.0, load_generation=1.0)
    stub.lock_from_outside(0, 345, 900)
    pending = stub.achieved_mhz(0)
    stub.set(1, switch_delay_s=0.02, load_generation=1.0)
    stub.lock_from_outside(1, 345, 900)
    time.sleep(0.05)

    assert pending == 1980
    assert stub.achieved_mhz(1) == 900


def test_module_scope_counts_more_than_the_gpu(tmp_path: Path) -> None:
    """On a superchip the counter holds the whole module."""
    stub = Stub.create(tmp_path, gpus=1, name="NVIDIA GH200 480GB", module_extra_w=150)
    start = stub.true_energy_mj(0)
    t0 = time.monotonic()
    time.sleep(0.2)
    watts = (stub.true_energy_mj(0) - start) / (time.monotonic() - t0) / 1000

    assert watts == pytest.approx(stub.power_w(0) + 150, rel=0.1)


def test_no_state_means_no_driver(tmp_path: Path) -> None:
    """Where no GPUs were made, init answers 9, as on a node without a driver."""
    library = install_library(tmp_path / "lib", tmp_path / "nowhere")
    program = f"import ctypes; print(ctypes.CDLL({str(library)!r}).nvmlInit_v2())"

    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert out.stdout.strip() == "9"


def test_build_is_warning_free(tmp_path: Path) -> None:
    """The library builds from nothing with warnings as errors."""
    assert build_library(tmp_path, without=["nvmlDeviceGetSerial"]).exists()
