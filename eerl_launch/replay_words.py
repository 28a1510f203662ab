"""What ``eerl replay`` says of another policy on a ledger, and of a modelled workload: as text and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from eerl_launch.modelled_run import Modelled
from eerl_launch.report import units
from eerl_launch.what_if import Sums, WhatIf
from eerl_twin import Totals

Plans = Sequence[tuple[int | None, Mapping[str, Any]]]


def plan_lines(plans: Plans) -> list[str]:
    """One line for each change of plan."""
    lines = []
    for after, plan in plans:
        clocks = [f"{plan[key] or 'governor'}" for key in ("generation_mhz", "training_mhz")]
        when = "at the start" if after is None else f"after update {after}"
        lines.append(
            f"{when:<18} {plan['state'].lower():<13} generation {clocks[0]:>8}, training {clocks[1]:>8}"
            f"  {plan['reason'].lower()}"
        )
    return lines


def _percents(saving: float | None, change: float | None) -> str:
    return (
        f"energy saved {units.plain(None if saving is None else 100 * saving, 1)} % per valid training token, "
        f"throughput {units.signed_percent(None if change is None else 100 * change)}"
    )


def what_if_lines(result: WhatIf, policy: str) -> list[str]:
    """The plans, then what can be said of their outcome and what that rests on."""
    compared = result.measured + result.estimated
    lines = [*plan_lines(result.plans), ""]
    if result.simulated:
        lines.insert(0, f"SIMULATED GPUs ({result.simulated}): no number here is of real hardware")
    if result.stopped is not None:
        lines.append(
            f"Nothing in this ledger tells what comes next ({result.stopped}): "
            f"ended after {result.updates} of {result.recorded_updates} updates."
        )
    if not compared:
        return [*lines, "No estimate: no update could be compared."]
    for name, sums in ((policy, result.would_be), ("as recorded", result.recorded)):
        lines.append(
            f"{name:<12} {_percents(result.saving(sums), result.throughput_change(sums))}  (ESTIMATE)"
        )
    lines.append(
        f"Estimate over {compared} updates: {result.measured} ran under these very clocks and stand as measured, "
        f"{result.estimated} are moved to them by what clocks did in {result.learnt_from} updates of this run."
    )
    if result.extrapolated:
        lines.append(f"{result.extrapolated} of them lie below every clock that was recorded: extrapolated.")
    if result.idle_unknown:
        lines.append(
            f"{result.idle_unknown} would have an idle clock, of which the run has no example: not counted."
        )
    if result.left_out:
        lines.append(f"{result.left_out} updates are left out: clocks, phases or energy not known.")
    return lines


def what_if_document(result: WhatIf, policy: str) -> dict[str, Any]:
    """The same, as JSON values with their units."""

    def outcome(sums: Sums) -> dict[str, Any]:
        saving, change = result.saving(sums), result.throughput_change(sums)
        return {
            **asdict(sums),
            "saving_percent": None if saving is None else 100 * saving,
            "throughput_change_percent": None if change is None else 100 * change,
        }

    return {
        "policy": policy,
        "estimated": True,
        "simulated": result.simulated,
        "plans": [{"after_update": after, **plan} for after, plan in result.plans],
        "would_be": outcome(result.would_be),
        "recorded": outcome(result.recorded),
        "governor": outcome(result.governor),
        "updates": result.updates,
        "recorded_updates": result.recorded_updates,
        "passed_over": result.passed_over,
        "measured_updates": result.measured,
        "estimated_updates": result.estimated,
        "extrapolated_updates": result.extrapolated,
        "idle_unknown_updates": result.idle_unknown,
        "left_out_updates": result.left_out,
        "learnt_from_updates": result.learnt_from,
        "stopped": result.stopped,
    }


def _stretches(made: Modelled) -> dict[str, tuple[int, Totals]]:
    """First update and truth of the whole run, and of both sides of the first lock."""
    run = made.run
    parts: dict[str, tuple[int, int | None]] = {"whole run": (0, None)}
    if run.lock_update:
        parts.update({"before the lock": (0, run.lock_update), "after the lock": (run.lock_update, None)})
    found = {name: (first, run.totals(first, last)) for name, (first, last) in parts.items()}
    return {name: (first, totals) for name, (first, totals) in found.items() if totals is not None}


def _clocks(made: Modelled, first: int, updates: int) -> tuple[int, str]:
    """How many of these updates ran under lowered clocks, and the clocks if they were the same all along."""
    plans = [plan for plan in made.run.plans[first : first + updates] if plan is not None]
    pairs = {(plan.generation_mhz, plan.training_mhz) for plan in plans}
    lowered = sum(not plan.is_governor for plan in plans)
    if len(pairs) != 1:
        return lowered, "varies"
    return lowered, "/".join("governor" if mhz is None else f"{mhz:,}" for mhz in pairs.pop())


def modelled_lines(made: Modelled) -> list[str]:
    """A summary like a run's own, from the truth of the simulation."""
    run, parts = made.run, _stretches(made)
    elapsed_s, energy_j = sum(run.elapsed_s), sum(run.energy_j)
    _, whole = parts["whole run"]
    gpus = run.world.generation_gpus
    if run.world.mode.value != "colocated_sync":
        gpus += run.world.training_gpus
    lines = [
        f"SIMULATED ({made.name}, seed {run.seed}, policy {made.policy}): no number here is of real hardware",
        f"The workload is {made.about}.",
        f"{units.energy_kwh(energy_j)} ({units.energy_j(energy_j)}) in {units.duration(elapsed_s)}, "
        f"mean {units.power(energy_j / elapsed_s)}, {gpus} GPUs, {len(run.elapsed_s)} updates, "
        f"{made.state.value} at the end",
        f"Energy saved  {units.plain(100 * whole.energy_saving, 1)} % per valid training token, "
        f"{units.energy_kwh(sum(run.governor_energy_j) - energy_j)}",
        f"Throughput    {units.signed_percent(100 * whole.throughput_change)} valid training tokens/s",
        "",
        f"{'':<16} {'updates':>9} {'lowered':>8} {'gen/train MHz':>18} {'saving %':>9} {'throughput %':>13}",
    ]
    for name, (first, totals) in parts.items():
        lowered, clocks = _clocks(made, first, totals.updates)
        lines.append(
            f"{name:<16} {f'{first + 1}–{first + totals.updates}':>9} {lowered:>8} {clocks:>18} "
            f"{units.plain(100 * totals.energy_saving, 1):>9} {units.signed(100 * totals.throughput_change):>13}"
        )
    best = made.best
    fixed = [units.clock(mhz) for mhz in (best.generation_mhz, best.training_mhz)]
    lines += ["", f"Best fixed clocks in hindsight: {fixed[0]} and {fixed[1]}, "]
    lines[-1] += _percents(best.energy_saving, best.throughput_change)
    if made.claimed is not None:
        claimed = _percents(made.claimed.energy_saving, made.claimed.throughput_change)
        lines.append(f"What the controller believed at the end: {claimed}")
    if made.extrapolated and made.lowest_mhz is not None:
        lowest = " and ".join(units.clock(mhz) for mhz in made.lowest_mhz)
        lines.append(
            f"{made.extrapolated} updates ran below the lowest clocks that the paper measured here ({lowest}): "
            "what the model says of them is EXTRAPOLATED."
        )
    return lines


def modelled_document(made: Modelled) -> dict[str, Any]:
    """The same, as JSON values with their units."""
    run = made.run
    return {
        "simulated": made.name,
        "about": made.about,
        "seed": run.seed,
        "policy": made.policy,
        "mode": run.world.mode.value,
        "state": made.state.value,
        "elapsed_s": sum(run.elapsed_s),
        "energy_j": sum(run.energy_j),
        "governor_elapsed_s": sum(run.governor_elapsed_s),
        "governor_energy_j": sum(run.governor_energy_j),
        "intervals": {
            name.replace(" ", "_"): {
                "first_update": first + 1,
                "updates": totals.updates,
                "lowered_updates": _clocks(made, first, totals.updates)[0],
                "saving_percent": 100 * totals.energy_saving,
                "throughput_change_percent": 100 * totals.throughput_change,
            }
            for name, (first, totals) in _stretches(made).items()
        },
        "best_fixed": asdict(made.best),
        "claimed": None if made.claimed is None else asdict(made.claimed),
        "clock_changes": run.clock_changes,
        "extrapolated_updates": made.extrapolated,
        "lowest_calibrated_mhz": None if made.lowest_mhz is None else list(made.lowest_mhz),
    }
