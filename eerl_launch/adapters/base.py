"""What an adapter is made of: hooks on a framework's own functions, and who of a job's processes may speak.

A hook is a generator function with the parameters of the function it watches. Up to its one ``yield`` it runs before
the call, then it gets the result, or the exception, and runs on::

    adapter = Adapter("trl")

    @adapter.on("trl.trainer.grpo_trainer")
    def grpo(module):
        adapter.hook(module.GRPOTrainer, "_generate", generate)

    def generate(trainer, prompts):
        if adapter.speaks(trainer.accelerator.process_index):
            with mark.phase("generation", update) as phase:
                result = yield
                phase.set(generated_tokens=...)

One that returns before its ``yield`` does not watch this call. Nothing that goes wrong in a hook reaches the trainer,
nothing of the trainer's is swallowed, and what a hook does with result or exception changes neither.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Generator
from types import ModuleType
from typing import Any

from .. import mark
from . import gpus, speaker

Hook = Callable[..., Generator[None, Any, None]]
Patch = Callable[[ModuleType], None]
_MARK = "__eerl_hook__"
#: A hook that fails this often is left out from then on.
_MAX_FAULTS = 3


class Adapter:
    """One framework's hooks. ``distribution`` is its package's name where that differs from ``framework``."""

    def __init__(self, framework: str, distribution: str | None = None) -> None:
        self.framework = framework
        self._distribution = distribution or framework
        self._patches: dict[str, Patch] = {}
        self._told: set[str] = set()
        #: Names that are watched, and names that this version has not: for ``look``.
        self.hooked: list[str] = []
        self.missing: list[str] = []

    @property
    def modules(self) -> list[str]:
        """The modules this adapter waits for; each has a row in the registry."""
        return list(self._patches)

    @functools.cached_property
    def version(self) -> str:
        """The framework's version as installed here, else "of unknown version"."""
        from importlib.metadata import version

        try:
            return version(self._distribution)
        except Exception:  # a source tree on the path, say
            return "of unknown version"

    def on(self, module: str) -> Callable[[Patch], Patch]:
        """Decorates the function that sets this adapter's hooks in ``module`` once that has been imported."""

        def register(patch: Patch) -> Patch:
            self._patches[module] = patch
            return patch

        return register

    def loaded(self, name: str, module: ModuleType) -> None:
        """``module`` has been imported: set the hooks."""
        try:
            self._patches[name](module)
        except Exception as error:
            self.missing.append(f"{name} ({error!r})")
            self.say(f"cannot set hooks in {name} ({error!r}); its phases and tokens are not marked")

    def say(self, text: str) -> None:
        """Tell the user once, with the framework's name and version; eerl-run says it, never the trainer."""
        if text not in self._told:
            self._told.add(text)
            mark.note(f"{self.framework} {self.version}: {text}")

    def tell_pool(self, role: str, otherwise: Callable[[], object] | None = None) -> None:
        """Mark this process's GPU as one of the pool ``role``; ``otherwise`` as in :func:`gpus.tell`."""
        if not gpus.tell(role, otherwise):
            self.say(f"a worker of the {role} pool cannot tell its GPU's UUID; set `pools:` in the policy")

    def speaks(self, rank: int = 0) -> bool:
        """Whether this process marks phases and counts for the job.

        Only rank 0 of a process group does, only the first of several trainers, and none that marks itself.
        """
        if rank:
            return False
        reason = speaker.silence()
        if reason is not None:
            self.say(reason)
        return reason is None

    def speaks_for_its_parent(self) -> bool:
        """Whether the trainer that started this process speaks: its helper may then tell what it alone knows."""
        return speaker.parent_speaks()

    # -- hooks ----------------------------------------------------------------------------------------------

    def hook(self, owner: Any, name: str, hook: Hook, *, costs: str = "its markers") -> bool:
        """Watch ``owner.name`` with ``hook``; False, and one message, when this version has no such name.

        Functions, methods, coroutines, generators and asynchronous generators are watched from their start to their
        end; ``costs`` says what is missing without it.
        """
        static = inspect.getattr_static(owner, name, None)
        if isinstance(owner, (type, ModuleType)):
            original = getattr(static, "__func__", static)
        else:  # one object's own method, bound to it
            static = original = getattr(owner, name, None)
        where = f"{getattr(owner, '__qualname__', getattr(owner, '__name__', type(owner).__name__))}.{name}"
        if not callable(original):
            self.missing.append(where)
            self.say(f"{where} is not there; {costs} will be missing")
            return False
        if getattr(original, _MARK, False):
            return True
        watched = self._watched(original, hook)
        setattr(watched, _MARK, True)
        kind = type(static) if isinstance(static, (staticmethod, classmethod)) else None
        setattr(owner, name, watched if kind is None else kind(watched))
        self.hooked.append(where)
        return True

    def _watched(self, original: Callable[..., Any], hook: Hook) -> Callable[..., Any]:
        running = _Running(self, hook)
        make = _plain
        if inspect.iscoroutinefunction(original):
            make = _coroutine
        elif inspect.isgeneratorfunction(original):
            make = _generator
        elif inspect.isasyncgenfunction(original):
            make = _async_generator
        watched = make(original, running)
        try:
            functools.update_wrapper(watched, original)
        except Exception:  # an odd callable; the watch works without its name
            pass
        return watched


class _Running:
    """Takes one hook through calls: ``begin``, then ``end`` or ``fail``; never raises."""

    def __init__(self, adapter: Adapter, hook: Hook) -> None:
        self._adapter = adapter
        self._hook = hook
        self._faults = 0

    def begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Generator[None, Any, None] | None:
        """The hook at its ``yield``, or None when it does not watch this call."""
        if self._faults >= _MAX_FAULTS:
            return None
        try:
            generator = self._hook(*args, **kwargs)
            next(generator)
        except StopIteration:
            return None
        except Exception as error:
            self._fault(error)
            return None
        return generator

    def end(self, generator: Generator[None, Any, None] | None, result: Any) -> None:
        """The call has returned."""
        if generator is None:
            return
        try:
            generator.send(result)
            generator.close()  # a second yield is no use
        except StopIteration:
            pass
        except Exception as error:
            self._fault(error)

    def fail(self, generator: Generator[None, Any, None] | None, raised: BaseException) -> None:
        """The call has raised; its exception keeps the traceback it has."""
        if generator is None:
            return
        trace, context = raised.__traceback__, raised.__context__
        try:
            generator.throw(raised)
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

    def _fault(self, error: Exception) -> None:
        self._faults += 1
        name = getattr(self._hook, "__name__", "?")
        self._adapter.say(f"eerl's hook {name} failed ({error!r}); markers may be missing")


def _plain(original: Callable[..., Any], running: _Running) -> Callable[..., Any]:
    def watched(*args: Any, **kwargs: Any) -> Any:
        generator = running.begin(args, kwargs)
        try:
            result = original(*args, **kwargs)
        except BaseException as error:
            running.fail(generator, error)
            raise
        running.end(generator, result)
        return result

    return watched


def _coroutine(original: Callable[..., Any], running: _Running) -> Callable[..., Any]:
    async def watched(*args: Any, **kwargs: Any) -> Any:
        generator = running.begin(args, kwargs)
        try:
            result = await original(*args, **kwargs)
        except BaseException as error:
            running.fail(generator, error)
            raise
        running.end(generator, result)
        return result

    return watched


def _generator(original: Callable[..., Any], running: _Running) -> Callable[..., Any]:
    def watched(*args: Any, **kwargs: Any) -> Any:
        generator = running.begin(args, kwargs)
        try:
            result = yield from original(*args, **kwargs)
        except BaseException as error:
            running.fail(generator, error)
            raise
        running.end(generator, result)
        return result

    return watched


def _async_generator(original: Callable[..., Any], running: _Running) -> Callable[..., Any]:
    async def watched(*args: Any, **kwargs: Any) -> Any:
        generator = running.begin(args, kwargs)
        source = original(*args, **kwargs)
        try:
            async for item in source:
                yield item
        except BaseException as error:
            running.fail(generator, error)
            raise
        finally:
            await source.aclose()
        running.end(generator, None)

    return watched
