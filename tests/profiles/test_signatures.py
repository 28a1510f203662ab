"""Phase signatures against ledgers whose every number is known, and against the twin."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from evidence.twin_ledgers import GOVERNOR, quiet, run_twin
from evidence.twin_ledgers import write_run as write_twin
from profiles.small_ledgers import end, phase, start, update
from report.ledgers import RunSpec, write_ledger, write_run

from eerl_launch.profiles.document import profile
from eerl_twin import preset

WATTS = (300.0, 300.0, 500.0, 500.0)


def signature(folder: Path, **options: Any) -> dict[str, dict[str, Any]]:
    """The rows of the only run by phase."""
    (run,) = profile([folder], **options).document["runs"]
    return {row["phase"]: row for row in run["signature"]}


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Two updates: generation of 10 and 30 s with prefill inside, training of 10 s, validation in the second only."""
    return write_ledger(
        tmp_path / "small",
        [
            *start(),
            phase("generation", 0, 10, WATTS, busy_fraction=0.9, capped_fraction=0.0, achieved_mhz=1900.0),
            phase("generation/prefill", 0, 2, WATTS),
            phase("training", 10, 10, [600] * 4, busy_fraction=1.0, capped_fraction=0.5, achieved_mhz=1700.0),
            update(0, 0, 21, 40_400, {"valid_tokens": 1000}, rest=(1, 400)),
            phase("generation", 21, 30, WATTS, busy_fraction=0.5, capped_fraction=0.0, achieved_mhz=1500.0),
            phase("generation/prefill", 21, 2, WATTS),
            phase("generation/prefill", 30, 4, WATTS),
            phase("validation", 51, 5, [400] * 4),
            phase("training", 56, 10, [600] * 4, busy_fraction=1.0, capped_fraction=0.5, achieved_mhz=1700.0),
            update(1, 21, 46, 80_400, {"valid_tokens": 3000}, rest=(1, 400)),
            end(70),
        ],
    )


def test_time_power_and_energy_of_a_phase(small: Path) -> None:
    """Means are over updates, power is energy over time (not a mean of powers), and by the GPUs that it has."""
    row = signature(small)["generation"]

    assert (row["updates"], row["runs"], row["gpus"]) == (2, 2, 4)
    assert (row["mean_elapsed_s"], row["median_elapsed_s"]) == (20.0, 20.0)
    assert row["mean_energy_j"] == pytest.approx(32_000.0)
    assert row["mean_energy_j_per_gpu"] == pytest.approx(8_000.0)
    assert row["mean_power_w_per_gpu"] == pytest.approx(400.0)
    assert row["p10_elapsed_s"] == pytest.approx(12.0)
    assert row["p90_elapsed_s"] == pytest.approx(28.0)
    assert row["busy_fraction"] == pytest.approx((0.9 * 10 + 0.5 * 30) / 40)
    assert row["achieved_mhz"] == pytest.approx((1900 * 10 + 1500 * 30) / 40)


def test_subphases_lie_inside_and_runs_of_one_update_add_up(small: Path) -> None:
    """A subphase has its phase's name before it, its runs in an update are summed, and it is no part of the sum."""
    row = signature(small)["generation/prefill"]

    assert (row["subphase_of"], row["exclusive"], row["runs"]) == ("generation", False, 3)
    assert row["mean_elapsed_s"] == pytest.approx((2 + 6) / 2)


def test_what_runs_now_and_then_counts_by_the_updates_it_ran_in(small: Path) -> None:
    """Validation took 5 s where it ran, 2.5 s of the mean update; its share of energy and tokens is over all."""
    row = signature(small)["validation"]

    assert (row["updates"], row["mean_elapsed_s"], row["mean_elapsed_s_of_all_updates"]) == (1, 5.0, 2.5)
    assert row["energy_j_per_valid_token"] == pytest.approx(8_000 / 4_000)
    assert row["energy_fraction"] == pytest.approx(8_000 / 120_800)
    assert row["gpu_s_per_million_valid_tokens"] == pytest.approx(4 * 5 / 0.004)


def test_parts_make_up_the_update(small: Path) -> None:
    """Joules, seconds, shares and joules per token of the partition and the rest add up to the update's."""
    rows = signature(small)

    parts = [row for row in rows.values() if row["exclusive"]]
    whole = rows["update"]
    for key in ("energy_j_per_valid_token", "gpu_s_per_million_valid_tokens"):
        assert sum(row[key] for row in parts) == pytest.approx(whole[key])
    assert sum(row["energy_fraction"] for row in parts) == pytest.approx(1.0)
    assert sum(row["elapsed_fraction"] for row in parts) == pytest.approx(1.0)
    assert sum(row["mean_energy_j_of_all_updates"] for row in parts) == pytest.approx(whole["mean_energy_j"])
    assert whole["energy_j_per_valid_token"] == pytest.approx(120_800 / 4_000)


def test_an_update_without_measured_energy_leaves_the_rest_right(tmp_path: Path) -> None:
    """One unmeasured run of training: time counts it, energy does not, and the reason is told."""
    folder = write_ledger(
        tmp_path / "partial",
        [
            *start(),
            phase("training", 0, 10, [600] * 4),
            update(0, 0, 10, 24_000, {"valid_tokens": 1000}),
            phase(
                "training", 10, 30, [600] * 4, energy_j=None, energy_reason="1 of 4 GPUs not covered: GPU-d"
            ),
            update(1, 10, 30, 50_000, {"valid_tokens": 1000}, flags=["partial_energy"]),
            end(40),
        ],
    )

    rows = signature(folder)

    assert rows["training"]["mean_elapsed_s"] == 20.0
    assert rows["training"]["mean_power_w_per_gpu"] == pytest.approx(600.0)
    assert rows["training"]["energy_j_per_valid_token"] == pytest.approx(24.0)
    assert rows["training"]["energy_reason"] == "not known in 1 of 2 updates: 1 of 4 GPUs not covered: GPU-d"
    assert rows["update"]["mean_energy_j"] == 24_000


def test_a_run_under_lowered_clocks_can_be_taken_apart(tmp_path: Path) -> None:
    """Governor and lowered updates have signatures of their own; lowered ones draw the less that is true."""
    folder = write_run(tmp_path / "run", RunSpec(saving=0.2, noise=0.0, growth=1.0, warm_up=0))

    governor = signature(folder, clocks="governor")["training"]
    lowered = signature(folder, clocks="lowered")["training"]

    assert governor["mean_power_w_per_gpu"] == pytest.approx(650.0)
    assert lowered["mean_power_w_per_gpu"] == pytest.approx(0.8 * 650.0)
    assert governor["updates"] + lowered["updates"] == signature(folder)["training"]["updates"]


def test_slow_first_updates_are_told_and_can_be_left_out(tmp_path: Path) -> None:
    """An update of compilation counts unless asked otherwise, and a note says so."""
    folder = write_run(tmp_path / "run", RunSpec(growth=1.0, warm_up=2))

    with_it, without = profile([folder]).document, profile([folder], skip=2).document

    assert any("--skip 2 omits them" in problem for problem in with_it["runs"][0]["problems"])
    assert not any("--skip" in problem for problem in without["runs"][0]["problems"])
    assert without["runs"][0]["updates"] == with_it["runs"][0]["updates"] - 2


@pytest.mark.parametrize("name", ["qwen-disagg", "qwen-drained"])
def test_the_twin_s_phases_are_its_records(tmp_path: Path, name: str) -> None:
    """A ledger without phase lines: the phases of the records, to the joule, and a note that it is so."""
    world = quiet(preset(name).world)
    run = run_twin(world, GOVERNOR, 30, 1)
    folder = write_twin(tmp_path / "twin", run, "governor")

    (shown,) = profile([folder]).document["runs"]

    rows = {row["phase"]: row for row in shown["signature"]}
    for phase_name in ("generation", "training"):
        truth = [record.phases[phase_name] for record in run.records]
        assert rows[phase_name]["mean_elapsed_s"] == pytest.approx(sum(p.elapsed_s for p in truth) / 30)
        assert rows[phase_name]["mean_energy_j"] == pytest.approx(sum(p.energy_j for p in truth) / 30)
    tokens = sum(record.valid_tokens for record in run.records)
    joules = sum(record.energy_j for record in run.records)
    assert rows["update"]["energy_j_per_valid_token"] == pytest.approx(joules / tokens)
    assert any("without subphases" in problem for problem in shown["problems"])
