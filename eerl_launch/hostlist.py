"""Slurm's compact node lists, expanded as ``scontrol show hostnames`` does it, without running it.

Containers and login nodes have no scontrol, and an answer from slurmctld can take seconds.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

#: Slurm's own limit for one bracket (MAX_RANGE in hostlist.c), and ours for a whole list.
MAX_NAMES = 65_536

_ITEM = re.compile(r"(?:[^\[\],\s]|\[[^\[\]]*\])+")
_NAME = re.compile(r"(?:[^\[\]]*\[[^\[\]]+\])+|[^\[\]]+")
_RANGE = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?")


class HostlistError(ValueError):
    """A list that Slurm would not have written; the text quotes the part at fault."""


def _bracket(text: str) -> list[str]:
    """The numbers of one bracket as text; a range keeps the width of its first number."""
    numbers: list[str] = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise HostlistError(f"not a range: {part!r} in [{text}]")
        first, last = match[1], match[2] or match[1]
        if int(last) < int(first) or int(last) - int(first) >= MAX_NAMES:
            raise HostlistError(f"not a range: {part!r} in [{text}]")
        numbers += [str(n).zfill(len(first)) for n in range(int(first), int(last) + 1)]
    return numbers


def _names(item: str) -> Iterator[str]:
    """The names of one item in Slurm's order: the last bracket runs fastest, then the first, the second…"""
    if not _NAME.fullmatch(item):
        raise HostlistError(f"not a node list: {item!r}")
    pieces = re.split(r"\[([^\[\]]*)\]", item)
    texts, brackets = pieces[0::2], [_bracket(piece) for piece in pieces[1::2]]
    if not brackets:
        yield item
        return
    *outer, inner = brackets
    for chosen in itertools.product(*reversed(outer), inner):
        numbers = [*reversed(chosen[:-1]), chosen[-1]]
        yield "".join(itertools.chain.from_iterable(itertools.zip_longest(texts, numbers, fillvalue="")))


def expand(hostlist: str) -> tuple[str, ...]:
    """Every node name of the list, order and repeats kept; :class:`HostlistError` when it is not one."""
    items = _ITEM.findall(hostlist)
    if re.sub(r"[,\s]", "", hostlist) != re.sub(r"[,\s]", "", "".join(items)):
        raise HostlistError(f"not a node list: {hostlist!r}")
    names = tuple(itertools.islice(itertools.chain.from_iterable(map(_names, items)), MAX_NAMES + 1))
    if len(names) > MAX_NAMES:
        raise HostlistError(f"more than {MAX_NAMES} names in {hostlist!r}")
    return names
