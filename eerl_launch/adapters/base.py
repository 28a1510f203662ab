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
from collections.abc import Callable
from types import ModuleType
from typing import Any

from .. import mark
from . import gpus, speaker, watch, watched
from .running import Hook, Running

mark.otherwise(watch.given.get("EERL_SOCKET"))

Patch = Callable[[ModuleType], None]


class Adapter:
    """One framework's hooks. ``distribution`` is its package's name where that differs from ``framework``."""

    def __init__(self, framework: str, distribution: str | None = None) -> None:
        self.framework = framework
        self._distribution = distribution or framework
        self._patches: dict[str, Patch] = {}
        self._told: set[str] = set()
        self._methods: list[tuple[type, str, Running]] = []
        #: Names that are watched, and names that this version has not: for ``look``.
        self.hooked: list[str] = []
        self.missing: list[str] = []

    def __getstate__(self) -> dict[str, Any]:
        """Hooked functions may be pickled by value, and take it along: not the classes, which would be imported."""
        return {**vars(self), "_methods": []}

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
        if watched.is_watched(original):
            return True
        running = Running(hook, self.say)
        put: Any = watched.watch(original, running)
        if not isinstance(owner, (type, ModuleType)):
            put = watched.bound(owner, name, original, running)
        elif isinstance(static, (staticmethod, classmethod)):
            put = type(static)(put)
        elif isinstance(owner, type) and not hasattr(type(static), "__get__"):
            put = staticmethod(put)  # a partial, say: it is called without the object
        elif isinstance(owner, type) and not name.startswith("__"):
            self._methods.append((owner, name, running))
        try:
            setattr(owner, name, put)
        except (AttributeError, TypeError) as error:
            self.missing.append(where)
            self.say(f"{where} cannot be watched ({error}); {costs} will be missing")
            return False
        self.hooked.append(where)
        return True

    def follow(self, one: Any) -> None:
        """Watch also what took the place of ``one``'s hooked methods: overridden in a script's subclass, or assigned.

        What it calls of the original is part of the same call.
        """
        for owner, name, running in self._methods:
            if not isinstance(one, owner):
                continue
            try:
                watched.follow(one, name, running)
            except Exception as error:
                self.say(f"{type(one).__name__}.{name} cannot be watched ({error!r}); markers may be missing")
