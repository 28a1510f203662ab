"""What the stand-in's runs generate: lengths of responses by update and round, without chance."""

from __future__ import annotations

PROMPTS, EACH = 2, 3


def lengths(update: int, turn: int = 0, groups: int = PROMPTS) -> list[int]:
    return [(37 * update + 11 * turn + 5 * row) % 90 + 10 for row in range(groups * EACH)]


def left_out(update: int) -> set[int]:
    """Rows that the loss leaves out: overlong filtering, in every second update."""
    return {1, 4} if update % 2 == 0 else set()
