"""The folders that tests open for other users, and those that they must not touch."""

from __future__ import annotations

import stat
import tempfile
from pathlib import Path

import pytest
from rig import cluster
from rig.folders import KeptMode, open_to_others


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_only_folders_below_the_temporary_one_are_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However deep or shallow a test's folder lies, what is above it stays as it was; bits are added, none taken."""
    shared = tmp_path / "tmp"
    inner = shared / "pytest-of-me" / "test_0"
    inner.mkdir(parents=True)
    for folder, bits in ((tmp_path, 0o700), (shared, 0o1700), (inner.parent, 0o700), (inner, 0o2770)):
        folder.chmod(bits)
    monkeypatch.setattr(tempfile, "tempdir", str(shared))

    open_to_others(inner)

    assert [mode(folder) for folder in (inner, inner.parent, shared, tmp_path)] == [
        0o2771,
        0o711,
        0o1700,
        0o700,
    ]


def test_a_mode_that_was_changed_is_told_and_put_back(tmp_path: Path) -> None:
    """The next test finds the folder as it was."""
    tmp_path.chmod(0o1777)
    kept = KeptMode(tmp_path)
    assert kept.mend() == ""

    tmp_path.chmod(0o755)

    assert "mode 0755 instead of 1777" in kept.mend()
    assert mode(tmp_path) == 0o1777


def test_a_temporary_folder_that_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm's steps need one that the job's user can write to; where it is not, no cluster starts, with the cure."""
    if cluster.missing():
        pytest.skip(f"no cluster in any case: {cluster.missing()}")
    monkeypatch.setattr(cluster, "TEMPORARY", tmp_path)
    tmp_path.chmod(0o755)

    assert cluster.missing().endswith(f"chmod 1777 {tmp_path}")
