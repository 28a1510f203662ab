"""Python's start in the job: set up our import hooks, then let the sitecustomize that ours hides run as usual.

First on PYTHONPATH, so it is also run by whatever old Python the job uses as a tool: plain syntax only.
"""

# mypy: ignore-errors

import os
import sys


def _set_up(folder):
    if sys.version_info < (3, 10):  # noqa: UP036 - a job's tools may bring an older Python than its trainer
        return
    if os.environ.get("PYTHONPATH") == folder + os.pathsep:  # as Ray makes it where there was none
        os.environ["PYTHONPATH"] = folder
        here = sys.path.index(folder)
        if sys.path[here + 1 : here + 2] in ([os.getcwd()], [""]):  # noqa: PTH109
            del sys.path[here + 1]
    if "EERL_SOCKET" not in os.environ:  # an environment that was cleaned on the way here
        beside = os.path.join(os.path.dirname(folder), "s")  # noqa: PTH118, PTH120 - pathlib takes 10 ms
        if os.path.exists(beside):  # noqa: PTH110
            os.environ["EERL_SOCKET"] = beside
    from eerl_trainer.adapters import watch

    watch.start(os.environ.get("EERL_ADAPTER", "auto"))
    try:  # for the message at the end of a job without markers: here at least the hooks were on
        os.close(os.open(os.path.join(folder, "loaded"), os.O_CREAT | os.O_EXCL | os.O_WRONLY))  # noqa: PTH118
    except OSError:
        pass


def _run_next(folder):
    """Import the next sitecustomize on the path in our place; an exception of its own is its own."""
    ours = sys.modules.pop("sitecustomize", None)
    path = list(sys.path)
    sys.path[:] = [entry for entry in path if os.path.abspath(entry) != folder]  # noqa: PTH100
    hidden = list(sys.path)
    try:
        import sitecustomize  # noqa: F401
    except ImportError as error:
        if getattr(error, "name", None) != "sitecustomize" and "named sitecustomize" not in str(error):
            raise
        if ours is not None:
            sys.modules["sitecustomize"] = ours
    finally:
        # What the next one did to the path stays done.
        if sys.path == hidden:
            sys.path[:] = path
        else:
            sys.path.insert(0, folder)


_folder = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120
try:
    _set_up(_folder)
except Exception:  # whatever of ours fails, the program starts
    pass
_run_next(_folder)
