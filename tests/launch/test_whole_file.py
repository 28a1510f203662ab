"""Files that a command writes: whole or not at all, and never over what is no plain file."""

from __future__ import annotations

import os
import resource
import signal
import stat
from pathlib import Path

import pytest

from eerl_launch.errors import OptionError
from eerl_launch.whole_file import why_not_into, write_asked, write_whole


def test_a_plain_file_is_replaced_and_keeps_its_permissions(tmp_path: Path) -> None:
    """New content, the old mode, and nothing else in the folder; a new file can be read by all."""
    old, new = tmp_path / "old.html", tmp_path / "new.html"
    old.write_text("before")
    old.chmod(0o600)

    write_whole(old, "after – ☂")
    write_whole(new, b"bytes")

    assert (old.read_text(encoding="utf-8"), new.read_bytes()) == ("after – ☂", b"bytes")
    assert [stat.S_IMODE(path.stat().st_mode) for path in (old, new)] == [0o600, 0o644]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new.html", "old.html"]


def test_a_write_that_fails_half_way_leaves_the_old_file(tmp_path: Path) -> None:
    """The file system takes no more after some bytes: the old content stays, no half file does, the file is named."""
    path = tmp_path / "page.html"
    path.write_text("before")
    limits, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))

    try:
        with pytest.raises(OSError, match="File too large") as caught:
            write_whole(path, "x" * 100_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)

    assert caught.value.filename == str(path)
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("folder", "it is a folder"),
        ("link", "it is a symbolic link"),
        ("dangling", "it is a symbolic link"),
        ("pipe", "it is no plain file"),
        ("ledger.jsonl", "it is a run's ledger"),
    ],
)
def test_what_is_no_plain_file_is_left_alone(tmp_path: Path, kind: str, reason: str) -> None:
    """One line with option, file and reason; what a link leads to, and a run's ledger, stay as they were."""
    path, elsewhere = tmp_path / kind, tmp_path / "elsewhere"
    elsewhere.write_text("mine")
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "ledger.jsonl":
        path.write_text("mine")
    else:
        path.symlink_to(elsewhere if kind == "link" else tmp_path / "nothing")
    before = path.lstat()

    with pytest.raises(OptionError) as caught:
        write_asked("--html", path, "after")

    assert str(caught.value) == f"--html {path}: cannot be written ({reason})"
    assert path.lstat() == before and elsewhere.read_text() == "mine"
    assert sorted(item.name for item in tmp_path.iterdir()) == sorted([kind, "elsewhere"])


def test_a_name_as_long_as_names_may_be(tmp_path: Path) -> None:
    """The temporary file's name is not made of the file's own."""
    path = tmp_path / ("x" * 255)

    write_whole(path, "there")

    assert path.read_text() == "there"


def test_whether_a_folder_takes_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is wrong with a folder; a file, nothing at all, and a folder not to be written have their reasons."""
    file = tmp_path / "file"
    file.write_text("")

    assert why_not_into(tmp_path) is None
    assert why_not_into(file) == "it is no folder"
    assert why_not_into(tmp_path / "nothing") == "there is no such folder"
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert why_not_into(tmp_path) == "this user may not write there"
