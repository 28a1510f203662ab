"""What srun, slurmstepd and starting agents write on standard error: told where an agent does not answer.

Slurm complains of much that does no harm (a TMPDIR of its own choosing, say), and the line that matters comes last.
So nothing is told while the agents may still start, and the last lines when one has ended or stays silent.
"""

from __future__ import annotations

from collections import deque

#: Lines this old have nothing to do with an agent that ends now; agents that take longer to start are in trouble.
PATIENCE_S = 30.0
_MOST_LINES = 3
_MOST_CHARACTERS = 300


class Complaints:
    """The last lines of one process that carries agents; times are CLOCK_MONOTONIC in seconds."""

    def __init__(self) -> None:
        self._lines: deque[tuple[float, str]] = deque(maxlen=_MOST_LINES)
        self._first_s: float | None = None

    def hear(self, text: str, now_s: float) -> None:
        """Some lines have come."""
        self._first_s = now_s if self._first_s is None else self._first_s
        self._lines.extend(
            (now_s, line.strip()[:_MOST_CHARACTERS]) for line in text.splitlines() if line.strip()
        )

    def of_an_end(self, now_s: float) -> str:
        """Why the process may have ended now; empty when it said nothing lately."""
        return "; ".join(line for heard_s, line in self._lines if now_s - heard_s <= PATIENCE_S)

    def of_a_silence(self, now_s: float) -> str:
        """Why an agent may still be missing; empty while it may yet come, or when nothing was said."""
        if self._first_s is None or now_s - self._first_s <= PATIENCE_S:
            return ""
        return "; ".join(line for _, line in self._lines)
