"""Lengths of all ranks' responses, from gathers that the framework makes itself: one of ours could hang a trainer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class Lengths:
    """The responses of a rollout, over all ranks: generated tokens of each, and which the loss leaves out."""

    def __init__(self, own: int, lengths: list[int], left_out: list[bool]) -> None:
        self.own = own
        self._taken = [0 if out else n for n, out in zip(lengths, left_out, strict=True)]

    def valid(self, rank: int | None = None) -> int:
        """Tokens that the loss takes, over all ranks or of one."""
        taken = self._taken if rank is None else self._taken[rank * self.own : (rank + 1) * self.own]
        return sum(taken)


class Gathers:
    """While it is entered, keeps what ``accelerator.gather`` got and gave."""

    def __init__(self, accelerator: Any) -> None:
        self._accelerator = accelerator
        self.seen: list[tuple[Any, Any]] = []

    def __enter__(self) -> Gathers:
        gather = self._accelerator.gather
        self._before = vars(self._accelerator).get("gather")

        def seen_gather(*args: Any, **kwargs: Any) -> Any:
            result = gather(*args, **kwargs)
            if args:
                self.seen.append((args[0], result))
            return result

        self._accelerator.gather = seen_gather
        return self

    def __exit__(self, *exception: object) -> None:
        if self._before is None:
            vars(self._accelerator).pop("gather", None)
        else:  # somebody else had put something there
            self._accelerator.gather = self._before

    def of(self, own: Sequence[int], kind: str) -> list[Any] | None:
        """What all ranks gave where this one gave ``own``, in a tensor of that kind of number; the last such."""
        for given, result in reversed(self.seen):
            fits = getattr(given, "ndim", 0) == 1 and kind in str(given.dtype) and len(given) == len(own)
            if fits and (kind == "bool" or given.tolist() == list(own)):
                return list(result.tolist())
        return None
