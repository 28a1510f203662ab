"""What is told of srun's and slurmstepd's own words when agents start."""

from __future__ import annotations

from eerl_launch.agent_complaints import PATIENCE_S, Complaints

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
