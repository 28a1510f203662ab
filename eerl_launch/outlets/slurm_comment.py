"""One line about the run in its job's Slurm comment, behind what the user wrote there."""

from __future__ import annotations

import re
import subprocess

from eerl_launch.outlets.parcel import Parcel, one_line

#: Longer comments are refused by some sites' databases.
MOST_LETTERS = 1024
_OURS = re.compile(r"(?:^| \| )eerl: .*$")


class CommentError(Exception):
    """The comment could not be read or set; the text says why."""


def deliver(parcel: Parcel, field: str) -> str:
    """Put the line into the job's ``field`` (``Comment`` or ``AdminComment``); the line."""
    job = parcel["document"]["run"]["job_id"]
    if not str(job or "").isdecimal():
        raise CommentError("this run was no Slurm job")
    line = one_line(parcel["document"])
    comment = together(present(_scontrol("show", "job", str(job)), field), line)
    _scontrol("update", f"JobId={job}", f"{field}={comment}")
    return line


def present(shown: str, field: str) -> str:
    """What ``scontrol show job`` has as ``field``; empty when there is none."""
    found = re.search(rf"^\s+{field}=(.*)$", shown, re.MULTILINE)
    text = found[1].strip() if found else ""
    return "" if text == "(null)" else text


def together(before: str, line: str) -> str:
    """The user's own words first, ours behind, an earlier line of ours replaced."""
    theirs = _OURS.sub("", before)
    comment = f"{theirs} | {line}" if theirs else line
    if len(comment) > MOST_LETTERS:
        raise CommentError(f"the comment there leaves no room (at most {MOST_LETTERS} letters)")
    return comment


def _scontrol(*arguments: str) -> str:
    try:
        done = subprocess.run(["scontrol", *arguments], capture_output=True, text=True, errors="replace")
    except OSError as error:
        raise CommentError(f"scontrol cannot be started: {error.strerror}") from error
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise CommentError(said[-1] if said else f"scontrol {arguments[0]} failed")
    return done.stdout
