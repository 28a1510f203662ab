"""Token counts, exact or unknown, from what frameworks hand around; no framework is imported for it.

Masks are tensors or arrays of any library: what is used here (slices, ``!=``, ``&``, ``sum``, ``tolist``) they all
have. Elements are counted, never summed as floats: a float32 loses ones beyond 16.7 million.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Counted:
    """Tokens of some responses; ``longest`` in tokens. ``lengths`` has those that were counted one by one."""

    tokens: int = 0
    longest: int = 0
    responses: int = 0
    lengths: tuple[int, ...] = field(default=(), compare=False)

    def __add__(self, other: Counted) -> Counted:
        return Counted(
            self.tokens + other.tokens,
            max(self.longest, other.longest),
            self.responses + other.responses,
            self.lengths + other.lengths,
        )

    @classmethod
    def of(cls, lengths: Iterable[int]) -> Counted:
        """Responses of these lengths."""
        known = [int(length) for length in lengths]
        return cls(sum(known), max(known, default=0), len(known), tuple(known))

    @property
    def all_lengths(self) -> tuple[int, ...]:
        """The length of every response; empty when not all of them are known."""
        return self.lengths if len(self.lengths) == self.responses else ()

    def generated(self) -> dict[str, int]:
        """The counts as the end of generation tells them."""
        return {"generated_tokens": self.tokens, "longest_response_tokens": self.longest}


def masked(mask: Any, rows: Any = None) -> Counted:
    """Responses from a (responses, tokens) mask whose non-zero elements count; ``rows``: a weight for each."""
    counting = mask != 0
    if rows is not None:
        counting = counting & (rows != 0)[:, None]
    per_row = counting.sum(-1)
    lengths = tuple(int(length) for length in per_row.tolist() if length)
    return Counted(int(counting.sum()), max(lengths, default=0), len(lengths), lengths)


def whole(value: float, off_by: float) -> int | None:
    """``value`` as the whole number it must be, None when its error ``off_by`` could make it another one."""
    nearest = round(value)
    return nearest if abs(value - nearest) + off_by < 0.5 else None


def setting(config: Any, *names: str) -> Any:
    """What a configuration says under ``names``: dicts, OmegaConf, pydantic and namespaces; None when nothing."""
    for name in names:
        if config is None:
            return None
        if isinstance(config, Mapping):
            config = config.get(name)
        else:
            below = getattr(config, name, None)
            if below is None and hasattr(config, "get"):
                below = config.get(name)
            config = below
    return config
