"""Fixtures that all test folders share: the Slurm clusters of the rig."""

from __future__ import annotations

import tempfile
from collections.abc import Generator, Iterator
from typing import Any

import pytest
from rig.cluster import Cluster, MakeCluster, missing
from rig.folders import KeptMode

_temporary = KeptMode(tempfile.gettempdir())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a real Slurm cluster where none can be started, saying why; tell two workers' shares apart.

    Clusters take turns, so that none has another's load beside it; every other file may run beside them.
    """
    reason = missing()
    for item in items:
        on_slurm = item.get_closest_marker("slurm") is not None
        if reason and on_slurm:
            item.add_marker(pytest.mark.skip(reason=reason))
        item.add_marker(pytest.mark.xdist_group("slurm" if on_slurm else str(item.path)))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Show the ends of the cluster's logs under a failed test."""
    outcome: Any = yield
    report = outcome.get_result()
    fixtures = getattr(item, "funcargs", {})
    if report.when != "call" or not report.failed:
        return
    clusters = [value for value in fixtures.values() if isinstance(value, Cluster)]
    clusters += getattr(fixtures.get("make_cluster"), "started", [])
    for cluster in clusters:
        report.sections.append((f"cluster in {cluster.base}", cluster.evidence()))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """Name the test that has changed the mode of the system's temporary folder, which other tests fail from."""
    result = yield
    changed = _temporary.mend()
    if changed:
        pytest.fail(f"while {item.nodeid} ran {changed}", pytrace=False)
    return result


@pytest.fixture(scope="module")
def cluster_wishes() -> dict[str, Any]:
    """What the module's shared cluster shall be like; a module overrides this fixture to say otherwise."""
    return {}


@pytest.fixture(scope="module")
def shared_cluster(cluster_wishes: dict[str, Any]) -> Iterator[Cluster]:
    """The module's cluster, started once."""
    cluster = Cluster.start(**cluster_wishes)
    yield cluster
    cluster.stop()


@pytest.fixture
def cluster(shared_cluster: Cluster) -> Iterator[Cluster]:
    """The module's cluster, as good as new: two nodes of four GPUs unless ``cluster_wishes`` says otherwise."""
    shared_cluster.settle()
    yield shared_cluster


@pytest.fixture
def make_cluster() -> Iterator[MakeCluster]:
    """Start a special cluster; it ends with the test. Wishes are the fields of ``rig.config.Spec``."""
    started: list[Cluster] = []

    def make(**wishes: Any) -> Cluster:
        started.append(Cluster.start(**wishes))
        return started[-1]

    make.started = started  # type: ignore[attr-defined]
    yield make
    for cluster in started:
        cluster.stop()
