"""How much of a wide job is written by GPU: everything, or sums that add up to the same."""

from __future__ import annotations

from typing import Any

import pytest

from eerl_launch.gpu_detail import (
    MOST_GPUS_EVERY_TICK,
    MOST_VALUES,
    TICK_S_PER_GPU,
    UPDATES_BETWEEN,
    GpuDetail,
    TickDetail,
)

WIDE = [f"GPU-{number}" for number in range(MOST_VALUES + 1)]
PHASES = {"generation": 5.0, "generation/prefill": 1.0, "reward": 2.0, "training": 9.0}


def lines(uuids: list[str], joules: float | None = 1.00049, t_s: float = 10.0) -> list[dict[str, Any]]:
    """The phases of an update, with their energies."""
    return [
        {
            "ev": "phase",
            "t_s": t_s,
            "phase": name,
            "exclusive": "/" not in name,
            "energy_j": energy_j,
            "gpu_energy_j": dict.fromkeys(uuids, joules),
        }
        for name, energy_j in PHASES.items()
    ]


def by_gpu(written: list[dict[str, Any]]) -> list[str]:
    """The phases that have joules by GPU in their lines."""
    return [line["phase"] for line in written if line.get("gpu_energy_j")]


def test_a_small_job_has_every_phase_by_gpu() -> None:
    """As many joules as may be stay in their lines, to the millijoule, and there are no sums to tell."""
    detail = GpuDetail()

    written = detail.thin(lines(WIDE[: MOST_VALUES // 4]))

    assert by_gpu(written) == list(PHASES)
    assert all(line["gpu_energy_j"]["GPU-0"] == 1.0 for line in written)
    assert detail.rest() == []


@pytest.mark.parametrize(
    ("gpus", "phases"),
    [
        (MOST_VALUES // 3, ["generation", "reward", "training"]),
        (MOST_VALUES, ["generation"]),
        (len(WIDE), ["generation"]),
    ],
)
def test_generation_stays_by_gpu_and_others_while_there_is_room(gpus: int, phases: list[str]) -> None:
    """Room goes to the phases with most energy; generation needs none."""
    assert by_gpu(GpuDetail().thin(lines(WIDE[:gpus]))) == phases


def test_a_wide_job_has_sums_by_phase_and_gpu() -> None:
    """Lines say null; every so many updates, and at the end, one line has the sums since the run began."""
    detail = GpuDetail()

    written = [detail.thin(lines(WIDE, t_s=float(update))) for update in range(UPDATES_BETWEEN + 1)]
    (rest,) = detail.rest()

    assert [len(update) for update in written] == [4] * (UPDATES_BETWEEN - 1) + [5, 4]
    assert all(line["gpu_energy_j"] is None for update in written for line in update[1:4])
    assert all(line["gpus"] == len(WIDE) for line in written[0][1:4])
    assert (rest["phases"], rest["exclusive"]) == (
        ["generation/prefill", "reward", "training"],
        [False, True, True],
    )
    assert rest["t_s"] == UPDATES_BETWEEN
    assert list(rest["gpu_phase_energy_j"]) == WIDE
    assert rest["gpu_phase_energy_j"]["GPU-7"] == pytest.approx(
        [1.00049 * (UPDATES_BETWEEN + 1)] * 3, abs=1e-3
    )
    assert detail.rest() == []


def test_what_is_unknown_is_in_no_sum() -> None:
    """A GPU without a reading is not there, and the others' sums are their own."""
    detail = GpuDetail()
    update = lines(WIDE)
    for line in update:
        line["gpu_energy_j"]["GPU-3"] = None

    detail.thin(update)
    detail.thin(update)
    (rest,) = detail.rest()

    assert "GPU-3" not in rest["gpu_phase_energy_j"]
    assert rest["gpu_phase_energy_j"]["GPU-4"] == [2.001, 2.001, 2.001]


def test_totals_of_many_gpus_are_written_less_often() -> None:
    """Up to so many GPUs every tick has them; of more a tick within half a second a GPU has none."""
    few, many = WIDE[:MOST_GPUS_EVERY_TICK], WIDE[: 2 * MOST_GPUS_EVERY_TICK]
    narrow, wide = TickDetail(), TickDetail()
    later_s = 100.0 + TICK_S_PER_GPU * len(many)

    assert all(narrow.totals(dict.fromkeys(few, 5.0), now_s) for now_s in (100.0, 100.1))
    assert wide.totals(dict.fromkeys(many, 5.0004), 100.0) == dict.fromkeys(many, 5.0)
    assert wide.totals(dict.fromkeys(many, 5.0), later_s - 1.0) is None
    assert wide.totals(dict.fromkeys(many, None), later_s) == dict.fromkeys(many)
