"""Whole runs on simulated GPUs whose programs mark their phases in awkward ways (field cases R10, R13, S19)."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BIN = Path(sys.executable).parent


def run(out: Path, *command: str) -> tuple[int, list[dict[str, Any]]]:
    """The exit code of a run and its ledger."""
    argv = [str(BIN / "eerl-run"), "--simulate", "h100:1x2", "--out", str(out), "--", *command]
    done = subprocess.run(argv, capture_output=True, timeout=120, check=False)
    (ledger,) = out.glob("eerl-*/ledger.jsonl")
    return done.returncode, [json.loads(line) for line in ledger.read_text().splitlines()]


def of_kind(ledger: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [event for event in ledger if event["ev"] == kind]


def test_shell_script(tmp_path: Path) -> None:
    """A script that marks with eerl-mark, a connection a marker, gets whole phases and its counts."""
    mark = BIN / "eerl-mark"
    script = f"""
    for i in 1 2 3; do
        {mark} begin generation --update $i; sleep 0.4
        {mark} end generation --update $i --generated-tokens 100 --longest-response-tokens 9
        {mark} begin training --update $i; sleep 0.4; {mark} end training --update $i --valid-tokens 80
    done
    exit 3
    """

    code, ledger = run(tmp_path, "sh", "-c", script)

    assert code == 3
    phases = of_kind(ledger, "phase")
    assert [(p["update"], p["phase"]) for p in phases] == [
        (i, phase) for i in (1, 2, 3) for phase in ("generation", "training")
    ]
    assert all(p["complete"] and p["elapsed_s"] >= 0.4 for p in phases)
    records = [event["record"] for event in of_kind(ledger, "update")]
    assert [(r["generated_tokens"], r["valid_tokens"]) for r in records] == [(100, 80)] * 3
    assert not [event for event in of_kind(ledger, "event") if event["kind"] == "markers_odd"]


RANKS = """
import multiprocessing, random, time
from eerl_launch import mark

def rank(number, barrier):
    source = random.Random(number)
    for update in range(8):
        for phase in ("generation", "training"):
            barrier.wait()
            time.sleep(source.uniform(0.0, 0.05) + (0.25 if number == 7 and update == 4 else 0.0))
            with mark.phase(phase, update=update) as marked:
                time.sleep(0.15)
                marked.set(generated_tokens=1000, valid_tokens=800)

if __name__ == "__main__":
    barrier = multiprocessing.Barrier(8)
    ranks = [multiprocessing.Process(target=rank, args=(i, barrier)) for i in range(8)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
"""


def test_eight_processes(tmp_path: Path) -> None:
    """R10: eight ranks that mark the same phases, one of them late once, make one row per phase and update."""
    program = tmp_path / "ranks.py"
    program.write_text(RANKS)

    code, ledger = run(tmp_path / "out", sys.executable, str(program))

    assert code == 0
    updates = of_kind(ledger, "update")
    assert [u["label"] for u in updates] == list(range(8))
    rows = [(p["update"], p["phase"]) for p in of_kind(ledger, "phase")]
    assert rows == [(i, phase) for i in range(8) for phase in ("generation", "training")]
    assert all(p["complete"] for p in of_kind(ledger, "phase"))
    assert [u["record"]["generated_tokens"] for u in updates] == [1000] * 8
    late = next(p for p in of_kind(ledger, "phase") if (p["update"], p["phase"]) == (4, "training"))
    assert late["elapsed_s"] >= 0.35, "from the first begin to the last end"
    for before, after in itertools.pairwise(updates):
        assert before["end_s"] == after["begin_s"]


JUNK = rb"""
import os, socket
with socket.socket(socket.AF_UNIX) as s:
    s.connect(os.environ["EERL_SOCKET"])
    s.sendall(b'{"ev":"metric","name":"x","value":1,"event":"a","self":2,"fields":3}\n')
    s.sendall(b'\xff\xfe\n' + b'x' * 9000 + b'\n' + b'[' * 4000 + b'\n')
    s.sendall(b'{"ev":"update","update":' + b'9' * 4000 + b'}\n')
    s.sendall(b'{"ev":"begin","phase":"generation","update":1}\n')
    s.sendall(b'{"ev":"end","phase":"generation","update":1,"generated_tokens":1e308}\n')
    s.sendall(b'{"ev":"begin","phase":"\\ud800\\u001b[31m","update":1}\n')
    s.sendall(b'{"ev":"end","phase":"\\ud800\\u001b[31m","update":1}')
"""


def test_junk(tmp_path: Path) -> None:
    """Nonsense on the socket is counted; the run, its ledger and its report are whole."""
    program = tmp_path / "junk.py"
    program.write_bytes(JUNK)

    code, ledger = run(tmp_path / "out", sys.executable, str(program))

    assert code == 0
    assert of_kind(ledger, "metric")[0]["event"] == "a"
    (end,) = of_kind(ledger, "end")
    assert end["markers"]["malformed"] == 4
    assert [u["label"] for u in of_kind(ledger, "update")] == [1]
    assert list((tmp_path / "out").glob("eerl-*/report.html"))
    assert not [event for event in of_kind(ledger, "event") if event["kind"] == "session_failed"]


@pytest.mark.parametrize("what", ["folder", "socket"])
def test_clean_up_in_the_middle(tmp_path: Path, what: str) -> None:
    """S19: when a site's cleaner takes the socket away, it comes back and later markers are heard."""
    mark = BIN / "eerl-mark"
    victim = '"$(dirname "$EERL_SOCKET")"' if what == "folder" else '"$EERL_SOCKET"'
    script = f"""
    {mark} begin generation --update 1
    rm -rf {victim}
    for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
        sleep 0.5; test -S "$EERL_SOCKET" && break
    done
    {mark} end generation --update 1
    """

    code, ledger = run(tmp_path, "sh", "-c", script)

    assert code == 0
    (phase,) = of_kind(ledger, "phase")
    assert phase["phase"] == "generation" and phase["complete"]
