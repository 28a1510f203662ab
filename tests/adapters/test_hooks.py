"""Hooks on a framework's functions: what they see, and that neither side's trouble reaches the other."""

from __future__ import annotations

import asyncio
import inspect
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from eerl_launch import mark
from eerl_launch.adapters import base, speaker
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


def fresh() -> Any:
    """A class of its own for each test, since hooks change it."""
    return type("Framework", (), dict(Framework.__dict__))


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


def test_an_exception_of_theirs_goes_on_as_it_was(said: list[str]) -> None:
    """The same object, without a cause or lines of ours but the call itself; the hook has seen it."""
    adapter, framework, seen = Adapter("frame"), fresh(), []
    adapter.hook(framework, "breaks", watching(seen))

    with pytest.raises(KeyError) as caught:
        framework().breaks(4)

    assert seen == [("before", 4), ("raised", caught.value)]
    assert caught.value.__cause__ is None and caught.value.__context__ is None
    functions = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert functions[-2:] == ["watched", "breaks"] and "hook" not in functions
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

    assert calls == list(range(base._MAX_FAULTS))
