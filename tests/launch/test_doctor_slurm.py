"""``eerl doctor`` inside real jobs: what works is said to work, and what is missing is named."""

from __future__ import annotations

import json
from typing import Any

import pytest
from rig.cluster import Cluster, MakeCluster

pytestmark = pytest.mark.slurm


def doctor(cluster: Cluster, *arguments: str) -> tuple[int, list[dict[str, Any]]]:
    """Exit code and findings of a doctor that runs as a job."""
    job = cluster.run("eerl doctor --json", *arguments)
    assert job.output, job.errors
    return int(job.exit_code or 0), json.loads(job.output)["checks"]


def states(checks: list[dict[str, Any]], name: str) -> dict[str | None, str]:
    """The state of one check by node."""
    return {check["node"]: check["state"] for check in checks if check["name"] == name}


def test_all_well_on_two_nodes(cluster: Cluster) -> None:
    """On a cluster with the plugin every check of both nodes is ok."""
    code, checks = doctor(cluster, "-N2", "--gres=gpu:2", "--eerl")

    assert [check for check in checks if check["state"] != "ok"] == []
    assert code == 0
    for name in ("plugin", "broker", "GPU map", "python", "marker socket"):
        assert states(checks, name) == {"n1": "ok", "n2": "ok"}
    assert states(checks, "--eerl") == states(checks, "GpuFreqDef") == {None: "ok"}


def test_job_without_the_option(cluster: Cluster) -> None:
    """A job that did not ask for eerl hears so, from each node."""
    code, checks = doctor(cluster, "-N2", "--gres=gpu:2")

    assert code == 1
    assert states(checks, "plugin") == {"n1": "fail", "n2": "fail"}


def test_cluster_without_the_plugin(make_cluster: MakeCluster) -> None:
    """Without the plugin doctor names what the site must do, and that NVML can still be read."""
    cluster = make_cluster(nodes=1, plugin=False)

    code, checks = doctor(cluster, "--gres=gpu:1")

    assert code == 1
    assert states(checks, "--eerl") == {None: "fail"}
    assert states(checks, "plugin") == {"n1": "fail"}
    assert states(checks, "NVML")["n1"] in ("ok", "warn")
