"""Functions and methods of every kind, watched by hooks; they look and behave as before.

Name, signature and kind, what goes in and out, how they are pickled and copied.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import CoroutineType
from typing import Any

from .running import Running, Watching

_MARK = "__eerl_hook__"
Tell = tuple[Any, ...]


def is_watched(function: Any, running: Running | None = None) -> bool:
    """Whether a call of it is watched: by ``running``, or by any hook."""
    own = getattr(function, _MARK, None)
    return own is not None if running is None else own == running.name


def follow(one: Any, name: str, running: Running) -> None:
    """Watch ``one``'s own method unless it is watched; its hook is told of the object as of any."""
    plain = getattr(one, name, None)
    if callable(plain) and not is_watched(plain, running):
        running.nests = True
        setattr(one, name, bound(one, name, plain, running, one))


class _Bound:
    """One object's own method, watched; with a pickle or a deep copy of the object goes the plain one."""

    def __init__(self, owner: Any, name: str, plain: Callable[..., Any], watched: Callable[..., Any]) -> None:
        functools.update_wrapper(self, watched)
        self._watched = watched
        self._stands_for = (functools.partial, (plain,)) if name in vars(owner) else (getattr, (owner, name))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._watched(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return self._stands_for


def bound(
    owner: Any, name: str, plain: Callable[..., Any], running: Running, *tell: Any
) -> Callable[..., Any]:
    """What to put at ``owner.name``, of one object, in the place of ``plain``; its hook gets ``tell`` first."""
    watched = watch(plain, running, *tell)
    of_a_kind = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    return watched if any(is_one(plain) for is_one in of_a_kind) else _Bound(owner, name, plain, watched)


def watch(original: Callable[..., Any], running: Running, *tell: Any) -> Callable[..., Any]:
    """``original``, its calls watched by ``running``, whose hook gets ``tell`` and then what the call gets."""
    make = _plain
    if inspect.iscoroutinefunction(original):
        make = _coroutine
    elif inspect.isgeneratorfunction(original):
        make = _generator
    elif inspect.isasyncgenfunction(original):
        make = _async_generator
    watched = make(original, running, tell)
    try:
        functools.update_wrapper(watched, original)
    except Exception:  # an odd callable; the watch works without its name
        pass
    setattr(watched, _MARK, running.name)
    return watched


def _leave(error: BaseException) -> None:
    """Take the watch's own line out of the traceback, which is the program's output (Python 3.10 keeps it)."""
    if error.__traceback__ is not None:
        error.__traceback__ = error.__traceback__.tb_next


def _plain(original: Callable[..., Any], running: Running, tell: Tell) -> Callable[..., Any]:
    def watched(*args: Any, **kwargs: Any) -> Any:
        watching = running.begin((*tell, *args), kwargs)
        try:
            result = original(*args, **kwargs)
        except BaseException as error:
            running.fail(watching, error)
            _leave(error)
            raise
        if watching is not None and isinstance(result, CoroutineType):  # of a decorated coroutine
            awaited: Any = _awaited(result, running, watching)
            awaited.__name__, awaited.__qualname__ = result.__name__, result.__qualname__
            return awaited
        running.end(watching, result)
        return result

    return watched


async def _awaited(coroutine: CoroutineType[Any, Any, Any], running: Running, watching: Watching) -> Any:
    try:
        result = await coroutine
    except BaseException as error:
        running.fail(watching, error)
        _leave(error)
        raise
    running.end(watching, result)
    return result


def _coroutine(original: Callable[..., Any], running: Running, tell: Tell) -> Callable[..., Any]:
    async def watched(*args: Any, **kwargs: Any) -> Any:
        watching = running.begin((*tell, *args), kwargs)
        try:
            result = await original(*args, **kwargs)
        except BaseException as error:
            running.fail(watching, error)
            _leave(error)
            raise
        running.end(watching, result)
        return result

    return watched


def _generator(original: Callable[..., Any], running: Running, tell: Tell) -> Callable[..., Any]:
    def watched(*args: Any, **kwargs: Any) -> Any:
        watching = running.begin((*tell, *args), kwargs)
        try:
            result = yield from original(*args, **kwargs)
        except BaseException as error:
            running.fail(watching, error)
            _leave(error)
            raise
        running.end(watching, result)
        return result

    return watched


def _async_generator(original: Callable[..., Any], running: Running, tell: Tell) -> Callable[..., Any]:
    async def watched(*args: Any, **kwargs: Any) -> Any:
        watching = running.begin((*tell, *args), kwargs)
        source = None
        try:
            source = original(*args, **kwargs)
            step = source.__anext__()
            while True:
                try:
                    item = await step
                except StopAsyncIteration:
                    break
                try:
                    step = source.asend((yield item))
                except GeneratorExit:
                    raise
                except BaseException as error:
                    step = source.athrow(error)
        except BaseException as error:
            if source is not None:
                await source.aclose()
            running.fail(watching, error)
            _leave(error)
            raise
        running.end(watching, None)

    return watched
