"""The line in the job's comment: the user's own words stay, ours are replaced."""

from __future__ import annotations

from pathlib import Path

import pytest
from outlets.runs import fake_scontrol, parcel_of

from eerl_launch.outlets.slurm_comment import CommentError, deliver, present, together

SHOWN = "JobId=1 JobName=x\n   UserId=ada(1)\n   AdminComment=node sick \n   Comment={}\n   Command=x Comment=no\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", "eerl: 2 kWh"),
        ("mine: a | b", "mine: a | b | eerl: 2 kWh"),
        ("eerl: 1 kWh", "eerl: 2 kWh"),
        ("mine | eerl: 1 kWh, saved 3 %", "mine | eerl: 2 kWh"),
        ("about eerl: good", "about eerl: good | eerl: 2 kWh"),
    ],
)
def test_the_users_words_stay(before: str, after: str) -> None:
    """Ours goes behind theirs; given again it takes the place of the first, not of words that look like it."""
    assert together(before, "eerl: 2 kWh") == after


def test_a_comment_without_room_is_left_alone() -> None:
    """Nothing of the user's is cut for ours."""
    with pytest.raises(CommentError, match="no room"):
        together("x" * 1020, "eerl: 2 kWh")


def test_only_the_field_that_is_asked_for_is_read() -> None:
    """Comment is not AdminComment, nor a word of the command; null is none."""
    assert present(SHOWN.format("mine"), "Comment") == "mine"
    assert present(SHOWN.format("mine"), "AdminComment") == "node sick"
    assert present(SHOWN.format("(null)"), "Comment") == ""
    assert present("JobId=1\n", "Comment") == ""


def test_scontrol_gets_the_whole_comment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job of the report is updated, in one argument whatever it holds."""
    script = (
        f'[ "$1" = show ] && printf "%s" "{SHOWN.format("mine")}" || printf "%s\\n" "$@" > "{tmp_path}/said"'
    )
    monkeypatch.setenv("PATH", fake_scontrol(tmp_path / "bin", script))

    line = deliver(parcel_of(tmp_path), "Comment")

    assert (tmp_path / "said").read_text().splitlines() == ["update", "JobId=4711", f"Comment=mine | {line}"]


def test_what_scontrol_says_is_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refusal comes in scontrol's own words; a run outside Slurm is told without asking it."""
    monkeypatch.setenv(
        "PATH", fake_scontrol(tmp_path / "bin", "echo slurm_update error: Access denied >&2; exit 1")
    )
    parcel = parcel_of(tmp_path)

    with pytest.raises(CommentError, match="Access denied"):
        deliver(parcel, "AdminComment")
    parcel["document"]["run"]["job_id"] = None
    with pytest.raises(CommentError, match="no Slurm job"):
        deliver(parcel, "Comment")
