"""Whether runs may be set against each other: same mode, GPUs, batch, real or simulated, and enough updates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations

from eerl_launch.evidence.runs import EvidenceError, RunData, same_folder, same_run
from eerl_launch.report.values import number, table

#: Common updates below which a comparison is an accident.
LEAST_UPDATES = 20
#: Updates at a run's beginning by which batches are told apart when the trainer does not say its responses.
BATCH_UPDATES = 20
#: Tokens of an update drift apart by less than this while the batch is the same.
BATCH_FACTOR = 1.5
#: A simulated update that takes less of the machine's own time than this is longer or shorter by more than 1 % as the
#: machine is loaded: on two busy cores updates of one seed differed by 3 ms, at any time scale.
LEAST_REAL_S = 0.3


@dataclass(frozen=True, slots=True)
class Configuration:
    """What runs must share to be compared."""

    simulated: bool
    mode: str
    gpus: tuple[tuple[str, int], ...]
    pools: tuple[tuple[str, int], ...]

    @property
    def words(self) -> str:
        """The configuration in one line."""
        gpus = ", ".join(f"{count} × {name}" for name, count in self.gpus) or "no GPU known"
        pools = "/".join(str(count) for _, count in self.pools)
        return f"{self.mode}, {gpus}{f' ({pools})' if pools else ''}"


def configuration(data: RunData) -> Configuration:
    """The configuration of a run."""
    run = data.run
    names = Counter(gpu.name or "unknown GPU" for gpu in run.gpus.values())
    return Configuration(
        simulated=run.simulated is not None,
        mode=run.mode or "colocated_sync",
        gpus=tuple(sorted(names.items())),
        pools=tuple(sorted((role, len(members)) for role, members in run.pools.items())),
    )


def check_comparable(runs: Sequence[RunData], least_updates: int = LEAST_UPDATES) -> Configuration:
    """The configuration that the runs share.

    Raises :class:`EvidenceError` with every reason why they cannot be compared, one a line.
    """
    faults = [
        f"{one.folder} and {other.folder}: {reason}"
        for one, other in combinations(runs, 2)
        if same_folder(one.folder, other.folder) or same_run(one.run, other.run)
        for reason in ["the same run, given twice"]
    ]
    first = runs[0]
    for other in runs[1:]:
        faults += [f"{first.name} and {other.name}: {reason}" for reason in differences(first, other)]
    for data in runs:
        usable = int(data.frame["usable"].sum())
        if usable < least_updates:
            why = data.frame["reason"].value_counts()
            words = f" ({why.index[0]})" if len(why) else ""
            faults.append(f"{data.name}: too few usable updates: {usable}, {least_updates} are needed{words}")
    if faults:
        raise EvidenceError("these runs cannot be compared:\n" + "\n".join(f"  {fault}" for fault in faults))
    return configuration(first)


def differences(one: RunData, other: RunData) -> list[str]:
    """Why two runs are not of the same configuration; empty when they are."""
    left, right = configuration(one), configuration(other)
    found = []
    if left.simulated != right.simulated:
        real, simulated = (other, one) if left.simulated else (one, other)
        found.append(f"simulated against real ({simulated.name} is simulated, {real.name} is not)")
    if left.mode != right.mode:
        found.append(f"other execution mode ({left.mode} and {right.mode})")
    if left.gpus != right.gpus:
        found.append(f"other GPUs ({_gpus(left)} and {_gpus(right)})")
    elif left.pools != right.pools:
        found.append(f"other pools ({dict(left.pools)} and {dict(right.pools)})")
    batch = _batches(one, other)
    if batch is not None:
        found.append(batch)
    return found


def _gpus(found: Configuration) -> str:
    return ", ".join(f"{count} × {name}" for name, count in found.gpus) or "none known"


def _batches(one: RunData, other: RunData) -> str | None:
    """How the batches differ, by the responses that the trainer tells, else by the tokens of the first updates."""
    responses = [data.frame["responses"].dropna().median() for data in (one, other)]
    if all(value > 0 for value in responses):
        if abs(responses[0] / responses[1] - 1.0) > 0.01:
            return f"other batch ({responses[0]:.0f} and {responses[1]:.0f} responses by update)"
        return None
    tokens = [data.frame["valid_tokens"].head(BATCH_UPDATES).dropna().median() for data in (one, other)]
    if all(value > 0 for value in tokens) and not 1 / BATCH_FACTOR < tokens[0] / tokens[1] < BATCH_FACTOR:
        return (
            f"other batch, by their tokens ({tokens[0]:,.0f} and {tokens[1]:,.0f} valid tokens by update at the "
            f"beginning; the trainer does not tell its responses)"
        )
    return None


def notes(runs: Sequence[RunData]) -> list[str]:
    """What does not forbid a comparison and should be known with it."""
    found = [f"{data.name}: {problem}" for data in runs for problem in data.problems]
    found += [
        f"{data.name}: its policy is {data.policy}, but no clock was ever lowered: it counts as a governor run"
        for data in runs
        if data.is_governor and data.policy != "governor"
    ]
    found += [note for data in runs if (note := _hurried(data)) is not None]
    aspects: tuple[tuple[str, Callable[[RunData], object]], ...] = (
        ("eerl versions", lambda data: table(data.run.start.get("versions")).get("eerl")),
        ("frameworks", lambda data: data.run.trainer.get("framework")),
        ("drivers", lambda data: next((node.driver for node in data.run.nodes.values()), None)),
        ("time scales", lambda data: data.run.start.get("time_scale")),
    )
    for name, aspect in aspects:
        values = list(dict.fromkeys(str(aspect(data)) for data in runs))
        if len(values) > 1:
            found.append(f"the runs differ in their {name}: {', '.join(values)}")
    return found


def _hurried(data: RunData) -> str | None:
    """What a simulated run's time scale does to its times, where it does."""
    scale, usual_s = number(data.run.start.get("time_scale")), float(data.frame["elapsed_s"].median())
    if data.run.simulated is None or not scale or not usual_s / scale < LEAST_REAL_S:
        return None
    cure = max(1.0, usual_s // LEAST_REAL_S)
    return (
        f"{data.name}: simulated {scale:g} times as fast as real, an update took {usual_s / scale:.2f} s here, and "
        f"times differ by more than 1 % with this machine's load; --time-scale {cure:.0f} keeps them closer"
    )
