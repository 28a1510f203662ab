"""The calibrated presets against the paper, and the governor model against the twin as appendix B tests it."""

from __future__ import annotations

from statistics import median

import pytest

from eerl_controller import ExecutionMode, GovernorModel, UpdateRecord
from eerl_twin import FixedPlan, World, population, simulate, without_events
from eerl_twin.family import Configuration
from eerl_twin.fit import FixedRow, predicted
from eerl_twin.presets import ALIASES, frozen, mistral, preset, preset_names
from eerl_twin.world import SYNCHRONOUS

#: Table 2's H100 rows, and the rows between governor and top clock that show the traps (C.1, C.6): preset,
#: generation and training MHz, throughput change and energy saving in percent.
PAPER_ROWS = [
    ("qwen-h100-colocated_sync-32-32-L", 1800, 1500, -0.99, 8.29),
    ("qwen-h100-disaggregated_sync-8-32-L", 1500, 1200, -0.36, 28.23),
    ("nemotron-h100-disaggregated_sync-16-64-M", 1350, 1350, -1.16, 26.14),
    ("nemotron-h100-disaggregated_sync-16-64-S", 1350, 1500, -1.31, 23.75),
    ("nemotron-h100-async_drained-16-64-M", 1725, 810, -1.83, 21.85),
    ("nemotron-h100-async_drained-16-64-M", 1830, 1200, -0.26, 21.13),
    ("qwen-h100-async_drained-8-24-M", 1830, 810, -1.37, 19.89),
    ("nemotron-h100-async_inflight-16-64-S", 1725, 1200, 1.48, 21.69),
    ("nemotron-h100-async_inflight-16-64-M", 1725, 1200, -1.37, 21.27),
    ("qwen-h100-async_inflight-8-24-L", 1830, 810, -0.78, 19.91),
    ("qwen-h100-colocated_sync-32-32-M", 1800, 1800, -1.50, 0.15),
    ("qwen-h100-colocated_sync-32-32-M", 1980, 1980, -1.21, -1.23),
    ("qwen-h100-disaggregated_sync-8-32-M", 1980, 1980, -0.44, 11.76),
    ("qwen-h100-disaggregated_sync-8-32-S", 810, 810, -34.62, 8.19),
]
ANYTHING = Configuration("Qwen3-30B-A3B", "H100", ExecutionMode.COLOCATED_SYNC, 32, 32, "M")


@pytest.mark.parametrize(("name", "generation_mhz", "training_mhz", "change", "saving"), PAPER_ROWS)
def test_presets_reproduce_the_paper(
    name: str, generation_mhz: int, training_mhz: int, change: float, saving: float
) -> None:
    """Within three times the error that the calibration publishes for the family and mode."""
    family = next(key for key in frozen()["families"] if key.lower().startswith(name.split("-")[0]))
    published = frozen()["families"][family]["fitted_error"][name.split("-")[2]]

    found = predicted(preset(name).world, [FixedRow(ANYTHING, generation_mhz, training_mhz, change, saving)])[
        0
    ]

    assert found[0] == pytest.approx(change, abs=3 * published["throughput_rmse_pp"])
    assert found[1] == pytest.approx(saving, abs=3 * published["saving_rmse_pp"])


def test_published_errors_are_those_of_rows_not_seen() -> None:
    """Held-out savings are off by less than 1.5 points (rms) on H100, and never less than fitted ones by much."""
    for name, family in frozen()["families"].items():
        fitted, unseen = family["fitted_error"]["all"], family["held_out_error"]["all"]
        assert unseen["rows"] == fitted["rows"]
        assert unseen["saving_rmse_pp"] > 0.95 * fitted["saving_rmse_pp"]
        if "H100" in name:
            assert unseen["saving_rmse_pp"] < 1.5


def test_every_preset_is_a_world_of_its_mode() -> None:
    """All names lead to worlds; the short ones too."""
    for name in preset_names():
        world = preset(name).world
        assert world.name == ALIASES.get(name, name)
        assert world.mode.value in world.name
        assert 0.0 <= world.lock_offset_training <= 0.02


def test_below_the_tested_clocks_is_extrapolation() -> None:
    """A preset says so for either clock; the governor never is."""
    qwen = preset("qwen-disagg")

    assert not qwen.extrapolates(810, 810)
    assert not qwen.extrapolates(None, None)
    assert qwen.extrapolates(795, 1200)
    assert qwen.extrapolates(None, 345)


def test_an_unknown_preset_names_the_known() -> None:
    """The error lists what there is."""
    with pytest.raises(KeyError, match="qwen-disagg"):
        preset("qwen-disaggregated")


@pytest.mark.parametrize("mode", list(ExecutionMode))
def test_mistral_is_a_range(mode: ExecutionMode) -> None:
    """Seeds differ, stay inside the bounds, and run."""
    worlds = [mistral(seed, mode) for seed in range(5)]

    assert len({world.costs for world in worlds}) == 5
    for world in worlds:
        totals = simulate(world, FixedPlan(1800, 1500, 345), 30, 1).totals(5)
        assert totals is not None
        assert -0.2 < totals.throughput_change <= 0.0
        assert -0.05 < totals.energy_saving < 0.35


def forward_errors(world: World, seed: int, updates: int = 100) -> tuple[float, float, float, float]:
    """Median error (fractions) of throughput and energy over 3 updates from 15 before: constant, token work."""
    records: list[UpdateRecord] = simulate(world, FixedPlan(), updates, seed).records[3:]
    errors: list[tuple[float, float, float, float]] = []
    for at in range(15, len(records) - 2, 3):
        past, block = records[at - 15 : at], records[at : at + 3]
        model = GovernorModel.fit(past, world.mode)
        assert model is not None
        predictions = [
            model.predict(record, before) for record, before in zip(block, records[at - 1 :], strict=False)
        ]
        seconds, joules = _sums(block)
        past_s, past_j = _sums(past)
        share = _tokens(block) / _tokens(past)
        errors.append(
            (
                abs(seconds / (past_s * share) - 1.0),
                abs(seconds / sum(item.elapsed_s for item in predictions) - 1.0),
                abs(joules / (past_j * share) - 1.0),
                abs(joules / sum(item.energy_j or 0.0 for item in predictions) - 1.0),
            )
        )
    by_kind = list(zip(*errors, strict=True))
    return median(by_kind[0]), median(by_kind[1]), median(by_kind[2]), median(by_kind[3])


def _sums(records: list[UpdateRecord]) -> tuple[float, float]:
    return sum(r.elapsed_s or 0.0 for r in records), sum(r.energy_j or 0.0 for r in records)


def _tokens(records: list[UpdateRecord]) -> int:
    return sum(r.valid_tokens or 0 for r in records)


@pytest.mark.parametrize("name", sorted(ALIASES))
def test_token_work_beats_the_constant_reference_on_the_presets(name: str) -> None:
    """Appendix B: fitted on 15 updates, the next 3 are predicted better from tokens than by a constant.

    In-flight work spills over (see test_run): there the tokens of the update before are among them.
    """
    constant, tokens, constant_j, tokens_j = forward_errors(preset(name).world, 1)

    assert tokens < constant
    assert tokens_j < constant_j


@pytest.mark.parametrize("mode", SYNCHRONOUS)
def test_token_work_beats_the_constant_reference_on_the_population(mode: ExecutionMode) -> None:
    """The same in worlds of every form: in each of them for time and energy."""
    for seed in range(8):
        constant, tokens, constant_j, tokens_j = forward_errors(without_events(population(seed, mode)), seed)

        assert tokens < constant
        assert tokens_j < constant_j
