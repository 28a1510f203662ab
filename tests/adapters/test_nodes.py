"""The adapters on the other nodes of a job: laid by their agents, waited for by the launcher, gone with the job."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from launch.test_agent import AgentProcess

from eerl_launch import adapter_folder, agents_start, launch
from eerl_launch.devices.sim import SimGpus, SimSpec
from eerl_launch.launch import SessionProcess
from eerl_launch.slurm import read_allocation

NAME = adapter_folder.new_name()


@pytest.fixture
def start_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., AgentProcess]]:
    """Starts agents with simulated GPUs, which are told the adapters' folder, and ends them with the test."""
    monkeypatch.setenv(adapter_folder.VARIABLE, NAME)
    SimGpus.create(tmp_path / "sim", SimSpec("h100", 1, 2))
    started: list[AgentProcess] = []

    def start(*options: str) -> AgentProcess:
        started.append(AgentProcess(tmp_path / "sim", *options))
        return started[-1]

    yield start
    for agent in started:
        agent.process.kill()
        agent.process.wait(30)


def test_an_agent_lays_them(start_agent: Callable[..., AgentProcess], tmp_path: Path) -> None:
    """Before it is heard of they are there, complete, and with its end the folder is gone with the trainer's lock."""
    private = tmp_path / "private"
    agent = start_agent("--marker-folder", str(private))

    agent.wait_for("join")
    folder = private / NAME
    env = {**os.environ, "PYTHONPATH": str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", "import sys; print(type(sys.meta_path[0]).__name__)"],
        env=env,
        capture_output=True,
        text=True,
    )
    (private / "trainer").touch()
    agent.send(op="end")
    agent.wait_for("bye")
    agent.process.wait(30)

    assert done.stdout == "Watch\n"
    assert not private.exists()


def test_an_agent_lays_them_again(start_agent: Callable[..., AgentProcess], tmp_path: Path) -> None:
    """A clean-up during the job takes them for a second or two."""
    private = tmp_path / "private"
    agent = start_agent("--marker-folder", str(private))
    agent.wait_for("join")

    adapter_folder.remove(private, NAME)

    deadline = time.monotonic() + 30
    while not (private / NAME / "sitecustomize.py").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_an_agent_trusts_no_strange_folder(start_agent: Callable[..., AgentProcess], tmp_path: Path) -> None:
    """Code that the trainer imports is laid into no folder that others can write to."""
    private = tmp_path / "private"
    private.mkdir(mode=0o777)
    private.chmod(0o777)
    agent = start_agent("--marker-folder", str(private))

    agent.wait_for("join")

    assert list(private.iterdir()) == []


def test_without_adapters_none_are_laid(
    start_agent: Callable[..., AgentProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``--adapter none`` is none on every node."""
    monkeypatch.delenv(adapter_folder.VARIABLE)
    private = tmp_path / "private"
    agent = start_agent("--marker-folder", str(private))

    agent.wait_for("join")

    assert not list(private.glob("adapters*"))


class Quiet:
    """A session that is heard of after a while, or never."""

    def __init__(self, after_s: float | None) -> None:
        sleep = (
            f"import time; time.sleep({after_s}); print(end='.', flush=True)" if after_s is not None else ""
        )
        code = f"{sleep}\nimport time; time.sleep(30)"
        self.process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)

    def wait_s(self) -> float:
        """How long the launcher waits for it."""
        begin_s = time.monotonic()
        SessionProcess(self.process).wait_for_agents()
        return time.monotonic() - begin_s

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.mark.parametrize("after_s", [0.0, 0.3])
def test_the_launcher_waits_for_agents(
    after_s: float, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No longer than it takes them to be heard of."""
    monkeypatch.setattr(launch, "_AGENTS_S", 60.0)
    session = Quiet(after_s)

    waited_s = session.wait_s()
    session.end()

    assert after_s <= waited_s < 60.0
    assert capfd.readouterr().err == ""


def test_the_launcher_does_not_wait_for_ever(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It starts the command and warns."""
    monkeypatch.setattr(launch, "_AGENTS_S", 0.2)
    session = Quiet(None)

    session.wait_s()
    session.end()

    assert "without framework adapters" in capfd.readouterr().err


def test_a_session_that_dies_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its closed output is the end of waiting."""
    monkeypatch.setattr(launch, "_AGENTS_S", 60.0)
    session = Quiet(None)
    session.process.kill()

    assert session.wait_s() < 60.0
    session.end()


def test_one_agent_of_many(tmp_path: Path) -> None:
    """The launcher is told when the last node has been heard of, once, and not before."""
    script = """
import json, sys
from eerl_launch.adapter_watch import Adapters
from eerl_launch.nodes import Nodes
nodes = Nodes(["a", "b"])
adapters = Adapters(json.loads(sys.argv[1]), None)
for heard in ("", "a", "b", ""):
    if heard:
        nodes.node(heard).heard_at = 1.0
    adapters.tell_launcher(nodes)
    print(end=heard, flush=True)
"""
    config: dict[str, Any] = {"private_folder": str(tmp_path), "waits_for_agents": True}
    path = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, "-c", script, json.dumps(config)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )

    assert done.stdout == "a.b", done.stderr


def test_the_name_is_a_secret_of_the_job(tmp_path: Path) -> None:
    """Agents learn it from their environment; no command line shows it."""
    config = {"adapter_folder": NAME, "private_folder": str(tmp_path), "sim_folder": "", "session_node": "n1"}
    job = read_allocation({"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_JOB_NUM_NODES": "2"})
    assert job is not None
    ((argv, env),) = agents_start.commands({**config, "nodes": ["n1", "n2"], "allocation": asdict(job)})

    assert env[adapter_folder.VARIABLE] == NAME
    assert NAME not in " ".join(argv)
    assert adapter_folder.new_name() != adapter_folder.new_name()
