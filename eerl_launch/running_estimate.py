"""The saving so far for status and progress line, worked out beside the session's loop.

It takes a second or two in a long run, and a loop that waits for it would switch clocks late.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eerl_controller import Controller
    from eerl_controller.saving import Estimate, RunningSaving

#: How long an answer is waited for: what was reckoned before is there at once, and the loop can spare that much.
PATIENCE_S = 0.02


class RunningEstimate:
    """One question at a time to a thread of its own; what is shown is the last answer there was."""

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self._patience_s = patience_s
        self._question: _Question | None = None
        self._found: Estimate | None = None

    def latest(self, controller: Controller | None) -> Estimate | None:
        """The latest estimate known, of this update or of one before it; None before there is any."""
        if controller is None:
            return None
        if self._question is None:
            self._question = _Question(controller.running_saving.frozen())
            self._question.start()
        self._question.join(self._patience_s)
        if not self._question.is_alive():
            controller.running_saving.learn_from(self._question.saving)
            self._found, self._question = self._question.answer, None
        return self._found


class _Question(threading.Thread):
    """The estimate at one moment of the run; ``answer`` is None when there is none, or it cannot be worked out."""

    def __init__(self, saving: RunningSaving) -> None:
        super().__init__(name="estimate", daemon=True)
        self.saving = saving
        self.answer: Estimate | None = None

    def run(self) -> None:
        # An estimate that fails is not shown; a thread's traceback would land in the job's own output.
        with contextlib.suppress(Exception):
            self.answer = self.saving.estimate
