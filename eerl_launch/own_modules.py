"""Import this first in a command of ours: its modules then are ours, whatever the user's environment holds.

PYTHONPATH and the user site are the command's affair. A ``click.py`` or ``yaml.py`` there must not keep the
command from starting, so these folders come last in our own search; the command's environment is not touched.
"""

from __future__ import annotations

import os
import site
import sys


def _look_there_last() -> None:
    theirs = {os.path.abspath(entry) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep)}  # noqa: PTH100 - pathlib is not ours yet
    if site.USER_SITE:
        theirs.add(site.USER_SITE)
    later = [entry for entry in sys.path if os.path.abspath(entry) in theirs]  # noqa: PTH100
    sys.path[:] = [entry for entry in sys.path if entry not in later] + later


if "PYTHONPATH" in os.environ or site.USER_SITE in sys.path:
    _look_there_last()
