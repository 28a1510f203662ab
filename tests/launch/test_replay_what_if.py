"""``eerl replay --policy``: plans on recorded updates, and an estimate that is right where the truth is known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from launch.twin_ledger import recorded, write

from eerl_controller import Controller, ExecutionMode, Settings
from eerl_launch.replay import replay
from eerl_launch.tools import eerl
from eerl_launch.what_if import what_if
from eerl_twin import FixedPlan, population, preset, simulate

UPDATES = 140
PAPER = Settings(policy="paper")


def run(*arguments: str | Path) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of one ``eerl`` command."""
    result = CliRunner().invoke(eerl, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def plans_of(events: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """The recorded plans by clocks, state and reason."""
    keys = ("generation_mhz", "training_mhz", "idle_mhz", "state", "reason")
    return [tuple(event[key] for key in keys) for event in events if event["ev"] == "plan"]


@pytest.mark.parametrize("name", ["qwen-colocated", "qwen-disagg", "qwen-drained", "qwen-inflight"])
def test_the_recorded_policy_again_is_all_measured(name: str) -> None:
    """Under its own policy every update ran under the clocks wished for: equal plans, and nothing is estimated."""
    events, truth = recorded(preset(name).world, PAPER, UPDATES)

    result = what_if(events, {"policy": "paper"})

    assert replay(events).difference is None
    assert (result.estimated, result.left_out, result.stopped) == (0, 0, None)
    assert result.measured == UPDATES
    assert [
        tuple(plan[key] for key in ("generation_mhz", "training_mhz", "idle_mhz", "state", "reason"))
        for _, plan in result.plans
    ] == plans_of(events)
    assert result.would_be.energy_j == pytest.approx(sum(truth.energy_j))


@pytest.mark.parametrize("mode", list(ExecutionMode))
def test_the_governor_on_a_recorded_run(mode: ExecutionMode) -> None:
    """What the run saved, told from its own updates, is near the truth: 2.5 points of energy, 1.5 of throughput.

    Four worlds with noise, events and faults; the mean over them is nearer still.
    """
    errors = []
    for seed in range(4):
        world = population(seed, mode, horizon=UPDATES)
        events, truth = recorded(world, PAPER, UPDATES, seed)

        result = what_if(events, {"policy": "governor"})

        whole = truth.totals()
        saving, change = result.saving(result.recorded), result.throughput_change(result.recorded)
        assert whole is not None and saving is not None and change is not None
        assert saving == pytest.approx(whole.energy_saving, abs=0.025)
        assert change == pytest.approx(whole.throughput_change, abs=0.015)
        assert result.saving(result.would_be) == pytest.approx(0.0, abs=1e-9)
        errors.append(saving - whole.energy_saving)
    assert sum(errors) / len(errors) == pytest.approx(0.0, abs=0.012)


@pytest.mark.parametrize("mode", list(ExecutionMode))
def test_other_clocks_on_a_recorded_run(mode: ExecutionMode) -> None:
    """The last clocks of a run, held from its first update: near what that run would really have been."""
    for seed in range(4):
        world = population(seed, mode, horizon=UPDATES)
        events, _ = recorded(world, PAPER, UPDATES, seed)
        low = [event for event in events if event["ev"] == "plan" and event["training_mhz"] is not None]
        pair = {f"fixed_{name}": low[-1][name] for name in ("generation_mhz", "training_mhz")}

        result = what_if(events, {"policy": "fixed", **pair})

        clocks = (low[-1]["generation_mhz"], low[-1]["training_mhz"], result.plans[0][1]["idle_mhz"])
        whole = simulate(world, FixedPlan(*clocks), UPDATES, seed).totals()
        saving, change = result.saving(result.would_be), result.throughput_change(result.would_be)
        assert whole is not None and saving is not None and change is not None
        assert result.estimated > 20
        assert saving == pytest.approx(whole.energy_saving, abs=0.03)
        assert change == pytest.approx(whole.throughput_change, abs=0.03)


def test_another_policy_hears_of_its_own_trials() -> None:
    """Policy eerl's own model on a run of policy paper: near what it would really have come to."""
    world = preset("qwen-disagg").world
    events, _ = recorded(world, PAPER, UPDATES)
    model = Settings(policy="eerl")
    truth = simulate(world, Controller(model, world.mode, world.grid), UPDATES, 0).totals()

    result = what_if(events, {"policy": "eerl"})

    saving, change = result.saving(result.would_be), result.throughput_change(result.would_be)
    assert truth is not None and saving is not None and change is not None
    assert result.stopped is None
    assert result.updates == UPDATES and result.estimated > 50
    assert saving == pytest.approx(truth.energy_saving, abs=0.015)
    assert change == pytest.approx(truth.throughput_change, abs=0.005)


def test_nothing_is_invented_from_a_governor_run(tmp_path: Path) -> None:
    """A run without lowered clocks tells of none: the first trial is shown, and there the replay ends."""
    events, _ = recorded(preset("qwen-colocated").world, Settings(policy="governor"), 60)

    code, out, _ = run("replay", write(events, tmp_path / "run"), "--policy", "paper")

    assert code == 0
    assert "search" in out
    assert "Nothing in this ledger tells what comes next (generation at" in out
    assert "ended after 17 of 60 updates" in out
    assert "energy saved 0.0 %" in out


def test_depths_never_recorded_are_called_extrapolated(tmp_path: Path) -> None:
    """A fixed clock far below the recorded ones is estimated, labelled, and counted."""
    events, _ = recorded(preset("qwen-drained").world, PAPER, UPDATES)
    folder = write(events, tmp_path / "run")
    fixed = ["--policy", "fixed", "--set", "fixed.training_mhz=420"]

    _, out, _ = run("replay", folder, *fixed)
    document = json.loads(run("replay", folder, *fixed, "--json")[1])

    assert "(ESTIMATE)" in out
    assert f"{UPDATES} of them lie below every clock that was recorded: extrapolated." in out
    assert document["extrapolated_updates"] == document["estimated_updates"] == UPDATES
    assert document["would_be"]["energy_j"] > 0


def test_updates_of_unknown_clocks_or_energy_are_left_out() -> None:
    """Mixed plans, an operator's hold and missing energy are shown to the policy but not compared."""
    events, _ = recorded(preset("qwen-colocated").world, PAPER, 60)
    records = [event["record"] for event in events if event["ev"] == "update"]
    records[30]["plan_id"] = None
    records[40]["flags"] = ["operator_hold"]
    records[50].update(energy_j=None, flags=["partial_energy"])

    result = what_if(events, {"policy": "governor"})

    assert result.updates == 60
    assert result.left_out == 3
    assert result.measured + result.estimated == 57


def test_a_simulated_run_says_so(tmp_path: Path) -> None:
    """What was told of simulated GPUs is labelled as such; of real ones it is not."""
    events, _ = recorded(preset("qwen-colocated").world, PAPER, 30)
    real = run("replay", write(events, tmp_path / "real"), "--policy", "governor")[1]
    events[0]["simulated"] = "h100:2x8"

    made = run("replay", write(events, tmp_path / "made"), "--policy", "governor")[1]

    assert made.startswith("SIMULATED GPUs (h100:2x8): no number here is of real hardware")
    assert "SIMULATED" not in real


def test_settings_are_the_recorded_ones_with_the_changes(tmp_path: Path) -> None:
    """A looser limit alone keeps the policy and lets it go deeper."""
    world = preset("qwen-disagg").world
    events, _ = recorded(world, PAPER, UPDATES)
    folder = write(events, tmp_path / "run")

    code, out, _ = run("replay", folder, "--set", "max_throughput_loss=4%", "--json")

    document = json.loads(out)
    assert code == 0
    assert (
        document["would_be"]["throughput_change_percent"] < document["recorded"]["throughput_change_percent"]
    )
    assert document["would_be"]["saving_percent"] > document["recorded"]["saving_percent"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--policy", "papr"], "neither a policy (eerl, paper, fixed, governor) nor a file"),
        (["--policy", "fixed"], "saw fixed without a clock"),
        (["--set", "mode=auto"], "allowed is key=value with max_throughput_loss"),
        (["--set", "clocks.idle_mhz"], "allowed is key=value"),
        (["--set", "clocks.min_mhz=fast"], "clocks.min_mhz: saw fast"),
        (["--twin", "qwen-disagg"], "one of them"),
    ],
)
def test_wrong_choices_are_named(tmp_path: Path, arguments: list[str], said: str) -> None:
    """Exit 2 and one message that says what is allowed."""
    events, _ = recorded(preset("qwen-colocated").world, Settings(policy="governor"), 3)

    code, out, err = run("replay", write(events, tmp_path / "run"), *arguments)

    assert (code, out) == (2, "")
    assert said in err


def test_a_file_and_set_do_not_mix(tmp_path: Path) -> None:
    """What a policy file says is changed in the file."""
    policy = tmp_path / "policy.yaml"
    policy.write_text("policy: governor\n")

    code, _, err = run("replay", tmp_path, "--policy", policy, "--set", "max_throughput_loss=1%")

    assert code == 2
    assert "change the file" in err
