"""Tells an adapter when a module it wants to see has been imported, and imports nothing itself before.

A finder at the head of ``sys.meta_path`` that finds nothing: it asks the others, and has their loader call us once
the module has run. Loaded into every Python process of the job: only what Python has imported by then, no ``typing``.
"""

from __future__ import annotations

import os
import sys

from . import registry

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.machinery import ModuleSpec
    from types import ModuleType

    Told = Callable[[str, str, ModuleType], None]

#: What eerl-run gave this Python, for adapters in a program that clears its environment afterwards.
given: dict[str, str] = {}


class Watch:
    """A meta-path finder; ``told(our module, name, module)`` is called after a watched module has run."""

    def __init__(self, modules: dict[str, str], told: Told) -> None:
        self._modules = modules
        self._told = told
        self._asking: set[str] = set()

    def find_spec(
        self, name: str, path: object = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """What the other finders find, followed when the module is one of ours to see."""
        if name not in self._modules or name in self._asking:
            return None
        self._asking.add(name)
        try:
            spec = self._ask_others(name, path, target)
        finally:
            self._asking.discard(name)
        if spec is not None:
            self._follow(spec)
        return spec

    def _ask_others(self, name: str, path: object, target: ModuleType | None) -> ModuleSpec | None:
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(name, path, target) if find and finder is not self else None
            if spec is not None:
                return spec
        return None

    def _follow(self, spec: ModuleSpec) -> None:
        """Have ``spec``'s own loader call us after it has run the module; the loader stays what it is."""
        name, loader = spec.name, spec.loader
        original = getattr(loader, "exec_module", None)
        if loader is None or original is None:
            return

        def exec_module(module: ModuleType) -> None:
            original(module)
            if module.__name__ == name:  # the loader of a zip file is shared
                loader.__dict__.pop("exec_module", None)
                self.tell(name, module)

        try:
            loader.exec_module = exec_module  # type: ignore[method-assign]
        except (AttributeError, TypeError):  # built into the interpreter; no trainer is
            return

    def tell(self, name: str, module: ModuleType) -> None:
        """A watched module is there; nothing that goes wrong on our side reaches its importer."""
        try:
            self._told(self._modules[name], name, module)
        except Exception as error:
            _complain(name, error)


def _adapt(ours: str, name: str, module: ModuleType) -> None:
    """Import our module for it, only now, and let its adapter set its hooks."""
    full = f"{__package__}.{ours}"
    __import__(full)
    sys.modules[full].adapter.loaded(name, module)


def _complain(name: str, error: Exception) -> None:
    try:
        from ..mark import note

        note(f"eerl's adapter for {name} failed ({error!r}): no markers from it")
    except Exception:  # not even that
        pass


def start(choice: str) -> Watch | None:
    """Watch for the modules of adapter ``choice`` (``auto``: all); those imported already are told of at once."""
    given.update({name: value for name, value in os.environ.items() if name.startswith("EERL_")})
    modules = registry.wanted(choice)
    if not modules or any(isinstance(finder, Watch) for finder in sys.meta_path):
        return None
    watch = Watch(modules, _adapt)
    sys.meta_path.insert(0, watch)
    for name in modules:
        if name in sys.modules:
            watch.tell(name, sys.modules[name])
    return watch
