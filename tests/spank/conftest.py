"""Builds of the C parts, and lone nodes to run them on."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from spank.lone_node import SPANK, LoneNode, without_namespaces

BUILDS = {"release": SPANK, "sanitized": SPANK / ".build" / "sanitize"}


@pytest.fixture(scope="session")
def build() -> Callable[[str], Path]:
    """Make a build, once; its folder."""
    done: set[str] = set()

    def make(name: str) -> Path:
        if name not in done:
            target = "all" if name == "release" else "sanitize"
            subprocess.run(["make", "-s", "-C", os.fspath(SPANK), target], check=True, timeout=240)
            done.add(name)
        return BUILDS[name]

    return make


@pytest.fixture(params=["release", "sanitized"])
def build_name(request: pytest.FixtureRequest) -> str:
    """The product as shipped, and with AddressSanitizer and UBSan watching it."""
    return str(request.param)


@pytest.fixture
def make_node(
    tmp_path: Path, build: Callable[[str], Path], build_name: str
) -> Iterator[Callable[..., LoneNode]]:
    """Nodes that end with the test."""
    if reason := without_namespaces():
        pytest.skip(reason)
    nodes: list[LoneNode] = []

    def make(**wishes: Any) -> LoneNode:
        folder = tmp_path / f"node{len(nodes)}"
        folder.mkdir(mode=0o755)
        nodes.append(LoneNode(folder, build(build_name) / "eerl-clockd", **wishes))
        return nodes[-1]

    yield make
    for node in nodes:
        node.stop()
    # A sanitizer's finding ends the worker and is seen here; tests that kill workers themselves say so.
    assert [node for node in nodes if "worker died" in node.syslog() and not node.deaths_meant] == []


@pytest.fixture
def node(make_node: Callable[..., LoneNode]) -> LoneNode:
    """A node of four H100."""
    return make_node()
