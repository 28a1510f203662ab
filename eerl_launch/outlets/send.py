"""``python -m eerl_launch.outlets.send NAME``: delivers one parcel, in a process that may hang, fail or be killed.

Standard input is the parcel as JSON. Standard output gets one line, where it went; the last line of standard error
says why it did not.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from functools import partial

from eerl_launch.outlets import openmetrics, slurm_comment, trackers
from eerl_launch.outlets.parcel import Parcel

DELIVER: Mapping[str, Callable[[Parcel], str]] = {
    "wandb": trackers.to_wandb,
    "mlflow": trackers.to_mlflow,
    "openmetrics": openmetrics.deliver,
    "slurm_comment": partial(slurm_comment.deliver, field="Comment"),
    "slurm_admin_comment": partial(slurm_comment.deliver, field="AdminComment"),
}


def main() -> int:
    """0 when the parcel was delivered."""
    # The session blocks the signals that are passed on to the command; a library's threads want theirs.
    signal.pthread_sigmask(signal.SIG_SETMASK, set())
    parcel = json.load(sys.stdin.buffer)
    answer = os.dup(1)
    os.dup2(2, 1)  # what libraries print is no answer
    try:
        where = DELIVER[sys.argv[1]](parcel)
    except Exception as error:
        first = (str(error).strip() or repr(error)).splitlines()[0]
        print(first, file=sys.stderr, flush=True)
        return 1
    os.write(answer, f"{where}\n".encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
