"""What is told of srun's and slurmstepd's own words when agents start."""

from __future__ import annotations

import selectors
import time
from pathlib import Path
from typing import Any

import pytest

from eerl_launch.agent_complaints import PATIENCE_S, Complaints
from eerl_launch.arrangement import Arrangement
from eerl_launch.energy import Allocation
from eerl_launch.ledger import LedgerWriter
from eerl_launch.node_watch import NodeWatch
from eerl_launch.nodes import Link, Nodes
from eerl_launch.orders import Orders
from eerl_launch.policy import Policy
from eerl_launch.steering import Steering
from eerl_launch.telling import RunClock, Voice

NOISE = (
    "slurmstepd-n1: error: TMPDIR [/scratch] is not writeable\nslurmstepd-n1: error: Setting TMPDIR to /tmp\n"
)


def test_what_harms_comes_last() -> None:
    """Of an agent that ends the last lines are the reason, whatever was said before them and in how many pieces."""
    complaints = Complaints()

    complaints.hear(NOISE * 3, 1.0)
    complaints.hear("\nsrun: error: Unable to create step for job 7: Invalid account\n", 2.0)

    assert complaints.of_an_end(3.0).endswith(
        "; srun: error: Unable to create step for job 7: Invalid account"
    )
    assert complaints.of_a_silence(3.0) == "", "agents may still come"


def test_old_lines_are_no_reason() -> None:
    """A harmless line of the start does not explain an agent that is killed hours later."""
    complaints = Complaints()
    complaints.hear(NOISE, 1.0)

    assert complaints.of_an_end(3600.0) == ""


def test_an_agent_that_never_comes() -> None:
    """An srun that hangs is told with its words once patience is over; one that said nothing is not."""
    complaints = Complaints()
    assert complaints.of_a_silence(1000.0) == ""

    complaints.hear(
        "srun: Job 7 step creation temporarily disabled, retrying (Requested nodes are busy)", 1.0
    )

    assert complaints.of_a_silence(PATIENCE_S) == ""
    assert "temporarily disabled" in complaints.of_a_silence(PATIENCE_S + 2.0)


@pytest.mark.parametrize("joined", [True, False])
def test_only_missing_agents_are_told_of(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], joined: bool
) -> None:
    """Slurm's words are the user's when a node's agent is missing long after; where all came they are noise."""
    nodes = Nodes(["n1", "n2"])
    nodes.links = [Link(["cat"], {"PATH": "/bin:/usr/bin"})]
    for node in nodes.by_name.values():
        node.state, node.heard_at = "joined", time.monotonic() + 2 * PATIENCE_S
    nodes.node("n2").state = "joined" if joined else "expected"
    voice, energy = Voice(LedgerWriter(tmp_path), RunClock(0.0)), Allocation()
    arrangement, steering = Arrangement(Policy()), Steering()
    orders = Orders(nodes, steering, arrangement, RunClock(0.0), voice)
    callbacks: Any = [lambda *_: None] * 3
    with selectors.DefaultSelector() as selector:
        watch = NodeWatch({}, selector, nodes, energy, orders, RunClock(0.0), voice, *callbacks)
        nodes.links[0].complaints.hear(NOISE, time.monotonic())

        watch.tick(time.monotonic())
        early = capfd.readouterr().err
        watch.tick(time.monotonic() + PATIENCE_S + 1.0)
        watch.tick(time.monotonic() + PATIENCE_S + 9.0)

    nodes.links[0].close_input()  # and cat ends
    nodes.links[0].process.wait()
    told = capfd.readouterr().err
    assert early == ""
    assert told.count("no agent has answered on n2 yet: ") == (0 if joined else 1)
    assert ("Setting TMPDIR" in told) is not joined
