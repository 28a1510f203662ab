"""From a record to evidence: what an update did, net of what is not an update's own work, or why it is unusable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from eerl_controller.records import UpdateRecord

#: Phases whose time follows the generation clock (contract 3.7) and whose work is G and L (paper, section 5.1).
GENERATION_PHASES = ("generation",)
#: Phases that run under the training clock; their work is N. A PPO critic is one of them. A reward model on GPUs is
#: not: it keeps the clock in force (with separate pools, its pool's own) and counts in the rest of the update.
TRAINING_PHASES = ("critic", "logprob", "training")
#: Phases that do not belong to an update's own work: taken out before anything is compared (field case R01).
VISITING_PHASES = ("checkpoint", "validation")


#: The valid tokens of the update before, among an update's counts: in-flight, what was generated while those were
#: trained on is not waited for (appendix E).
BEFORE = "before"
#: Seconds or joules below this (a thousandth) are not a measurement of anything an update does.
LEAST = 1e-3
#: More updates than that are not lost on the way, but numbered anew: a reference is measured again after as many
#: (``Settings.reference_max_age_updates``), and nothing is known across them.
LONGEST_GAP = 500
#: An arrival may pass the update's end, and a busy share its whole, by this much: samples have edges.
ARRIVAL_SLACK = 1.01
ARRIVAL_SLACK_S = 0.1


class Unusable(Enum):
    """Why an update is not evidence for any decision. It still counts in the totals."""

    MIXED_PLANS = "mixed_plans"
    NO_ELAPSED = "no_elapsed"
    MISSING_COUNTS = "missing_counts"
    ZERO_TOKENS = "zero_tokens"
    HARDWARE_SLOWDOWN = "hardware_slowdown"
    NOT_HONOURED = "not_honoured"
    OPERATOR_HOLD = "operator_hold"
    VISITOR_NOT_SEPARATE = "visitor_not_separate"


@dataclass(frozen=True, slots=True)
class Observation:
    """One update's own work: token counts, seconds and joules without validation and checkpoint.

    ``phases`` maps a phase (subphases summed into it) to seconds and joules or None.
    """

    elapsed_s: float
    energy_j: float | None
    phases: Mapping[str, tuple[float, float | None]]
    counts: Mapping[str, float]
    generation_achieved_mhz: float | None = None
    training_achieved_mhz: float | None = None
    #: Seconds to the rendezvous by pool, generation first; None when unknown, impossible, or moved by a visitor.
    arrivals_s: tuple[float, float] | None = None
    #: Share of the update in which each pool was busy, generation first; None when unknown.
    busy: tuple[float, float] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON; :meth:`from_dict` reads it back exactly."""
        return {
            "elapsed_s": self.elapsed_s,
            "energy_j": self.energy_j,
            "phases": {name: list(values) for name, values in self.phases.items()},
            "counts": dict(self.counts),
            "generation_achieved_mhz": self.generation_achieved_mhz,
            "training_achieved_mhz": self.training_achieved_mhz,
            "arrivals_s": list(self.arrivals_s) if self.arrivals_s else None,
            "busy": list(self.busy) if self.busy else None,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Observation:
        """What :meth:`to_dict` wrote."""
        return cls(
            elapsed_s=values["elapsed_s"],
            energy_j=values["energy_j"],
            phases={name: (pair[0], pair[1]) for name, pair in values["phases"].items()},
            counts=dict(values["counts"]),
            generation_achieved_mhz=values["generation_achieved_mhz"],
            training_achieved_mhz=values["training_achieved_mhz"],
            arrivals_s=_two(values["arrivals_s"]),
            busy=_two(values["busy"]),
        )


def _two(values: Sequence[float] | None) -> tuple[float, float] | None:
    return (values[0], values[1]) if values else None


def phase_totals(record: UpdateRecord) -> dict[str, tuple[float, float | None]]:
    """Seconds and joules by phase, ``a/b`` summed into ``a``; joules None when any part is unknown.

    A part of unknown length counts for nothing: its time stays in the update's remainder.
    """
    totals: dict[str, tuple[float, float | None]] = {}
    phases = record.phases
    for full_name in sorted(phases):
        part = phases[full_name]
        if part.elapsed_s is None:
            continue
        joules = None if part.energy_j is None else float(part.energy_j)
        name = full_name.split("/", 1)[0]
        if name in totals:
            elapsed_s, energy_j = totals[name]
            both_j = None if energy_j is None or joules is None else energy_j + joules
            totals[name] = (elapsed_s + float(part.elapsed_s), both_j)
        else:
            totals[name] = (float(part.elapsed_s), joules)
    return totals


def visitors(record: UpdateRecord) -> tuple[float, float]:
    """Seconds and joules of validation and checkpoint in this update (unknown joules as 0)."""
    if not any(name.startswith(VISITING_PHASES) for name in record.phases):
        return 0.0, 0.0
    totals = phase_totals(record)
    present = [totals[name] for name in VISITING_PHASES if name in totals]
    return sum(seconds for seconds, _ in present), sum(joules or 0.0 for _, joules in present)


def lost_between(previous: int | None, update: int) -> int:
    """Updates of which no record came between two numbers. A jump beyond :data:`LONGEST_GAP`, or back, loses none."""
    missing = max(update - previous - 1, 0) if previous is not None else 0
    return missing if missing <= LONGEST_GAP else 0


def valid_before(record: UpdateRecord, previous: UpdateRecord | None) -> int | None:
    """The valid tokens of the update before this one; None unless it is ``previous``."""
    follows = previous is not None and previous.update == record.update - 1
    return previous.valid_tokens or None if previous is not None and follows else None


def counts_of(record: UpdateRecord, before: int | None = None) -> dict[str, float]:
    """The known token counts: ``generated`` (G), ``longest`` (L), ``valid`` (N), ``longest_consumed``.

    ``before`` are the valid tokens of the update before, where they are known.
    """
    longest = record.longest_generated_tokens
    if longest is None:
        longest = record.longest_consumed_tokens
    known = {
        BEFORE: before,
        "generated": record.generated_tokens,
        "longest": longest,
        "valid": record.valid_tokens,
        "longest_consumed": record.longest_consumed_tokens,
    }
    return {name: float(value) for name, value in known.items() if value is not None}


def unusable_reason(record: UpdateRecord) -> Unusable | None:
    """Why this update cannot be evidence, or None when it can (its energy may still be unknown)."""
    for flag, reason in (
        ("operator_hold", Unusable.OPERATOR_HOLD),
        ("not_honoured", Unusable.NOT_HONOURED),
        ("hardware_slowdown", Unusable.HARDWARE_SLOWDOWN),
    ):
        if flag in record.flags:
            return reason
    if record.plan_id is None:
        return Unusable.MIXED_PLANS
    if record.elapsed_s is None or record.elapsed_s < LEAST:
        return Unusable.NO_ELAPSED
    if record.valid_tokens is None:
        return Unusable.MISSING_COUNTS
    if record.valid_tokens == 0 or record.generated_tokens == 0:
        return Unusable.ZERO_TOKENS
    totals = phase_totals(record)
    for name in VISITING_PHASES:
        if name in record.flags and name not in totals:
            return Unusable.VISITOR_NOT_SEPARATE
    seconds, _ = visitors(record)
    return Unusable.VISITOR_NOT_SEPARATE if record.elapsed_s - seconds < LEAST else None


def arrivals_of(record: UpdateRecord) -> tuple[float, float] | None:
    """Seconds to the rendezvous by pool, generation first; None when unknown or when they cannot be true.

    The later arrival is before the update's end (1 % and 0.1 s for the edges of sampling), and a pool that does
    its work takes time for it. Validation or a checkpoint may lie before or after the rendezvous, so arrivals of
    such an update say nothing about its own work.
    """
    generation_s, training_s = record.generation_arrival_s, record.training_arrival_s
    if generation_s is None or training_s is None or record.elapsed_s is None:
        return None
    too_late = max(generation_s, training_s) > ARRIVAL_SLACK * record.elapsed_s + ARRIVAL_SLACK_S
    if too_late or min(generation_s, training_s) < LEAST or visitors(record)[0] > 0.0:
        return None
    return float(generation_s), float(training_s)


def busy_of(record: UpdateRecord) -> tuple[float, float] | None:
    """The share of the update in which each pool was busy, generation first, from 0 to 1; None when unknown."""
    shares = []
    for name in ("generation", "training"):
        share = getattr(record, f"{name}_busy_fraction")
        pool = record.pools.get(name)
        if share is None and pool is not None and pool.busy_s is not None and record.elapsed_s:
            share = pool.busy_s / record.elapsed_s
        if share is None or share > ARRIVAL_SLACK:
            return None
        shares.append(min(float(share), 1.0))
    return shares[0], shares[1]


def observe_work(record: UpdateRecord, before: int | None = None) -> Observation:
    """The update's own work. Only for a record for which :func:`unusable_reason` is None.

    ``before`` are the valid tokens of the update before, where they are known.
    """
    assert record.elapsed_s is not None, "an unusable record has no work to observe"
    totals = phase_totals(record)
    visit_s, visit_j = visitors(record)
    partial = "partial_energy" in record.flags
    visit_unknown = any(name in totals and totals[name][1] is None for name in VISITING_PHASES)
    energy_j = (
        None if partial or visit_unknown or record.energy_j is None else float(record.energy_j) - visit_j
    )
    if energy_j is not None and energy_j < LEAST:
        energy_j = None
    own = {
        name: (seconds, None if energy_j is None else joules)
        for name, (seconds, joules) in totals.items()
        if name not in VISITING_PHASES
    }
    counts = counts_of(record, before)
    generation, training = record.pools.get("generation"), record.pools.get("training")
    return Observation(
        elapsed_s=float(record.elapsed_s) - visit_s,
        energy_j=energy_j,
        phases=own,
        counts=counts,
        generation_achieved_mhz=generation.achieved_mhz if generation else None,
        training_achieved_mhz=training.achieved_mhz if training else None,
        arrivals_s=arrivals_of(record),
        busy=busy_of(record),
    )
