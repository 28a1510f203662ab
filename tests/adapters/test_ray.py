"""Real Ray on CPU: workers run under our hooks however their cluster was started; its own hooks go on working."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest
from adapters.environments import ray_python

from eerl_launch import adapter_folder

#: A driver with one actor that says under which hooks it runs; a plain script.
DRIVER = """
import json, os, sys
import ray

class Looker:
    def look(self):
        watch = [type(finder).__module__ for finder in sys.meta_path][0]
        return {
            "watch": watch,
            "path": os.environ.get("PYTHONPATH"),
            "socket": os.environ.get("EERL_SOCKET"),
            "foo": os.environ.get("FOO"),
            "hook": os.environ.get("RAY_RUNTIME_ENV_HOOK"),
            "cwd_first": os.getcwd() in sys.path[1:3],
        }

ray.init(**json.loads(sys.argv[1]), logging_level="ERROR")
here = Looker().look()
there = ray.get(ray.remote(num_cpus=0)(Looker).remote().look.remote())
print("SEEN", json.dumps({"driver": here, "worker": there}))
"""
WATCH = f"{adapter_folder.PACKAGE_NAME}.adapters.watch"

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def python() -> Path:
    """An interpreter with Ray."""
    return ray_python()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The adapters as eerl-run lays them."""
    return adapter_folder.lay(tmp_path, "adapters")


def clean() -> dict[str, str]:
    """An environment in which nobody has heard of eerl or of another Ray."""
    quiet = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
    ours = ("EERL_", "PYTHON", "RAY_")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)} | quiet


class Cluster(NamedTuple):
    """Where to connect, and where to submit jobs."""

    address: str
    dashboard: str


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


@pytest.fixture(scope="module")
def cluster(python: Path) -> Iterator[Cluster]:
    """A cluster that was started before, by somebody who had not eerl-run before it; its PYTHONPATH is its own."""
    ray = str(python.parent / "ray")
    # A place of its own, so that nobody else's ray.init() finds it, or looks for it when it is gone.
    place = tempfile.mkdtemp(prefix="ray-")
    env = clean() | {"PYTHONPATH": "/of/the/cluster", "RAY_TMPDIR": place}
    port, dashboard = free_ports(2)
    start = [ray, "start", "--head", f"--port={port}", "--num-cpus=2", f"--dashboard-port={dashboard}"]
    start += ["--include-dashboard=true", "--disable-usage-stats", "--block"]
    head = psutil.Popen(start, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    heard = []
    for line in head.stdout:
        heard.append(line)
        if "--block" in line:  # it says so once all is up
            break
    assert head.poll() is None, "".join(heard)
    yield Cluster(f"127.0.0.1:{port}", f"http://127.0.0.1:{dashboard}")
    ours = [head, *head.children(recursive=True)]  # `ray stop` would end everybody's
    for process in ours:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(ours, timeout=60)
    head.stdout.close()
    shutil.rmtree(place, ignore_errors=True)


def look(output: str) -> dict[str, Any]:
    """What driver and worker saw."""
    line = next(line for line in output.splitlines() if "SEEN {" in line)
    return dict(json.loads(line[line.index("{") :]))


def run(python: Path, folder: Path, script: Path, init: dict[str, Any], **env: str) -> dict[str, Any]:
    """Run the driver as eerl-run would."""
    script.write_text(DRIVER)
    hooks = adapter_folder.environment(env, folder, "auto") | {"EERL_SOCKET": str(folder.parent / "s")}
    done = subprocess.run(
        [str(python), str(script), json.dumps(init)],
        env=clean() | env | hooks,
        cwd=script.parent,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return look(done.stdout)


def test_a_local_cluster(python: Path, folder: Path, tmp_path: Path) -> None:
    """Workers of a cluster that the driver starts have the hooks, and the driver's own path behind them."""
    seen = run(
        python,
        folder,
        tmp_path / "driver.py",
        {"address": "local", "num_cpus": 2, "include_dashboard": False},
        PYTHONPATH="/of/the/driver",
    )

    assert seen["driver"]["watch"] == seen["worker"]["watch"] == WATCH
    assert seen["worker"]["path"].endswith("/of/the/driver")
    assert seen["driver"]["hook"] is None


def test_a_cluster_that_ran_before(python: Path, folder: Path, tmp_path: Path, cluster: Cluster) -> None:
    """Its workers get our environment through the runtime environment; the node's path and the user's values stay."""
    init = {"address": cluster.address, "runtime_env": {"env_vars": {"FOO": "theirs"}}}
    (tmp_path / "hooks.py").write_text(
        "def hook(env):\n    env['env_vars']['FOO'] += ' and their hook'\n    return env\n"
    )
    plain = subprocess.run(
        [str(python), "-c", DRIVER, json.dumps({"address": cluster.address})],
        env=clean(),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert plain.returncode == 0, plain.stderr[-2000:]
    assert look(plain.stdout)["worker"]["watch"] != WATCH

    seen = run(
        python,
        folder,
        tmp_path / "driver.py",
        init,
        PYTHONPATH=str(tmp_path),
        RAY_RUNTIME_ENV_HOOK="hooks.hook",
    )

    assert seen["worker"]["watch"] == WATCH
    assert seen["worker"]["path"] == f"{folder}:/of/the/cluster"
    assert seen["worker"]["foo"] == "theirs and their hook"
    assert seen["worker"]["socket"] == str(tmp_path / "s")
    assert seen["driver"]["hook"] == "hooks.hook"


def test_a_driver_that_clears_its_environment(
    python: Path, folder: Path, tmp_path: Path, cluster: Cluster
) -> None:
    """What it had from eerl-run when it started reaches its workers all the same."""
    (tmp_path / "clears.py").write_text(
        "import os\npath = os.environ['PATH']\nos.environ.clear()\nos.environ['PATH'] = path\n"
    )
    hooks = adapter_folder.environment({}, folder, "auto") | {"EERL_SOCKET": str(tmp_path / "s")}

    done = subprocess.run(
        [str(python), "-c", f"import clears\n{DRIVER}", json.dumps({"address": cluster.address})],
        env=clean() | hooks,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )

    assert done.returncode == 0, done.stderr[-3000:]
    seen = look(done.stdout)
    assert seen["driver"]["socket"] is None
    assert seen["worker"]["watch"] == WATCH
    assert seen["worker"]["socket"] == str(tmp_path / "s")


def test_a_submitted_job(python: Path, folder: Path, tmp_path: Path, cluster: Cluster) -> None:
    """``ray job submit`` takes the environment to its driver, and that to its workers, without a clash of keys."""
    script = tmp_path / "driver.py"
    script.write_text(DRIVER)
    hooks = adapter_folder.environment({}, folder, "auto") | {"EERL_SOCKET": str(tmp_path / "s")}
    submit = [str(python.parent / "ray"), "job", "submit", f"--address={cluster.dashboard}"]
    submit += ["--runtime-env-json", json.dumps({"env_vars": {"PYTHONPATH": "/of/the/job", "FOO": "theirs"}})]

    done = subprocess.run(
        [*submit, "--", str(python), str(script), json.dumps({"runtime_env": {"env_vars": {"BAR": "1"}}})],
        env=clean() | hooks,
        capture_output=True,
        text=True,
        timeout=300,
    )

    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    seen = look(done.stdout)
    assert seen["driver"]["watch"] == seen["worker"]["watch"] == WATCH
    assert seen["driver"]["path"] == seen["worker"]["path"] == f"{folder}:/of/the/job"
    assert seen["worker"]["foo"] == "theirs"
