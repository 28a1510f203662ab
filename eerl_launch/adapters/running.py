"""Takes hooks through the calls that they watch, so that neither side's trouble reaches the other."""

from __future__ import annotations

import contextvars
import inspect
import itertools
import os
from collections.abc import Callable, Generator
from types import FrameType
from typing import Any

from .. import mark

Calls = tuple[tuple[str, int], ...]
Hook = Callable[..., Generator[None, Any, None]]
#: A hook that fails this often is left out from then on.
MAX_FAULTS = 3
#: Calls under way, by hook and object, where one may be made of others. Not a hook's own: those go into pickles.
_inside: contextvars.ContextVar[Calls] = contextvars.ContextVar("_inside", default=())


def from_a_signal(error: BaseException) -> bool:
    """Whether a signal handler of the program's raised this, which happened to run inside our code.

    Python runs handlers between any two instructions, and late when our code waits for a GPU. They are called with
    the signal's number and the frame that they interrupted.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        given = _arguments(trace.tb_next.tb_frame)
        if any(
            isinstance(number, int) and frame is trace.tb_frame for number, frame in itertools.pairwise(given)
        ):
            return True
        trace = trace.tb_next
    return False


def _arguments(frame: FrameType) -> list[Any]:
    """What a function was called with by position."""
    code = frame.f_code
    names = list(code.co_varnames[: code.co_argcount])
    given = [frame.f_locals.get(name) for name in names]
    if code.co_flags & inspect.CO_VARARGS:
        more = frame.f_locals.get(code.co_varnames[code.co_argcount + code.co_kwonlyargcount])
        given += more if isinstance(more, tuple) else ()
    return given


class Running:
    """Takes one hook through calls: ``begin``, then ``end`` or ``fail``; nothing of ours is raised."""

    def __init__(self, hook: Hook, say: Callable[[str], None]) -> None:
        self._hook = hook
        self._say = say
        self._faults = 0
        #: Of the hook: it is put on functions, which copy it to what wraps them, and which may be pickled by value.
        self.name = f"{hook.__module__}.{hook.__qualname__}"
        #: Whether one watched call may be made of others: an override and what it calls of the original.
        self.nests = False

    def begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Watching | None:
        """The hook at its ``yield``, or None when it does not watch this call."""
        if self._faults >= MAX_FAULTS:
            return None
        before = None
        if self.nests and args:
            before = _inside.get()
            if (self.name, id(args[0])) in before:
                return None
        try:
            generator = self._hook(*args, **kwargs)
            next(generator)
        except StopIteration:
            return None
        except Exception as error:
            self._fault(error)
            return None
        if before is not None:
            _inside.set((*before, (self.name, id(args[0]))))
        return Watching(generator, before)

    def end(self, watching: Watching | None, result: Any) -> None:
        """The call has returned."""
        if watching is None or self._over(watching):
            return
        try:
            watching.generator.send(result)
            watching.generator.close()  # a second yield is no use
        except StopIteration:
            pass
        except Exception as error:
            self._fault(error)

    def fail(self, watching: Watching | None, raised: BaseException) -> None:
        """The call has raised; its exception keeps the traceback it has."""
        if watching is None or self._over(watching):
            return
        trace, context = raised.__traceback__, raised.__context__
        try:
            watching.generator.throw(raised)
        except StopIteration:
            pass
        except Exception as error:
            if error is not raised:
                self._fault(error)
        except BaseException as error:
            if error is not raised:
                raise
        finally:
            raised.__traceback__, raised.__context__ = trace, context

    def _over(self, watching: Watching) -> bool:
        """The call is left; True when that is in a child forked meanwhile, where it has nothing to tell."""
        if watching.before is not None:
            _inside.set(watching.before)
        if watching.pid == os.getpid():
            return False
        try:
            mark.mute(True)
            watching.generator.close()
        except Exception as error:
            self._fault(error)
        finally:
            mark.mute(False)
        return True

    def _fault(self, error: Exception) -> None:
        if from_a_signal(error):
            raise error
        self._faults += 1
        name = getattr(self._hook, "__name__", "?")
        self._say(f"eerl's hook {name} failed ({error!r}); markers may be missing")


class Watching:
    """One call that a hook watches."""

    __slots__ = ("before", "generator", "pid")

    def __init__(self, generator: Generator[None, Any, None], before: Calls | None) -> None:
        self.generator = generator
        self.before = before
        self.pid = os.getpid()
