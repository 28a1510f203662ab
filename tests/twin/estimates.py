"""The report's estimate against the twin's truth: a run's records become a ledger, and the report reads that.

As a program, a table over many worlds: ``PYTHONPATH=tests python -m twin.estimates --runs 100 --updates 100 500``.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from report.ledgers import write_ledger

from eerl_controller import Controller, ExecutionMode, Settings
from eerl_launch.ledger import SCHEMA_VERSION, Event
from eerl_launch.report.estimate import estimate_saving
from eerl_launch.report.tables import read_run
from eerl_launch.update_lines import record_to_dict
from eerl_twin import draw, population, simulate
from eerl_twin.run import Run


@dataclass(frozen=True, slots=True)
class Judged:
    """A quantity of one run in percent: estimated with its 95 % limits, running at the end, and true."""

    estimate: float
    low: float
    high: float
    running: float
    truth: float

    @property
    def error(self) -> float:
        """Estimate minus truth, in points."""
        return self.estimate - self.truth

    @property
    def held(self) -> bool:
        """Whether the interval holds the truth."""
        return self.low <= self.truth <= self.high


def ledger_events(run: Run, controller: Controller, seen: Sequence[int]) -> Iterator[Event]:
    """The ledger that a session would have written of the updates it saw."""
    settings = controller.settings.to_dict()
    grid = {
        "supported_mhz": list(controller.grid.supported_mhz),
        "governor_mhz": controller.grid.governor_mhz,
    }
    yield {"ev": "start", "t_s": 0.0, "schema_version": SCHEMA_VERSION, "policy": {"policy": "eerl"}}
    yield {
        "ev": "controller",
        "t_s": 0.0,
        "settings": settings,
        "mode": controller.mode.value,
        "grid": grid,
        "seed": 0,
    }
    told: set[int] = set()
    end_s = 0.0
    for i in seen:
        record, plan = run.records[i], run.plans[i]
        begin_s, end_s = end_s, end_s + (record.elapsed_s or 0.0)
        if plan is not None and plan.plan_id not in told:
            told.add(plan.plan_id)
            yield {
                "ev": "plan",
                "t_s": begin_s,
                "plan_id": plan.plan_id,
                "generation_mhz": plan.generation_mhz,
                "training_mhz": plan.training_mhz,
                "idle_mhz": plan.idle_mhz,
                "reason": plan.reason.name,
            }
        state = run.states[i - 1] if i else None
        yield {
            "ev": "update",
            "t_s": end_s,
            "index": i,
            "begin_s": begin_s,
            "end_s": end_s,
            "state": state.name if state else "CALIBRATION",
            "plan_id": record.plan_id,
            "record": record_to_dict(record),
        }


def judge(
    folder: Path, mode: ExecutionMode, policy: str, updates: int, seed: int
) -> tuple[Judged, Judged] | None:
    """Energy saved and change of throughput of one population world; None when the report claims nothing."""
    world = population(seed, mode, horizon=updates)
    controller = Controller(Settings(policy=policy), mode, world.grid, seed)
    conditions = draw(world, updates, seed)
    run = simulate(world, controller, updates, seed, conditions=conditions)
    seen = [i for i in range(updates) if conditions.delay[i] >= 0]
    found = estimate_saving(read_run(write_ledger(folder, ledger_events(run, controller, seen))))
    truth, running, whole = run.totals(), controller.saving, found.intervals.get("whole")
    if whole is None or truth is None or running is None or running.energy_saving is None:
        return None
    limits = (
        whole.saving_low_percent,
        whole.saving_high_percent,
        whole.throughput_change_low_percent,
        whole.throughput_change_high_percent,
    )
    low_j, high_j, low_s, high_s = (math.nan if value is None else value for value in limits)
    saving, change = 100.0 * truth.energy_saving, 100.0 * truth.throughput_change
    return (
        Judged(whole.saving_percent, low_j, high_j, 100.0 * running.energy_saving, saving),
        Judged(whole.throughput_percent, low_s, high_s, 100.0 * running.throughput_change, change),
    )


def row(judged: Sequence[Judged]) -> str:
    """Bias, root mean square error, coverage and mean half width, in points."""
    errors = [item.error for item in judged]
    half = fmean((item.high - item.low) / 2.0 for item in judged)
    return (
        f"{fmean(errors):+.2f} | {math.sqrt(fmean(error**2 for error in errors)):.2f} "
        f"| {100.0 * fmean(item.held for item in judged):.0f} % | ±{half:.2f}"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--updates", type=int, nargs="+", default=[100, 500])
    parser.add_argument("--policies", nargs="+", default=["paper", "eerl"])
    parser.add_argument("--modes", nargs="+", default=[mode.value for mode in ExecutionMode])
    asked = parser.parse_args()
    columns = ["mode", "policy", "updates", "runs"]
    columns += [
        f"{name}{what}" for name in ("energy: ", "throughput: ") for what in ("bias", "rmse", "held", "width")
    ]
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}", flush=True)
    with tempfile.TemporaryDirectory() as place:
        for updates in asked.updates:
            for mode in (ExecutionMode(name) for name in asked.modes):
                for policy in asked.policies:
                    seeds = range(asked.first_seed, asked.first_seed + asked.runs)
                    found = [
                        judge(
                            Path(place) / f"{mode.value}-{policy}-{updates}-{seed}",
                            mode,
                            policy,
                            updates,
                            seed,
                        )
                        for seed in seeds
                    ]
                    known = [pair for pair in found if pair is not None]
                    energy, throughput = [pair[0] for pair in known], [pair[1] for pair in known]
                    head = f"| {mode.value} | {policy} | {updates} | {len(known)} "
                    print(f"{head}| {row(energy)} | {row(throughput)} |", flush=True)


if __name__ == "__main__":
    main()
