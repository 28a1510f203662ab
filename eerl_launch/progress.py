"""What the user sees while the job runs: one fixed line at the foot of a terminal, a line now and then elsewhere.

The command owns the terminal and writes to it as it likes, so the line is kept out of its way: the scroll region
ends one row above it (as package managers do), and nothing the command writes is touched.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time

#: Without a terminal, a line at every change of the controller's state, and otherwise so often in the run's own time.
_QUIET_PERIOD_S = 600.0
_REFRESH_S = 0.25


class Progress:
    """Shows one line of text; a stderr that is closed or full is no reason to fail."""

    def __init__(self, fd: int = 2, time_scale: float = 1.0) -> None:
        self._fd = fd
        self._quiet_period_s = _QUIET_PERIOD_S / time_scale
        self.is_terminal = os.isatty(fd) and os.environ.get("TERM", "dumb") != "dumb"
        self._size = (0, 0)
        self._shown_at = 0.0
        self._last_state = ""
        self._closed = False

    def show(self, state: str, line: str) -> None:
        """Show ``line``; ``state`` decides whether it is news where there is no terminal."""
        if self._closed:
            return
        now = time.monotonic()
        if self.is_terminal:
            if now - self._shown_at >= _REFRESH_S:
                self._shown_at = now
                self._draw(line)
        elif state != self._last_state or now - self._shown_at > self._quiet_period_s:
            self._shown_at = now
            self._write(f"eerl: {line}\n")
        self._last_state = state

    def _draw(self, line: str) -> None:
        columns, rows = shutil.get_terminal_size()
        with contextlib.suppress(OSError):
            columns, rows = os.get_terminal_size(self._fd)
        if rows < 4:
            return
        out = ""
        if (columns, rows) != self._size:
            self._size = (columns, rows)
            # Make room, then end the scroll region above the last row; save and restore the cursor around it.
            out += f"\n\x1b7\x1b[1;{rows - 1}r\x1b8\x1b[1A"
        out += f"\x1b7\x1b[{rows};1H\x1b[2K{self._styled(line, columns)}\x1b8"
        self._write(out)

    @staticmethod
    def _styled(line: str, columns: int) -> str:
        from rich.console import Console
        from rich.text import Text

        console = Console(width=columns, force_terminal=True, highlight=False)
        text = Text.assemble(("eerl ", "bold green"), (line, "default"))
        text.truncate(columns - 1, overflow="ellipsis")
        with console.capture() as capture:
            console.print(text, end="", no_wrap=True)
        return capture.get()

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            os.write(self._fd, text.encode("utf-8", "replace"))

    def close(self) -> None:
        """Give the whole terminal back, for good."""
        self._closed = True
        if self.is_terminal and self._size != (0, 0):
            rows = self._size[1]
            self._write(f"\x1b7\x1b[r\x1b[{rows};1H\x1b[2K\x1b8")
            self._size = (0, 0)
