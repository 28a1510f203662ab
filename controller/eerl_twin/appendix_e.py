"""``python -m eerl_twin.appendix_e CSV``: policy ``paper`` on the Qwen presets against the paper's own runs.

The paper has one run of each configuration, normalized for its work (appendix E; its table is the CSV). The twin has
the same horizon and as many seeds as wanted. Beside every deviation stands what tells its cause: the same runs
without noise, what the paper's own final clocks save in the twin, and what a run's own final clocks do.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, pstdev

from eerl_controller import Controller, Settings
from eerl_twin.conditions import draw
from eerl_twin.oracle import best_fixed
from eerl_twin.presets import preset
from eerl_twin.run import FixedPlan, Run, simulate
from eerl_twin.world import World

#: A deviation by more than this many points of percent wants a cause.
TOLERANCE_PP = 3.0
QUANTITIES = ("whole saving", "whole throughput", "after-lock saving", "after-lock throughput")


@dataclass(frozen=True, slots=True)
class PaperRun:
    """A configuration of appendix E: its preset, last update, final clocks in MHz (table 5), results in percent.

    Of drained Qwen's varying clock it is the last (section 7.4).
    """

    preset: str
    last_update: int
    final_mhz: tuple[int | None, int | None]
    results: tuple[float, float, float, float]


@dataclass(frozen=True, slots=True)
class Deviation:
    """One quantity: the paper's, and the twin's mean, spread and runs beyond the tolerance; points of percent.

    ``silent_beyond`` counts these runs when the world has no noise; ``fixed`` is what the paper's final clocks do in
    the twin over the same updates, and ``best`` what the best fixed clocks do. ``unexplained`` is, of savings after
    the lock, the most by which a run differs from its own last clocks held fixed, times the share of its updates
    that were not the governor's.
    """

    quantity: str
    paper: float
    mean: float
    sd: float
    runs: int
    beyond: int
    silent_runs: int
    silent_beyond: int
    fixed: float
    best: float
    unexplained: float | None

    @property
    def deviation(self) -> float:
        """The twin's mean beyond the paper's."""
        return self.mean - self.paper


#: What single runs beyond the tolerance come from; tests/twin/test_appendix_e.py shows each.
CAUSES = """
Where single runs lie beyond it:

- *Synchronous runs* end at other clocks than most: a trial of three updates is decided by noise. Without noise no run
  is beyond. The clocks a run ends at explain its saving (*unexplained*); the paper's own clocks would be over the
  limit in the twin (*paper's clocks*, throughput), so the controller stops above them.
"""
#: Names of the CSV's modes, and the final clocks of table 5.
_CONFIGURATIONS: Mapping[str, tuple[str, tuple[int | None, int | None]]] = {
    "colocated_sync": ("qwen-colocated", (1830, 1425)),
    "disaggregated_sync": ("qwen-disagg", (1695, 1425)),
    "async_drained": ("qwen-drained", (None, 1005)),
    "async_inflight": ("qwen-inflight", (None, 1125)),
}


def read(path: Path) -> list[PaperRun]:
    """The Qwen rows of appendix E."""
    runs = []
    with path.open(newline="") as handle:
        for row in csv.DictReader(handle):
            if not row["model"].startswith("Qwen"):
                continue
            name, final_mhz = _CONFIGURATIONS[row["mode"]]
            saved, change = (
                [float(row[f"{part}_{kind}_pct"]) for part in ("whole", "afterlock")]
                for kind in ("energy_saving", "throughput_change")
            )
            last = int(row["whole_updates"].split("-")[1])
            runs.append(PaperRun(name, last, final_mhz, (saved[0], change[0], saved[1], change[1])))
    return runs


def deviations(paper: PaperRun, seeds: int) -> list[Deviation]:
    """Policy ``paper`` on this configuration's preset, with ``seeds`` runs with noise and without."""
    world = preset(paper.preset).world
    quiet = replace(world, noise=replace(world.noise, level_sd=0.0, phase_sd=0.0, power_sd=0.0))
    (noisy, unexplained), (silent, _) = (_results(item, paper.last_update, seeds) for item in (world, quiet))
    idle_mhz = Settings().idle_mhz if world.mode.value in ("disaggregated_sync", "async_drained") else None
    held = simulate(world, FixedPlan(*paper.final_mhz, idle_mhz), paper.last_update, 0).totals(1)
    best = best_fixed(world, draw(world, paper.last_update, 0))
    assert held is not None, "a run of more than one update has totals"
    fixed = 100 * held.energy_saving, 100 * held.throughput_change
    ideal = 100 * best.energy_saving, 100 * best.throughput_change
    found = []
    for at, (quantity, wanted) in enumerate(zip(QUANTITIES, paper.results, strict=True)):
        values, others = noisy[at], silent[at]
        found.append(
            Deviation(
                quantity=quantity,
                paper=wanted,
                mean=fmean(values),
                sd=pstdev(values),
                runs=len(values),
                beyond=sum(abs(value - wanted) > TOLERANCE_PP for value in values),
                silent_runs=len(others),
                silent_beyond=sum(abs(value - wanted) > TOLERANCE_PP for value in others),
                fixed=fixed[at % 2],
                best=ideal[at % 2],
                unexplained=max(unexplained, default=None) if quantity == "after-lock saving" else None,
            )
        )
    return found


def _results(world: World, updates: int, seeds: int) -> tuple[tuple[list[float], ...], list[float]]:
    """The four quantities by seed, and what of the after-lock saving is not explained, in points of percent.

    Runs that never lock have neither.
    """
    found: tuple[list[float], ...] = ([], [], [], [])
    unexplained = []
    for seed in range(seeds):
        run = simulate(world, Controller(Settings(policy="paper"), world.mode, world.grid), updates, seed)
        lock = run.lock_update
        parts = [run.totals(1), run.totals(lock) if lock is not None else None]
        for at, totals in enumerate(parts):
            if totals is not None:
                found[2 * at].append(100 * totals.energy_saving)
                found[2 * at + 1].append(100 * totals.throughput_change)
        if lock is not None and parts[1] is not None:
            unexplained.append(abs(found[2][-1] - 100 * _explained(run, lock)))
    return found, unexplained


def _explained(run: Run, lock: int) -> float:
    """The saving that the last lowered clocks of a run would have after its lock, for the share in which any were."""
    plans = run.plans[lock:]
    lowered = [plan for plan in plans if plan is not None and not plan.is_governor]
    if not lowered:
        return 0.0
    held = FixedPlan(lowered[-1].generation_mhz, lowered[-1].training_mhz, lowered[-1].idle_mhz)
    totals = simulate(run.world, held, lock + len(plans), run.seed).totals(lock)
    return len(lowered) / len(plans) * totals.energy_saving if totals is not None else 0.0


def as_markdown(rows: Sequence[tuple[PaperRun, Sequence[Deviation]]], seeds: int) -> str:
    """The page."""
    head = f"""\
# Policy `paper` on the Qwen presets against the paper's appendix E

Made by `python -m eerl_twin.appendix_e appendixE_normalized.csv`; do not edit. {seeds} simulated runs of each
configuration over the paper's horizon (from update 2 on); the paper has one run of each. Percent, and points of
percent.

- *beyond*: single runs that deviate by more than {TOLERANCE_PP:g} points, with the world's noise and without it.
- *paper's clocks*, *best*: what the paper's final clocks, and the best fixed ones within the limit, do in the twin.
- *unexplained*: after the lock a run saves what its own last clocks save when held fixed, times the share of updates
  that the governor does not have; this is the most by which any run differs from that.

| preset | quantity | paper | twin: mean ± sd | deviation | beyond | no noise | paper's clocks | best | unexplained |
|---|---|---|---|---|---|---|---|---|---|
"""
    lines = []
    for paper, found in rows:
        lines += [
            f"| {paper.preset} | {item.quantity} | {item.paper:.1f} | {item.mean:.1f} ± {item.sd:.1f} "
            f"| {item.deviation:+.1f} | {item.beyond} of {item.runs} | {item.silent_beyond} of {item.silent_runs} "
            f"| {item.fixed:.1f} | {item.best:.1f} | {_plain(item.unexplained)} |"
            for item in found
        ]
    everything = [item for _, found in rows for item in found]
    far = sum(abs(item.deviation) > TOLERANCE_PP for item in everything)
    return (
        f"{head}"
        + "\n".join(lines)
        + f"\n\nMean deviations beyond {TOLERANCE_PP:g} points: {far} of {len(everything)}.\n{CAUSES}"
    )


def _plain(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def main(argv: Sequence[str] | None = None) -> int:
    """Compare, print the page and write it where asked; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m eerl_twin.appendix_e", description=__doc__)
    parser.add_argument("table", type=Path, help="the paper's appendix E as CSV")
    parser.add_argument("--seeds", type=int, default=20, help="runs of each configuration (default 20)")
    parser.add_argument("--page", type=Path, help="write the page here too")
    options = parser.parse_args(argv)
    rows = [(paper, deviations(paper, options.seeds)) for paper in read(options.table)]
    text = as_markdown(rows, options.seeds)
    sys.stdout.write(text)
    if options.page:
        options.page.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
