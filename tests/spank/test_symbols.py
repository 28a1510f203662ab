"""Old and new drivers: each NVML call that is missing costs that call only."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from nvml_stub.stub import build_library
from spank.lone_node import LoneNode

Without = Callable[..., None]

LOCKED = ("nvmlDeviceSetGpuLockedClocks", "nvmlDeviceResetGpuLockedClocks")
APPLICATION = ("nvmlDeviceSetApplicationsClocks", "nvmlDeviceResetApplicationsClocks")


@pytest.fixture
def build_name() -> str:
    """The release build."""
    return "release"


@pytest.fixture
def without(node: LoneNode, tmp_path: Path) -> Without:
    """Give the node a library that lacks some symbols."""

    def replace(*symbols: str) -> None:
        shutil.copy(build_library(tmp_path / "library", symbols), node.nvml)

    return replace


def test_no_locked_clocks(node: LoneNode, without: Without) -> None:
    """A library without the locked-clock calls: application clocks, set by the broker and given back."""
    without(*LOCKED)
    node.serve(gpus="0")
    agent = node.agent()

    assert agent.hello()["backend"] == "application-clocks"
    assert agent.ask("lock * 1200") == "ok"
    assert node.stub.get(0, "application_mhz") == 1200
    agent.close()

    assert node.run("--reset", "12").code == 0
    assert node.stub.at_default()


def test_no_application_clocks_either(node: LoneNode, without: Without) -> None:
    """Neither pair of calls: measure only, with a reason, and the energy is still read."""
    without(*LOCKED, *APPLICATION)
    node.serve(gpus="0")
    agent = node.agent()

    fields = agent.hello()

    assert (fields["backend"], fields["gpus"]) == ("none", node.stub.uuid(0))
    assert "clocks" in fields["reason"]
    assert agent.ask("lock * 1200").startswith("err 3 ")
    assert "energy_mj" in agent.sample()[node.stub.uuid(0)]


def test_a_locked_clock_call_without_its_reset_is_not_used(node: LoneNode, without: Without) -> None:
    """What could be set but not given back is not set."""
    without("nvmlDeviceResetGpuLockedClocks", *APPLICATION)
    node.serve(gpus="0")
    agent = node.agent()

    assert agent.hello()["backend"] == "none"
    assert agent.ask("lock * 1200").startswith("err 3 ")
    assert node.stub.setter_calls() == []


def test_missing_queries_cost_their_field(node: LoneNode, without: Without) -> None:
    """No field values, event reasons under no name, no energy counter: clock, power and utilisation remain."""
    without(
        "nvmlDeviceGetFieldValues",
        "nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlDeviceGetCurrentClocksThrottleReasons",
        "nvmlDeviceGetTotalEnergyConsumption",
        "nvmlDeviceGetEnforcedPowerLimit",
    )
    node.serve(gpus="0")
    agent = node.agent()

    assert agent.hello()["energy"] == "power"
    assert set(agent.sample()[node.stub.uuid(0)]) == {"sm_mhz", "power_mw", "util_pct"}


def test_older_name_of_the_event_reasons(node: LoneNode, without: Without) -> None:
    """A driver that only knows throttle reasons still tells them."""
    without("nvmlDeviceGetCurrentClocksEventReasons")
    node.serve(gpus="0")

    assert "reasons" in node.agent().sample()[node.stub.uuid(0)]


def test_a_library_that_is_no_nvml(node: LoneNode) -> None:
    """nvml= points at something else: the reason says so."""
    subprocess.run(["gcc", "-shared", "-x", "c", "/dev/null", "-o", node.nvml], check=True)
    node.serve(gpus="0")

    assert "no_nvmlInit" in node.connect().hello()["reason"]


def test_no_library_at_all(node: LoneNode) -> None:
    """Not even a library: the loader's own words are the reason, and the node's clocks were never in question."""
    node.nvml.write_text("not a library")
    node.serve(gpus="0")

    assert "cannot_be_loaded" in node.connect().hello()["reason"]
    assert node.run("--reset", "12").code == 0
    assert not node.job_folder().exists()


def test_no_list_of_clocks(node: LoneNode, without: Without) -> None:
    """Without the list of supported clocks none can be chosen: measure only."""
    without("nvmlDeviceGetSupportedGraphicsClocks")
    node.serve(gpus="0")
    agent = node.agent()

    fields = agent.hello()

    assert fields["backend"] == "none"
    assert "clocks" not in fields
    assert agent.ask("lock * 1200").startswith("err 3 ")
