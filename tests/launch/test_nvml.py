"""GPUs through the real pynvml and the stub library: identity, readings, faults, visible devices."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from nvml_stub.stub import Stub, install_library

from eerl_launch.devices.base import DeviceError, GpuInfo
from eerl_launch.devices.visible import resolve_visible

PROGRAM = """
import json, os, sys, time
from eerl_launch.devices.base import DeviceError
from eerl_launch.devices.nvml import NvmlSource, visible_gpus
try:
    source = eval(sys.argv[1])
except DeviceError as error:
    print(json.dumps({"error": str(error)}))
    raise SystemExit
samples = []
for _ in range(int(sys.argv[2])):
    samples.append({uuid: {name: getattr(s, name) for name in s.__slots__} for uuid, s in source.sample().items()})
    time.sleep(0.02)
print(json.dumps({
    "gpus": [[g.uuid, g.index, g.name, len(g.supported_mhz), g.energy_scope, g.mig] for g in source.gpus()],
    "samples": samples, "notes": source.notes, "driver": source.driver, "backend": source.backend,
    "reason": source.backend_reason, "failures": [[f.uuid, f.code, f.text] for f in source.lock(1200)],
}))
source.close()
"""

Source = Callable[..., dict[str, Any]]


@pytest.fixture
def stub(tmp_path: Path) -> Stub:
    """Four H100 of our own."""
    return Stub.create(tmp_path / "state", gpus=4, seed="launch")


@pytest.fixture
def source(tmp_path: Path, stub: Stub) -> Source:
    """Open a source in a process of its own, as agents do, and bring back what it says."""
    install_library(tmp_path / "lib", stub.directory)

    def run(
        expression: str = "NvmlSource(None)", *, samples: int = 1, lib: Path = tmp_path / "lib", **env: str
    ) -> dict[str, Any]:
        done = subprocess.run(
            [sys.executable, "-I", "-c", PROGRAM, expression, str(samples)],
            env={"LD_LIBRARY_PATH": str(lib), "PATH": os.environ["PATH"], **env},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        result: dict[str, Any] = json.loads(done.stdout)
        return result

    return run


def test_gpus_and_readings(source: Source, stub: Stub) -> None:
    """All GPUs come with UUID, clock table and every field of a reading."""
    stub.set_load(1, training=1.0)

    result = source()

    assert [gpu[0] for gpu in result["gpus"]] == list(stub.uuids())
    assert result["gpus"][0][1:] == [0, "NVIDIA H100 80GB HBM3", 110, "gpu", False]
    busy = result["samples"][0][stub.uuid(1)]
    assert None not in [busy[name] for name in ("energy_mj", "sm_mhz", "power_mw", "util_pct", "reasons")]
    assert busy["error_code"] is None
    assert busy["power_mw"] > 500_000
    assert busy["reasons"] & 0x4


def test_measures_only(source: Source, stub: Stub) -> None:
    """A lock is refused for every GPU with code 4 and the reason, and no setter is ever called."""
    result = source()

    assert result["backend"] == "none"
    assert "broker" in result["reason"]
    assert [(failure[0], failure[1]) for failure in result["failures"]] == [
        (uuid, 4) for uuid in stub.uuids()
    ]
    assert stub.setter_calls() == []


def test_only_the_jobs_gpus(source: Source, stub: Stub) -> None:
    """Given indices, the others are neither read nor named; an index that is not there is said."""
    result = source("NvmlSource([2, 7])")

    assert [gpu[0] for gpu in result["gpus"]] == [stub.uuid(2)]
    assert list(result["samples"][0]) == [stub.uuid(2)]
    assert "GPU 7" in result["notes"][0]


def test_missing_symbols_cost_one_field(source: Source, stub: Stub, tmp_path: Path) -> None:
    """An old driver without field values and event reasons still gives energy, power and clock (N05)."""
    names = (
        "nvmlDeviceGetFieldValues",
        "nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlDeviceGetCurrentClocksThrottleReasons",
    )
    library = install_library(tmp_path / "old", stub.directory, without=names)

    sample = source(lib=library.parent if library.is_file() else library)["samples"][0][stub.uuid(0)]

    assert sample["reasons"] is None
    assert sample["energy_mj"] is not None
    assert sample["power_mw"] and sample["sm_mhz"]


def test_no_energy_counter(source: Source, stub: Stub) -> None:
    """Without the counter energy is unknown, never 0, and power is there to estimate it from (N07)."""
    stub.add_fault("nvmlDeviceGetTotalEnergyConsumption", code=3)

    result = source(samples=5)

    for sample in result["samples"]:
        assert [reading["energy_mj"] for reading in sample.values()] == [None] * 4
        assert all(reading["power_mw"] > 0 for reading in sample.values())


def test_refusals_now_and_then_do_not_switch_a_query_off(source: Source, stub: Stub) -> None:
    """Two spurious refusals cost two readings of the counter, not the rest of the run."""
    stub.add_fault("nvmlDeviceGetTotalEnergyConsumption", gpu=0, code=3, skip_calls=1, times=4)

    result = source(samples=8)

    energies = [sample[stub.uuid(0)]["energy_mj"] for sample in result["samples"]]
    assert energies[0] is not None
    assert energies[1:5] == [None] * 4
    assert None not in energies[5:]


def test_gpu_lost_midway(source: Source, stub: Stub) -> None:
    """A GPU that falls off the bus has its code in every reading; the others stay complete (N03)."""
    stub.add_fault("nvmlDeviceGetTotalEnergyConsumption", gpu=1, code=15, skip_calls=2)

    result = source(samples=4)

    assert [sample[stub.uuid(1)]["error_code"] for sample in result["samples"]] == [None, None, 15, 15]
    assert all(sample[stub.uuid(0)]["energy_mj"] is not None for sample in result["samples"])


def test_gpu_that_cannot_be_opened(source: Source, stub: Stub) -> None:
    """A GPU that is lost from the start is left out and named with its code."""
    stub.add_fault("nvmlDeviceGetUUID", gpu=3, code=15)

    result = source()

    assert len(result["gpus"]) == 3
    assert "GPU 3" in result["notes"][0] and "code 15" in result["notes"][0]


def test_call_that_hangs(source: Source, stub: Stub) -> None:
    """A GPU whose calls hang is passed over with code 10; the others are read on at their pace."""
    stub.add_fault("nvmlDeviceGetTotalEnergyConsumption", gpu=2, delay_ms=8_000)

    result = source(samples=4)

    assert [sample[stub.uuid(2)]["error_code"] for sample in result["samples"]] == [10] * 4
    assert all(sample[stub.uuid(0)]["energy_mj"] is not None for sample in result["samples"])
    times = [sample[stub.uuid(0)]["t_ns"] for sample in result["samples"]]
    assert times == sorted(times)


@pytest.mark.parametrize(
    ("code", "cure"), [(9, "driver is not loaded"), (18, "reboot"), (4, "rights"), (999, "999")]
)
def test_nvml_that_cannot_start(source: Source, stub: Stub, code: int, cure: str) -> None:
    """A failing init is an error with its code and what would mend it (N04)."""
    stub.add_fault("nvmlInitWithFlags", code=code)

    error = source()["error"]

    assert f"code {code}" in error
    assert cure in error


def test_no_library(source: Source, tmp_path: Path) -> None:
    """A node without the driver's library is told apart from a broken one."""
    (tmp_path / "empty").mkdir()

    assert "code 12" in source(lib=tmp_path / "empty")["error"]


def test_another_module_of_that_name(tmp_path: Path) -> None:
    """A rival pynvml is named with its place; one that raises on import is no traceback (N06)."""
    answers = []
    for name, text in {"rival": "def nvmlInit(): pass\n", "broken": "raise RuntimeError('x')\n"}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "pynvml.py").write_text(text)
        code = "\n".join(["import sys; sys.path.insert(0, sys.argv.pop(1))", PROGRAM])
        done = subprocess.run(
            [sys.executable, "-I", "-c", code, str(tmp_path / name), "NvmlSource(None)", "1"],
            capture_output=True,
            text=True,
            timeout=60,
        )
        answers.append(json.loads(done.stdout)["error"])

    assert "is not nvidia-ml-py" in answers[0] and "rival" in answers[0]
    assert "cannot be imported" in answers[1]


def test_visible_devices_by_uuid(source: Source, stub: Stub) -> None:
    """Full UUIDs and unique prefixes are resolved, in the order given (N14)."""
    prefix = stub.uuid(1)[:12]
    unique = sum(uuid.startswith(prefix) for uuid in stub.uuids()) == 1
    visible = f"{stub.uuid(3)},{prefix if unique else stub.uuid(1)}"

    result = source("visible_gpus(os.environ)", CUDA_VISIBLE_DEVICES=visible)

    assert [gpu[0] for gpu in result["gpus"]] == [stub.uuid(3), stub.uuid(1)]
    assert list(result["samples"][0]) == [stub.uuid(3), stub.uuid(1)]


def test_no_visible_device(source: Source) -> None:
    """An empty list means no GPU, and nothing is measured."""
    assert "CUDA_VISIBLE_DEVICES" in source("visible_gpus(os.environ)", CUDA_VISIBLE_DEVICES="")["error"]


GPUS = tuple(
    GpuInfo(uuid=f"GPU-{name}-0000", index=i, name="H100", supported_mhz=())
    for i, name in enumerate(["aaaa1111", "aaaa2222", "bbbb3333"])
)


@pytest.mark.parametrize(
    ("text", "indices", "remark"),
    [
        (None, [0, 1, 2], ""),
        ("0,2", [0, 2], ""),
        (" 2 , 0 ", [2, 0], ""),
        ("GPU-b", [2], ""),
        ("1,GPU-aaaa1", [1, 0], ""),
        ("GPU-aaaa", [], "several GPUs"),
        ("0,GPU-cc,1", [0], "no GPU begins so"),
        ("1,-1,0", [1], "neither"),
        ("0,7,1", [0], "there are GPUs [0, 1, 2]"),
        ("0,0", [0], "named twice"),
        ("0,MIG-1234,1", [0], "MIG"),
        ("", [], "neither"),
        ("NoDevFiles", [], "neither"),
        ("99999999999999999999", [], "there are GPUs"),
    ],
)
def test_rule_of_visible_devices(text: str | None, indices: list[int], remark: str) -> None:
    """The list ends at the first entry that is no GPU, and the user hears at which."""
    env = {} if text is None else {"CUDA_VISIBLE_DEVICES": text}

    found, remarks = resolve_visible(env, GPUS)

    assert found == indices
    assert bool(remarks) == bool(remark)
    assert remark in "".join(remarks)


def test_ordinals_on_a_mixed_node() -> None:
    """CUDA's order is not NVML's on a node with two models: ordinals prove nothing there (N18)."""
    mixed = (*GPUS, GpuInfo(uuid="GPU-dddd", index=3, name="L4", supported_mhz=()))

    with pytest.raises(DeviceError, match="CUDA_DEVICE_ORDER=PCI_BUS_ID"):
        resolve_visible({"CUDA_VISIBLE_DEVICES": "0"}, mixed)

    by_uuid = resolve_visible({"CUDA_VISIBLE_DEVICES": "GPU-dddd"}, mixed)
    by_order = resolve_visible({"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, mixed)
    assert by_uuid == ([3], [])
    assert by_order == ([0], [])
