"""A study at work on this machine: failed runs are run again, a signal ends it cleanly."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SWEEP = (sys.executable, "-c", "from eerl_launch.tools import main; main()", "sweep")
#: Fails under 1500/1200 until the file named "mended" is there. The launcher tells the command its run folder.
SCRIPT = (
    "import os, pathlib, sys; here = pathlib.Path(os.environ['EERL_RUN_DIR']).parent; "
    "sys.exit(7 if here.name == '1500-1200' and not pathlib.Path(sys.argv[1]).exists() else 0)"
)

pytestmark = pytest.mark.slow


def study(tmp_path: Path, command: list[str]) -> list[str]:
    """A study of two pairs and one seed around a command; the command line that runs it here."""
    file = tmp_path / "study.yaml"
    plain = {"command": command, "pairs": ["1800/1500", "1500/1200"], "seeds": [3], "simulate": "h100:1x1"}
    file.write_text(json.dumps(plain))
    return [*SWEEP, str(file), "--out", str(tmp_path / "out"), "--local"]


def orders(tmp_path: Path) -> dict[str, float]:
    """When each run that is noted began, by the name of its folder."""
    notes = (tmp_path / "out").glob("runs/*/*/*/*/cell.json")
    return {note.parent.name: json.loads(note.read_text())["begin_unix_s"] for note in notes}


def test_a_failed_run_is_run_again_and_nothing_else(tmp_path: Path) -> None:
    """The exit code says that one failed; given again, only that one runs; then nothing is left."""
    mended = tmp_path / "mended"
    argv = study(tmp_path, [sys.executable, "-c", SCRIPT, str(mended)])

    first = subprocess.run(argv, capture_output=True, text=True, timeout=120)
    before = orders(tmp_path)
    mended.touch()
    second = subprocess.run(argv, capture_output=True, text=True, timeout=120)
    after = orders(tmp_path)
    third = subprocess.run(argv, capture_output=True, text=True, timeout=120)

    assert first.returncode == 1 and "1500/1200 ended with exit code 7" in first.stderr
    assert second.returncode == 0, second.stderr
    assert set(before) == set(after) == {"governor-governor", "1800-1500", "1500-1200"}
    assert [name for name in after if after[name] != before[name]] == ["1500-1200"]
    assert third.returncode == 0 and "sweep:" not in third.stderr


def test_a_signal_ends_the_run_in_progress_and_begins_no_other(tmp_path: Path) -> None:
    """TERM reaches the command; what it cut short has no note, so it is run again."""
    argv = study(tmp_path, ["sleep", "120"])
    running = subprocess.Popen(argv, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    ledgers = tmp_path / "out"
    deadline = time.monotonic() + 60
    while not list(ledgers.glob("runs/*/*/*/*/eerl-*/ledger.jsonl")) and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(1.0)

    running.send_signal(signal.SIGTERM)
    code = running.wait(timeout=60)

    assert code == 128 + signal.SIGTERM
    assert orders(tmp_path) == {}
    assert len(list(ledgers.glob("runs/*/*/*/*/eerl-*"))) == 1
