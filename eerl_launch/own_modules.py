"""Import this first in a command of ours: its modules then are ours, and whole, whatever the environment holds.

PYTHONPATH and the user site are the command's affair. A ``click.py`` or ``yaml.py`` there must not keep the
command from starting, so these folders come last in our own search; the command's environment is not touched.

Nor does a process of ours leave compiled modules (``-B``): Python takes a write cut short by a full disk, a quota
or a limit on file sizes for a whole one, and every later run of this installation would fail on what it left.
Installing compiles them.
"""

from __future__ import annotations

import os
import site
import sys

#: How every other process of ours is started: modules from the installation only, none compiled into it.
OWN_OPTIONS = ("-I", "-B")
OWN_PYTHON = (sys.executable, *OWN_OPTIONS)

sys.dont_write_bytecode = True


def _look_there_last() -> None:
    theirs = {os.path.abspath(entry) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep)}  # noqa: PTH100 - pathlib is not ours yet
    if site.USER_SITE:
        theirs.add(site.USER_SITE)
    later = [entry for entry in sys.path if os.path.abspath(entry) in theirs]  # noqa: PTH100
    sys.path[:] = [entry for entry in sys.path if entry not in later] + later


if "PYTHONPATH" in os.environ or site.USER_SITE in sys.path:
    _look_there_last()
