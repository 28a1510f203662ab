"""Which GPUs have which role: what the trainer says with ``pool`` events, or the policy's ``pools:``. No I/O.

GPUs are known by UUID only (field cases N18, N19): indices of Slurm, NVML and CUDA all differ, so an index counts
only where it is written as ``node:index`` in the policy and means NVML's index on that node.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from eerl_launch.hostlist import HostlistError, expand

ROLES = ("generation", "training")
#: The one pool of a colocated job, and the name of "every GPU" in clock orders.
ALL = "all"

#: NVML index → UUID, by node.
Inventory = Mapping[str, Mapping[int, str]]

_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
_NAMED = 4


class PoolError(ValueError):
    """Pools that cannot be meant; the text names what was seen and the cure."""


def _some(names: Iterable[str]) -> str:
    ordered = sorted(names)
    return ", ".join(ordered[:_NAMED]) + (", …" if len(ordered) > _NAMED else "")


def _indices(text: str, known: Mapping[int, str]) -> list[int]:
    """The indices that ``0-3,5`` or ``*`` means on a node."""
    if text == "*":
        return sorted(known)
    found: list[int] = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise PoolError(f"not GPU indices: {text!r}; write 0-3, 0,2 or *")
        first, last = int(match[1]), int(match[2] or match[1])
        found += range(first, last + 1)
    return found


def resolve(entries: Sequence[str], inventory: Inventory) -> frozenset[str]:
    """UUIDs of ``node:gpu`` ranges and UUIDs. Raises :class:`PoolError` for what the job does not have."""
    members: set[str] = set()
    for entry in entries:
        if ":" not in entry:
            members.add(entry)
            continue
        hosts, _, indices = entry.rpartition(":")
        try:
            names = expand(hosts)
        except HostlistError as error:
            raise PoolError(f"pools entry {entry!r}: {error}") from error
        for name in names:
            known = inventory.get(name)
            if known is None:
                raise PoolError(f"pools entry {entry!r}: the job has no node {name} with GPUs")
            for index in _indices(indices, known):
                if index not in known:
                    raise PoolError(f"pools entry {entry!r}: node {name} has no GPU {index} of this job")
                members.add(known[index])
    return frozenset(members)


@dataclass(slots=True)
class Pools:
    """GPUs by role. ``problem`` says why clocks cannot be set by pool; None when they can."""

    policy: Mapping[str, Sequence[str] | None] = field(default_factory=dict)
    told: dict[str, set[str]] = field(default_factory=dict)
    members: dict[str, frozenset[str]] = field(default_factory=dict)
    problem: str | None = "the GPUs of the job are not known yet"
    #: Whether the problem is a contradiction, rather than something still to be told.
    contradiction: bool = False

    def tell(self, role: object, gpus: object) -> None:
        """A ``pool`` event of the trainer; events of one role add up, so that each rank may name its own."""
        if isinstance(role, str) and isinstance(gpus, list):
            self.told.setdefault(role, set()).update(str(uuid) for uuid in gpus)

    def settle(self, inventory: Inventory) -> bool:
        """Work out the pools on the GPUs that the job has; whether they are others than before."""
        before = dict(self.members)
        self.problem, self.contradiction = None, False
        try:
            self.members = self._settled(inventory)
        except PoolError as error:
            self.problem, self.contradiction, self.members = str(error), True, {}
        else:
            missing = [role for role in ROLES if role not in self.members]
            if missing:
                self.problem = (
                    f"nobody said which GPUs do {' and '.join(missing)}; send `pool` events "
                    "(mark.pool) or set `pools:` in the policy"
                )
                self.members = {}
        return self.members != before

    def _settled(self, inventory: Inventory) -> dict[str, frozenset[str]]:
        found: dict[str, frozenset[str]] = {}
        for role in ROLES:
            entries = self.policy.get(role)
            told = frozenset(self.told.get(role, ()))
            members = resolve(entries, inventory) if entries else told
            if entries and not told <= members:  # fewer: each rank tells its own, one after another
                raise PoolError(
                    f"the trainer does {role} on GPUs that are not in the policy's {role} pool: "
                    f"{_some(told - members)}; mend `pools:` in the policy or leave it to the trainer"
                )
            if members:
                found[role] = members
        job = {uuid for node in inventory.values() for uuid in node.values()}
        for role, members in found.items():
            if members - job:
                raise PoolError(
                    f"the {role} pool names GPUs that are not the job's or not measured: "
                    f"{_some(members - job)}"
                )
        both = found.get(ROLES[0], frozenset()) & found.get(ROLES[1], frozenset())
        if both:
            raise PoolError(f"GPUs in both pools: {_some(both)}; a GPU that does both is `colocated_sync`")
        return found

    def of(self, uuid: str) -> str | None:
        """The role of a GPU, None for one that has none."""
        return next((role for role, members in self.members.items() if uuid in members), None)
