"""What the stub engine generates, without chance: lengths of responses and how much of each an environment wrote."""

from __future__ import annotations

PROMPTS, EACH = 4, 3


def length(step: int, row: int) -> int:
    return (31 * step + 17 * row) % 60 + 6


def spoken(step: int, row: int, turns: int) -> int:
    """Of a response's tokens those that an environment wrote, in its middle."""
    return 0 if turns == 1 else 2 + (step + row) % 3
