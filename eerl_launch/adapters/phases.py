"""Phases of one process from the labels of a framework's own timer: nested, repeated and split labels made whole.

A framework's labels are finer than our phases: several make up one phase, one may lie inside another of the same
phase, and what only prepares a phase (weights moved back to the GPU) is timed under a name of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from .. import mark


class Labels:
    """Marks the phases that the labels of ``table`` stand for; other labels mean nothing.

    ``prepares``: labels whose end is not the phase's end, since the same phase goes on under another label; the
    phase then ends with that one, or when a label of another phase begins.
    """

    def __init__(self, table: Mapping[str, str], prepares: frozenset[str] = frozenset()) -> None:
        self._table = table
        self._prepares = prepares
        self._lock = threading.RLock()
        self._depth: dict[str, int] = {}
        self._updates: dict[str, int | None] = {}  # what an open phase was begun with
        self._held: str | None = None

    def is_open(self, phase: str) -> bool:
        """Whether the phase runs in this process."""
        return phase in self._updates

    def begin(self, label: str, update: int | None = None) -> None:
        """The framework has started a timer for ``label``."""
        phase = self._table.get(label)
        if phase is None:
            return
        with self._lock:
            self._depth[phase] = self._depth.get(phase, 0) + 1
            if self._held is not None and self._held != phase:
                self._end(self._held, {})
            self._held = None
            if phase not in self._updates:
                self._updates[phase] = update
                mark.begin(phase, update)

    def end(self, label: str, update: int | None = None, **counts: Any) -> None:
        """The framework has stopped it; ``counts`` go out if the phase ends with it.

        The phase ends under the number that it was begun with; ``update`` is for one that had none.
        """
        phase = self._table.get(label)
        if phase is None or not self._depth.get(phase):
            return
        with self._lock:
            self._depth[phase] -= 1
            if self._depth[phase]:
                return
            if label in self._prepares:
                self._held = phase
            else:
                self._end(phase, counts, update)

    def reset(self) -> None:
        """Forget what is open: the framework has begun anew after an exception, say."""
        with self._lock:
            self._depth.clear()
            self._updates.clear()
            self._held = None

    def settle(self) -> None:
        """End a phase whose preparation was followed by nothing."""
        with self._lock:
            if self._held is not None:
                self._end(self._held, {})
                self._held = None

    def _end(self, phase: str, counts: dict[str, Any], update: int | None = None) -> None:
        if phase in self._updates:
            begun = self._updates.pop(phase)
            mark.end(phase, update if begun is None else begun, **counts)
