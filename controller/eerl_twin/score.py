"""Policies side by side on the same runs: each run's truth, then sums over many runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, median
from typing import Any

from eerl_controller import Controller, Settings
from eerl_twin.binomial import upper_bound
from eerl_twin.conditions import draw
from eerl_twin.oracle import best_fixed
from eerl_twin.run import simulate
from eerl_twin.world import World

#: Policies that a Controller runs; the others are worked out in hindsight.
CONTROLLED = ("governor", "fixed", "paper", "eerl")
#: The best fixed setting in hindsight, for the whole run and after a calibration under the governor. The latter may
#: save more: its allowance is spent where clocks save most when the first updates are slow ones.
HINDSIGHT = ("oracle", "oracle after calibration")
#: Allowed loss of throughput, a fraction (paper, table 3).
MAX_LOSS = 0.02
#: Policy ``fixed``: the paper's 1800/1500 MHz of 1980 (table 2), as fractions of the top clock.
FIXED_FRACTIONS = (1800 / 1980, 1500 / 1980)


@dataclass(frozen=True, slots=True)
class RunScore:
    """One policy on one run against the governor on the same work and noise; fractions as in Totals.

    ``lock_update`` is the index of the first update after locking, None when it never locked (or cannot).
    """

    world: str
    mode: str
    seed: int
    policy: str
    energy_saving: float
    throughput_change: float
    afterlock_energy_saving: float | None
    afterlock_throughput_change: float | None
    oracle_energy_saving: float
    lock_update: int | None
    clock_changes: int
    state: str | None


@dataclass(frozen=True, slots=True)
class Row:
    """Many runs of one policy on a group of worlds: a mode, a preset, or all.

    ``oracle_share`` is a ratio of sums in which a violating run saved nothing.
    """

    group: str
    policy: str
    runs: int
    energy_saving: float
    throughput_change: float
    afterlock_energy_saving: float | None
    afterlock_throughput_change: float | None
    oracle_share: float | None
    violations: int
    violation_bound: float
    worst_loss: float
    locked_runs: int
    updates_until_lock: float | None
    clock_changes: float


def score(
    world: World, seed: int, updates: int, policies: Sequence[str], *, max_loss: float = MAX_LOSS
) -> list[RunScore]:
    """Every policy on one run of this world. Raises ValueError for a policy that does not exist."""
    unknown = sorted(set(policies) - {*CONTROLLED, *HINDSIGHT})
    if unknown:
        raise ValueError(
            f"unknown policies {', '.join(unknown)}; known are {', '.join(CONTROLLED + HINDSIGHT)}"
        )
    conditions = draw(world, updates, seed)
    oracle = best_fixed(world, conditions, max_loss=max_loss)
    scores = []
    for policy in policies:
        if policy in HINDSIGHT:
            best = oracle
            if policy != "oracle":
                best = best_fixed(
                    world, conditions, max_loss=max_loss, governor_updates=_calibration(world, max_loss)
                )
            totals: tuple[float, float] = (best.energy_saving, best.throughput_change)
            scores.append(_score(world, seed, policy, totals, None, oracle.energy_saving, None, 0, None))
            continue
        controller = Controller(_settings(world, policy, max_loss), world.mode, world.grid, seed)
        run = simulate(world, controller, updates, seed, conditions=conditions)
        whole = run.totals()
        assert whole is not None, "a run without updates has no score"
        after = run.totals(run.lock_update) if run.lock_update is not None else None
        scores.append(
            _score(
                world,
                seed,
                policy,
                (whole.energy_saving, whole.throughput_change),
                (after.energy_saving, after.throughput_change) if after else None,
                oracle.energy_saving,
                run.lock_update,
                run.clock_changes,
                controller.state.value,
            )
        )
    return scores


def _settings(world: World, policy: str, max_loss: float) -> Settings:
    fixed = [round(fraction * world.top_mhz) for fraction in FIXED_FRACTIONS]
    return Settings(
        policy=policy,
        max_throughput_loss=max_loss,
        fixed_generation_mhz=fixed[0],
        fixed_training_mhz=fixed[1],
    )


def _calibration(world: World, max_loss: float) -> int:
    """Updates that a calibrating policy leaves to the governor before it may lower any clock."""
    settings = _settings(world, "paper", max_loss).for_mode(world.mode)
    return settings.warmup_updates + settings.calibration_updates


def _score(
    world: World,
    seed: int,
    policy: str,
    whole: tuple[float, float],
    after: tuple[float, float] | None,
    oracle_saving: float,
    lock_update: int | None,
    clock_changes: int,
    state: str | None,
) -> RunScore:
    return RunScore(
        world=world.name,
        mode=world.mode.value,
        seed=seed,
        policy=policy,
        energy_saving=whole[0],
        throughput_change=whole[1],
        afterlock_energy_saving=after[0] if after else None,
        afterlock_throughput_change=after[1] if after else None,
        oracle_energy_saving=oracle_saving,
        lock_update=lock_update,
        clock_changes=clock_changes,
        state=state,
    )


def rows(scores: Iterable[RunScore], *, max_loss: float = MAX_LOSS, by_world: bool = False) -> list[Row]:
    """One row by mode (or by world) and policy, then one by policy over all (``all``)."""
    groups: dict[tuple[str, str], list[RunScore]] = {}
    for item in scores:
        groups.setdefault((item.world if by_world else item.mode, item.policy), []).append(item)
        groups.setdefault(("all", item.policy), []).append(item)
    order = sorted(groups, key=lambda key: (key[0] == "all", key[0]))
    return [_row(group, policy, groups[group, policy], max_loss) for group, policy in order]


def _row(group: str, policy: str, scores: Sequence[RunScore], max_loss: float) -> Row:
    broken = [item.throughput_change < -max_loss for item in scores]
    oracle = sum(item.oracle_energy_saving for item in scores)
    kept = sum(item.energy_saving for item, is_so in zip(scores, broken, strict=True) if not is_so)
    locked = [item for item in scores if item.afterlock_energy_saving is not None]
    return Row(
        group=group,
        policy=policy,
        runs=len(scores),
        energy_saving=fmean(item.energy_saving for item in scores),
        throughput_change=fmean(item.throughput_change for item in scores),
        afterlock_energy_saving=_mean(item.afterlock_energy_saving for item in locked),
        afterlock_throughput_change=_mean(item.afterlock_throughput_change for item in locked),
        oracle_share=kept / oracle if oracle > 0.0 else None,
        violations=sum(broken),
        violation_bound=upper_bound(sum(broken), len(scores)),
        worst_loss=max(0.0, *(-item.throughput_change for item in scores)),
        locked_runs=len(locked),
        updates_until_lock=median(item.lock_update or 0 for item in locked) if locked else None,
        clock_changes=fmean(item.clock_changes for item in scores),
    )


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def as_json(made: Sequence[Row], scores: Sequence[RunScore], about: dict[str, Any]) -> dict[str, Any]:
    """Everything as plain values: what was run, the rows, and every run behind them."""
    return {
        "schema_version": 1,
        **about,
        "rows": [asdict(row) for row in made],
        "runs": [asdict(item) for item in scores],
    }


def as_markdown(made: Sequence[Row]) -> str:
    """The rows as a table; savings and changes in percent."""
    head = (
        "| worlds | policy | runs | saving % | throughput % | after lock: saving % | throughput % | share of oracle "
        "| violations (bound) | worst loss % | locked | updates until lock | clock changes |"
    )
    lines = [head, "|" + "---|" * (head.count("|") - 1)]
    for row in made:
        share = "" if row.oracle_share is None else f"{row.oracle_share:.2f}"
        until = "" if row.updates_until_lock is None else f"{row.updates_until_lock:.0f}"
        lines.append(
            f"| {row.group} | {row.policy} | {row.runs} | {percent(row.energy_saving)} "
            f"| {percent(row.throughput_change)} | {percent(row.afterlock_energy_saving)} "
            f"| {percent(row.afterlock_throughput_change)} | {share} "
            f"| {row.violations} ({row.violation_bound:.3f}) | {percent(row.worst_loss)} | {row.locked_runs} "
            f"| {until} | {row.clock_changes:.1f} |"
        )
    return "\n".join(lines) + "\n"


def percent(value: float | None, digits: int = 2) -> str:
    """A fraction in percent; nothing for None, and no minus before what rounds to zero."""
    return "" if value is None else f"{round(100.0 * value, digits) + 0.0:.{digits}f}"
