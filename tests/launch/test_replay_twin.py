"""``eerl replay --twin``: a modelled workload says that it is one, and its numbers are the simulation's."""

from __future__ import annotations

import json

import pytest
from launch.test_replay_what_if import run

from eerl_controller import Controller, Settings
from eerl_twin import preset, simulate


def test_the_numbers_are_the_simulations() -> None:
    """The same run by hand gives the same energy, saving and throughput."""
    world = preset("qwen-disagg").world
    truth = simulate(world, Controller(Settings(policy="paper"), world.mode, world.grid), 93, 5)

    code, out, _ = run(
        "replay", "--twin", "qwen-disagg", "--policy", "paper", "--updates", "93", "--seed", "5", "--json"
    )

    document, whole, after = json.loads(out), truth.totals(), truth.totals(truth.lock_update or 0)
    assert code == 0 and whole is not None and after is not None
    assert document["simulated"] == "qwen-disagg"
    assert document["energy_j"] == pytest.approx(sum(truth.energy_j))
    assert document["intervals"]["whole_run"]["saving_percent"] == pytest.approx(100 * whole.energy_saving)
    assert document["intervals"]["after_the_lock"]["saving_percent"] == pytest.approx(
        100 * after.energy_saving
    )
    assert document["claimed"]["energy_saving"] == pytest.approx(whole.energy_saving, abs=0.02)


def test_the_summary_is_a_runs_own_and_says_simulated() -> None:
    """The head says simulated; energy, saving, throughput and the stretches around the lock follow."""
    code, out, err = run("replay", "--twin", "qwen-disagg", "--policy", "paper", "--updates", "93")

    lines = out.splitlines()
    assert (code, err) == (0, "")
    assert lines[0].startswith(
        "SIMULATED (qwen-disagg, seed 0, policy paper): no number here is of real hardware"
    )
    for start in ("Energy saved  ", "Throughput    ", "whole run ", "before the lock ", "after the lock "):
        assert sum(line.startswith(start) for line in lines) == 1
    assert "EXTRAPOLATED" not in out


def test_below_the_calibrated_clocks_it_says_extrapolated() -> None:
    """Clocks under the paper's lowest are named as such, with the lowest."""
    _, out, _ = run(
        "replay",
        "--twin",
        "qwen-disagg",
        "--updates",
        "5",
        "--policy",
        "fixed",
        "--set",
        "fixed.training_mhz=600",
    )

    assert "5 updates ran below the lowest clocks that the paper measured here (810 MHz and 810 MHz)" in out
    assert "EXTRAPOLATED" in out


@pytest.mark.parametrize(
    "name", ["population:7:async_drained", "mistral:2:colocated_sync", "nemotron-inflight"]
)
def test_every_kind_of_world_runs(name: str) -> None:
    """Drawn worlds and presets, each with its own remark on what is known of it."""
    code, out, _ = run("replay", "--twin", name, "--updates", "30", "--policy", "paper")

    assert code == 0
    assert name in out.splitlines()[0]
    assert "The workload is " in out


def test_the_names_are_listed() -> None:
    """Presets and patterns, one a line, each of them accepted."""
    code, out, _ = run("replay", "--twin", "list")

    assert code == 0
    assert {"qwen-disagg", "population:SEED:MODE", "mistral:SEED:MODE"} < set(out.splitlines())


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("qwen-dissag", "nearest: qwen-disagg"),
        ("population:7", "population:SEED:MODE"),
        ("population:x:async_drained", "population:SEED:MODE"),
        ("mistral:1:sync", "mode of colocated_sync"),
    ],
)
def test_unknown_names_are_refused(name: str, said: str) -> None:
    """Exit 2 with what is allowed or near."""
    code, _, err = run("replay", "--twin", name)

    assert code == 2
    assert said in err
