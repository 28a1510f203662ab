"""What the references tell beyond predictions: reachable clocks, phase shares, and whether the governor changed."""

from __future__ import annotations

import math
from statistics import fmean, median

from eerl_controller.governor import GovernorModel
from eerl_controller.quantity import QuantityModel
from eerl_controller.records import ClockGrid
from eerl_controller.references import References
from eerl_controller.rounds import Shares
from eerl_controller.work import GENERATION_PHASES, TRAINING_PHASES

#: An achieved clock this near the governor's is the governor's: the mean over busy samples has edges in it.
REACHED = 0.97


def ceilings_mhz(model: GovernorModel, grid: ClockGrid) -> tuple[float, float]:
    """The clock in MHz that the governor really reaches in generation and in training.

    Under a power cap that is less than it asks for; settings above it are all the same setting (field case C01).
    """
    found = []
    for name in ("generation_achieved_mhz", "training_achieved_mhz"):
        seen = [getattr(item, name) for item in model.references if getattr(item, name)]
        reached = median(seen) if seen else float(grid.governor_mhz)
        near = reached >= REACHED * grid.governor_mhz
        found.append(float(grid.governor_mhz) if near else reached)
    return found[0], found[1]


def _share(quantity: QuantityModel | None, model: GovernorModel, names: tuple[str, ...]) -> float:
    """Fitted phases' part of the references' predicted total; a half when phases are unknown."""
    if quantity is None or not set(quantity.terms) & {*GENERATION_PHASES, *TRAINING_PHASES}:
        return 0.5
    counts = [item.counts for item in model.references]
    total = sum(quantity.total(row) for row in counts)
    own = sum(quantity.terms[name].predict(row) for name in names if name in quantity.terms for row in counts)
    return own / total


def phase_shares(model: GovernorModel) -> Shares:
    """Each clock's phases as a share of the governor's update time and energy."""
    return Shares(
        generation_time=_share(model.time, model, GENERATION_PHASES),
        training_time=_share(model.time, model, TRAINING_PHASES),
        generation_energy=_share(model.energy, model, GENERATION_PHASES),
        training_energy=_share(model.energy, model, TRAINING_PHASES),
    )


def pool_shares(model: GovernorModel) -> Shares:
    """Each pool's busy phases as a share of the energy of overlapping updates; a half where it is not known.

    Their time is the update's own: how much of it shows is not a matter of shares.
    """
    shares = []
    for names in (GENERATION_PHASES, TRAINING_PHASES):
        found = []
        for item in model.references:
            joules = [item.phases[name][1] for name in names if name in item.phases]
            known = [value for value in joules if value is not None]
            if known and len(known) == len(joules) and item.energy_j:
                found.append(min(sum(known) / item.energy_j, 1.0))
        shares.append(median(found) if found else 0.5)
    return Shares(1.0, 1.0, shares[0], shares[1])


def has_shifted(references: References, fresh: int, allowed: float) -> str:
    """How the freshest governor updates contradict the older ones at equal work, in words; empty if they do not.

    A contradiction is a mean time or energy off by more than the allowed loss (1 % at least) and by more than
    three standard errors, on work that the older references cover.
    """
    old = references.before_last(fresh)
    if old is None:
        return ""
    latest = [item for item in references.items[-fresh:] if old.covers(item.counts)]
    if len(latest) < (fresh + 1) // 2:
        return ""
    for name, quantity, values in (
        ("time", old.time, [item.elapsed_s for item in latest]),
        ("energy", old.energy, [item.energy_j for item in latest]),
    ):
        if quantity is None or any(value is None for value in values):
            continue
        logs = [
            math.log(value / quantity.total(item.counts))
            for value, item in zip(values, latest, strict=True)
            if value is not None
        ]
        error = quantity.residual_sd * math.sqrt(1.0 / len(logs) + 1.0 / len(old.references))
        off = median(logs)
        if abs(off) > max(allowed, 0.01, 3.0 * error):
            return f"{name} {100 * (math.exp(fmean(logs)) - 1):+.1f} % against its own earlier updates at equal work"
    return ""
