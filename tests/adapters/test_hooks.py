"""Hooks on a framework's functions: what they see, and that neither side's trouble reaches the other."""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
import os
import pickle
import signal
import sys
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from eerl_launch import mark
from eerl_launch.adapters import running, speaker
from eerl_launch.adapters.base import Adapter


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What adapters tell the user."""
    texts: list[str] = []
    monkeypatch.setattr(mark, "note", lambda text, kind="adapter": texts.append(text))
    return texts


class Framework:
    """Functions of every kind that a framework may have."""

    def plain(self, number: int) -> int:
        return 2 * number

    @staticmethod
    def static(number: int) -> int:
        return 3 * number

    @classmethod
    def of_class(cls, number: int) -> str:
        return cls.__name__ * number

    async def coroutine(self, number: int) -> int:
        await asyncio.sleep(0)
        return 5 * number

    def generator(self, number: int) -> Iterator[int]:
        got = yield number
        yield got or 0

    async def stream(self, number: int) -> AsyncIterator[int]:
        for index in range(number):
            yield index

    def breaks(self, number: int) -> int:
        raise KeyError(number)

    async def breaks_later(self, number: int) -> int:
        await asyncio.sleep(0)
        raise KeyError(number)


def fresh() -> Any:
    """A class of its own for each test, since hooks change it."""
    own = {name: value for name, value in vars(Framework).items() if name not in ("__dict__", "__weakref__")}
    return type("Framework", (), own)


def watching(seen: list[Any]) -> Callable[..., Iterator[None]]:
    """A hook that writes down what it sees."""

    def hook(*args: Any, **kwargs: Any) -> Any:
        seen.append(("before", args[-1]))
        try:
            result = yield
            seen.append(("after", result))
        except BaseException as error:
            seen.append(("raised", error))
            raise

    return hook


def test_functions_of_every_kind(said: list[str]) -> None:
    """Each is watched from its start to its end, and does what it did."""
    adapter, framework, seen = Adapter("frame"), fresh(), []
    for name in ("plain", "static", "of_class", "coroutine", "generator", "stream"):
        assert adapter.hook(framework, name, watching(seen))
    one = framework()

    assert (one.plain(1), framework.static(1), framework.of_class(1)) == (2, 3, "Framework")
    assert asyncio.run(one.coroutine(1)) == 5
    generator = one.generator(7)
    assert (next(generator), generator.send(9), list(generator)) == (7, 9, [])

    async def collect() -> list[int]:
        return [item async for item in one.stream(2)]

    assert asyncio.run(collect()) == [0, 1]

    assert [value for when, value in seen if when == "before"] == [1, 1, 1, 1, 7, 2]
    assert [value for when, value in seen if when == "after"] == [2, 3, "Framework", 5, None, None]
    assert said == []


def test_watched_functions_look_like_the_original() -> None:
    """Name, signature and kind are as before: frameworks look at them."""
    adapter, framework = Adapter("frame"), fresh()
    for name in ("plain", "coroutine", "generator", "stream"):
        adapter.hook(framework, name, watching([]))

    assert inspect.signature(framework.plain) == inspect.signature(Framework.plain)
    assert framework.plain.__qualname__ == Framework.plain.__qualname__
    assert inspect.iscoroutinefunction(framework.coroutine)
    assert inspect.isgeneratorfunction(framework.generator)
    assert inspect.isasyncgenfunction(framework.stream)


@pytest.mark.parametrize("watches", [True, False])
def test_an_exception_of_theirs_goes_on_as_it_was(said: list[str], watches: bool) -> None:
    """The same object, without a cause or a line of ours; a hook that watches has seen it."""
    adapter, framework, seen = Adapter("frame"), fresh(), []
    framework.awaits = Framework.breaks_later
    adapter.hook(framework, "breaks", watching(seen) if watches else lambda *_: iter(()))
    adapter.hook(framework, "awaits", watching(seen) if watches else lambda *_: iter(()))

    with pytest.raises(KeyError) as caught:
        framework().breaks(4)
    with pytest.raises(KeyError) as awaited:
        asyncio.run(framework().awaits(5))
    with pytest.raises(TypeError) as misused:
        framework().breaks()

    ours = [("before", 4), ("raised", caught.value), ("before", 5), ("raised", awaited.value)]
    assert seen[:4] == (ours if watches else [])
    for error in (caught, awaited):
        assert error.value.__cause__ is None and error.value.__context__ is None
    lines = [traceback.extract_tb(error.value.__traceback__) for error in (caught, awaited, misused)]
    here = "test_an_exception_of_theirs_goes_on_as_it_was"
    assert [line.name for line in lines[0] if "hook" not in line.name][-1] == "breaks"
    assert lines[1][-1].name == "breaks_later"
    if sys.version_info >= (3, 11):
        assert [line.name for line in lines[0]] == [here, "breaks"]
        assert not [line for one in lines for line in one if "adapters/watched" in line.filename]
    assert said == []


@pytest.mark.parametrize("when", ["before", "after", "instead of theirs", "by two yields"])
def test_a_fault_of_ours_stays_here(said: list[str], when: str) -> None:
    """The call returns or raises what it would have; one message names framework and hook."""

    def hook(*args: Any, **kwargs: Any) -> Any:
        if when == "before":
            raise ValueError("ours")
        try:
            yield
        except KeyError:
            raise ValueError("ours") from None
        if when == "by two yields":
            yield
        raise ValueError("ours")

    adapter, framework = Adapter("frame"), fresh()
    adapter.hook(framework, "plain", hook)
    adapter.hook(framework, "breaks", hook)

    for _ in range(5):
        assert framework().plain(2) == 4
        with pytest.raises(KeyError):
            framework().breaks(4)

    assert len(said) == 1 and "frame of unknown version" in said[0] and "hook" in said[0]


def test_theirs_wins_over_a_swallowing_hook() -> None:
    """A hook that catches the framework's exception and carries on changes nothing."""

    def hook(*args: Any) -> Any:
        try:
            yield
        except KeyError:
            pass

    adapter, framework = Adapter("frame"), fresh()
    adapter.hook(framework, "breaks", hook)

    with pytest.raises(KeyError):
        framework().breaks(4)


def test_interrupts_pass(said: list[str]) -> None:
    """Ctrl-C and a cancelled task are the framework's, also when they come while a hook is open."""
    adapter, framework, seen = Adapter("frame"), fresh(), []
    framework.plain = lambda self, number: (_ for _ in ()).throw(KeyboardInterrupt)
    adapter.hook(framework, "plain", watching(seen))

    async def cancelled() -> None:
        framework.coroutine = Framework.coroutine
        adapter.hook(framework, "coroutine", watching(seen))
        task = asyncio.create_task(framework().coroutine(1))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with pytest.raises(KeyboardInterrupt):
        framework().plain(1)
    asyncio.run(cancelled())

    assert [type(value) for when, value in seen if when == "raised"] == [
        KeyboardInterrupt,
        asyncio.CancelledError,
    ]
    assert said == []


def test_a_name_that_moved_costs_one_message(said: list[str]) -> None:
    """Framework, version and name are told, once; nothing is patched."""
    adapter, framework = Adapter("pytest"), fresh()

    assert not adapter.hook(framework, "moved", watching([]), costs="generation")
    assert not adapter.hook(framework, "moved", watching([]), costs="generation")

    assert said == [f"pytest {pytest.__version__}: Framework.moved is not there; generation will be missing"]
    assert not hasattr(framework, "moved")


def test_a_function_is_hooked_once(said: list[str]) -> None:
    """A module that is told of twice does not count twice."""
    adapter, framework, seen = Adapter("frame"), fresh(), []

    adapter.hook(framework, "plain", watching(seen))
    adapter.hook(framework, "plain", watching(seen))
    framework().plain(1)

    assert seen == [("before", 1), ("after", 2)]


def test_an_inherited_method_is_hooked_where_asked(said: list[str]) -> None:
    """The base class and its other children stay as they were."""
    adapter, parent, seen = Adapter("frame"), fresh(), []
    child = type("Child", (parent,), {})
    adapter.hook(child, "plain", watching(seen))

    assert (child().plain(1), parent().plain(2)) == (2, 4)

    assert seen == [("before", 1), ("after", 2)]


def test_a_patch_that_fails_is_told(said: list[str]) -> None:
    """A module that has nothing of what was expected costs its markers only."""
    adapter = Adapter("frame")

    @adapter.on("frame.trainer")
    def patch(module: Any) -> None:
        print(module.nothing.like.this)

    adapter.loaded("frame.trainer", SimpleNamespace())  # type: ignore[arg-type]

    assert len(said) == 1 and "cannot set hooks in frame.trainer" in said[0]


def test_only_rank_0_speaks(said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Other ranks are silent and say nothing of it; a reason for silence is told once."""
    adapter = Adapter("frame")
    monkeypatch.setattr(speaker, "silence", lambda: None)

    assert adapter.speaks(0) and adapter.speaks()
    assert not adapter.speaks(1)

    monkeypatch.setattr(speaker, "silence", lambda: "a second trainer")
    assert not adapter.speaks(0) and not adapter.speaks(0)
    assert said == ["frame of unknown version: a second trainer"]


def test_a_hook_that_keeps_failing_is_left_out(said: list[str]) -> None:
    """After a few faults it is not called any more."""
    calls: list[int] = []

    def hook(framework: Any, number: int) -> Any:
        calls.append(number)
        raise ValueError
        yield

    adapter, framework = Adapter("frame"), fresh()
    adapter.hook(framework, "plain", hook)

    for number in range(10):
        framework().plain(number)

    assert calls == list(range(running.MAX_FAULTS))


class Worker:
    """An object of the user's, hooked by itself."""

    def start(self) -> Worker:
        return self


def test_an_object_is_pickled_and_copied_as_before(said: list[str]) -> None:
    """A worker that goes to another process takes its plain method along, and a copy's method is the copy's."""
    adapter, worker, seen = Adapter("frame"), Worker(), []
    adapter.hook(worker, "start", lambda *args: watching(seen)(*args, "start"))

    pickled, copied = pickle.loads(pickle.dumps(worker)), copy.deepcopy(worker)

    assert pickled.start() is pickled and copied.start() is copied and seen == []
    assert worker.start() is worker and seen == [("before", "start"), ("after", worker)]
    assert inspect.signature(worker.start) == inspect.signature(Worker().start)


def bystander(*args: Any) -> Any:
    """A hook of a module, as an adapter's are."""
    yield


def test_what_is_hooked_goes_into_pickles_by_value(said: list[str]) -> None:
    """Ray pickles an actor's methods with all that they hold and all that was put on them."""
    adapter, framework = Adapter("frame"), fresh()
    adapter.hook(framework, "plain", bystander)
    adapter.follow(type("Own", (framework,), {"plain": lambda self, number: number})())
    function = framework.plain

    held = [cell.cell_contents for cell in function.__closure__]
    put = {name: value for name, value in vars(function).items() if name != "__wrapped__"}

    assert [type(one).__name__ for one in held if hasattr(one, "begin")] == ["Running"] and put
    assert pickle.loads(pickle.dumps(put)) == put
    for one in held:
        if hasattr(one, "begin"):
            assert pickle.loads(pickle.dumps(one)).name == one.name


def test_a_partial_in_a_class_is_called_without_the_object(said: list[str]) -> None:
    """What is no method does not become one by being watched."""
    adapter, framework, seen = Adapter("frame"), fresh(), []
    framework.partial = functools.partial(max, 4)
    adapter.hook(framework, "partial", watching(seen))

    assert framework().partial(7) == 7

    assert seen == [("before", 7), ("after", 7)]


def test_a_stream_is_sent_to_thrown_into_and_closed(said: list[str]) -> None:
    """All that an asynchronous generator can be given arrives in it; the hook sees how it ended."""
    happened: list[Any] = []

    class Stream:
        async def stream(self, number: int) -> Any:
            try:
                happened.append((yield number))
                try:
                    yield "sent"
                except KeyError as error:
                    happened.append(error)
                    yield "thrown"
                yield "more"
            finally:
                happened.append("closed")

    adapter, seen = Adapter("frame"), []
    adapter.hook(Stream, "stream", watching(seen))

    async def use() -> list[Any]:
        stream, error = Stream().stream(1), KeyError("theirs")
        got = [await stream.asend(None), await stream.asend(2), await stream.athrow(error)]
        await stream.aclose()
        assert happened == [2, error, "closed"]
        other = Stream().stream(3)
        await anext(other)
        with pytest.raises(ValueError, match="theirs") as caught:
            await other.athrow(ValueError("theirs"))
        assert caught.value.__context__ is None
        return got

    assert asyncio.run(use()) == [1, "sent", "thrown"]
    assert [type(value) for when, value in seen if when == "raised"] == [GeneratorExit, ValueError]
    assert said == []


def test_a_decorated_coroutine_is_watched_to_its_end(said: list[str]) -> None:
    """A plain function that returns a coroutine has not run when it returns."""
    adapter, framework, seen = Adapter("frame"), fresh(), []

    async def inner(number: int) -> int:
        await asyncio.sleep(0)
        seen.append(("inside", number))
        if number < 0:
            raise KeyError(number)
        return number

    @functools.wraps(inner)
    def decorated(one: Any, number: int) -> Any:
        return inner(number)

    framework.decorated = decorated
    adapter.hook(framework, "decorated", watching(seen))
    call = framework().decorated(6)
    assert call.__qualname__ == inner.__qualname__ and asyncio.run(call) == 6
    with pytest.raises(KeyError) as caught:
        asyncio.run(framework().decorated(-6))

    assert seen[:3] == [("before", 6), ("inside", 6), ("after", 6)]
    assert seen[3:] == [("before", -6), ("inside", -6), ("raised", caught.value)]
    assert said == []


def test_an_owner_that_takes_no_hooks(said: list[str]) -> None:
    """A class that refuses to be changed costs one message, and no more than the names it refuses."""

    class Frozen(type):
        def __setattr__(cls, name: str, value: Any) -> None:
            raise TypeError("frozen")

    adapter = Adapter("frame")
    owner = Frozen("Owner", (), {"plain": Framework.plain})

    assert not adapter.hook(owner, "plain", watching([]), costs="generation")

    assert owner().plain(1) == 2
    assert said == [
        "frame of unknown version: Owner.plain cannot be watched (frozen); generation will be missing"
    ]


class PreemptedError(Exception):
    """What a trainer's signal handler raises to leave its loop."""


@pytest.mark.parametrize("when", ["before", "after", "raised"])
def test_a_signal_handler_of_theirs_is_not_swallowed(
    said: list[str], monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """An exception that their handler raises while our hook runs is theirs; it is no fault of the hook."""

    def hook(*args: Any) -> Any:
        if when == "before":
            signal.raise_signal(signal.SIGUSR1)
        try:
            yield
        finally:
            signal.raise_signal(signal.SIGUSR1)

    def handler(*arguments: Any) -> None:
        raise PreemptedError

    adapter, framework = Adapter("frame"), fresh()
    for name in ("plain", "breaks"):
        adapter.hook(framework, name, hook)
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(PreemptedError):
            framework().breaks(1) if when == "raised" else framework().plain(1)
    finally:
        signal.signal(signal.SIGUSR1, before)

    assert said == []


def test_a_frame_alone_is_no_signal(said: list[str]) -> None:
    """A framework's function that looks at its caller's frame and fails is still a fault that stays here."""

    def looks(depth: int) -> None:
        frame = inspect.currentframe()
        caller = frame.f_back if frame else None
        raise ValueError(depth, caller)

    def hook(*args: Any) -> Any:
        looks(1)
        yield

    adapter, framework = Adapter("frame"), fresh()
    adapter.hook(framework, "plain", hook)

    assert framework().plain(2) == 4 and len(said) == 1


def test_overridden_and_assigned_methods_are_followed(said: list[str]) -> None:
    """A subclass's own method is watched whole and once, whether it calls the original or not; so is one assigned."""
    adapter, framework, seen = Adapter("frame"), fresh(), []
    adapter.hook(framework, "plain", lambda one, number: watching(seen)(number))

    class Calls(framework):  # type: ignore[misc]
        def plain(self, number: int) -> Any:
            return ("own", super().plain(number + 1))

    class Replaces(framework):  # type: ignore[misc]
        def plain(self, number: int) -> Any:
            return -number

    calls, replaces, assigned, untouched = Calls(), Replaces(), framework(), framework()
    assigned.plain = lambda number: 100 + number
    for one in (calls, replaces, assigned, untouched):
        adapter.follow(one)
        adapter.follow(one)

    results = [one.plain(1) for one in (calls, replaces, assigned, untouched)]

    assert results == [("own", 4), -1, 101, 2] and "plain" not in vars(untouched)
    assert seen == [pair for result in results for pair in (("before", 1), ("after", result))]
    assert Calls().plain(1) == ("own", 4) and seen[-2:] == [("before", 2), ("after", 4)]


def test_an_object_that_cannot_be_followed(said: list[str]) -> None:
    """One that takes no attributes keeps its own methods, which costs one message."""
    adapter, base = Adapter("frame"), type("Base", (), {"__slots__": (), "plain": Framework.plain})
    adapter.hook(base, "plain", watching([]))
    own = type("Own", (base,), {"__slots__": (), "plain": lambda self, number: -number})

    adapter.follow(own())

    assert own().plain(1) == -1
    assert len(said) == 1 and "Own.plain" in said[0]


def test_a_child_forked_in_a_call_is_silent(said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """It leaves the call, too, but what the hook marks then is its parent's to mark."""
    reader, writer = os.pipe()
    monkeypatch.setattr(mark, "listener", lambda: os.write(writer, b"%d\n" % os.getpid()) and None)

    def hook(*args: Any) -> Any:
        with mark.phase("generation"):
            try:
                yield
            finally:
                mark.resume()

    adapter, framework = Adapter("frame"), fresh()
    framework.fork = lambda self: os.fork()
    adapter.hook(framework, "fork", hook)

    child = framework().fork()
    if child == 0:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    os.close(writer)
    with os.fdopen(reader, "rb") as told:
        senders = [int(line) for line in told]

    assert senders == [os.getpid()] * 3
