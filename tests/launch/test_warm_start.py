"""Warm start: what a run leaves beside its ledger, and who may take it up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from eerl_controller.bayes.warm import VERSION
from eerl_launch.arrangement import Arrangement
from eerl_launch.markers import parse
from eerl_launch.nodes import Node
from eerl_launch.policy import Policy
from eerl_launch.warm_start import MOST_BYTES, NAME, WarmStart

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
POSTERIOR = {"version": VERSION, "reach": [0.1, 0.2], "times": None, "powers": None}


def warm_start(folder: Path, asked: str = "auto", model: str = "qwen") -> tuple[WarmStart, dict[str, Any]]:
    """The warm start of a run with two GPUs, and its key."""
    folder.mkdir(exist_ok=True)
    found = WarmStart(folder, asked)
    line = json.dumps({"v": 1, "ev": "run", "framework": "trl", "mode": "colocated_sync", "model": model})
    found.told(parse(line.encode(), "test", 0.0, 0.0))
    found.updated({"responses": 64.0})
    gpus = [{"uuid": f"GPU-{letter}", "name": "H100"} for letter in "ba"]
    return found, found.key(Arrangement(Policy()), [Node("n1", info={"gpus": gpus})])


@dataclass
class Knows:
    """As much of a controller as is asked."""

    known: dict[str, Any] | None

    def posterior(self, key: dict[str, Any]) -> dict[str, Any] | None:
        """What it knows, for this key."""
        return None if self.known is None else {**self.known, "key": key}


def left(folder: Path, model: str = "qwen", known: dict[str, Any] | None = POSTERIOR) -> Path:
    """A run that has left what it knows."""
    start, key = warm_start(folder, model=model)
    start.leave(Knows(known), key)  # type: ignore[arg-type]
    return folder / NAME


def test_the_newest_run_of_the_same_job_is_taken_up(tmp_path: Path) -> None:
    """Of three runs beside this one, the latest whose key fits."""
    for age, (name, model) in enumerate([("eerl-3", "llama"), ("eerl-2", "qwen"), ("eerl-1", "qwen")]):
        path = left(tmp_path / name, model)
        os.utime(path, (1e9 - age, 1e9 - age))
    start, key = warm_start(tmp_path / "eerl-4")

    found = start.find(key)

    assert found == {**POSTERIOR, "key": key}
    assert start.source == "eerl-2"
    assert key["gpus"] == ["GPU-a", "GPU-b"] and key["batch_shape"] == [64.0]


def test_nothing_is_taken_up_unasked(tmp_path: Path) -> None:
    """``warm_start: off`` is the default."""
    left(tmp_path / "eerl-1")
    start, key = warm_start(tmp_path / "eerl-2", Policy().warm_start)

    assert start.find(key) is None


def test_a_job_that_does_not_say_what_it_trains_starts_afresh(tmp_path: Path) -> None:
    """An unknown part of the key fits nothing, not even another unknown."""
    left(tmp_path / "eerl-1", model="")
    start, key = warm_start(tmp_path / "eerl-2", model="")

    assert key["model"] is None
    assert start.find(key) is None


def test_a_run_that_knows_nothing_leaves_no_file(tmp_path: Path) -> None:
    """No posterior, no file; no controller, no file either."""
    path = left(tmp_path / "eerl-1", known=None)
    start, key = warm_start(tmp_path / "eerl-1")
    start.leave(None, key)

    assert not path.exists()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"[" * 100_000,
        b"[1]",
        b'{"version": 1}',
        b'{"version": 1, "key": 3, "reach": [0, 0]}',
        b"x" * (MOST_BYTES + 1),
    ],
)
def test_what_is_no_posterior_is_passed_over(tmp_path: Path, content: bytes) -> None:
    """Whatever lies there, the run starts, and takes up the next one."""
    left(tmp_path / "eerl-1")
    (tmp_path / "eerl-2").mkdir()
    (tmp_path / "eerl-2" / NAME).write_bytes(content)
    start, key = warm_start(tmp_path / "eerl-3")

    assert start.find(key) is not None
    assert start.source == "eerl-1"


@pytest.mark.parametrize("reach", [None, [], [0.1], ["a", "b"], [float("nan"), 0.1], [-1.0, 0.1], [9.0, 0.1]])
def test_a_reach_that_cannot_be_is_not_taken_up(tmp_path: Path, reach: Any) -> None:
    """How deep a run went decides how deep the next may go: it is looked at closely."""
    path = left(tmp_path / "eerl-1")
    path.write_text(json.dumps({**json.loads(path.read_text()), "reach": reach}))
    start, key = warm_start(tmp_path / "eerl-2")

    assert start.find(key) is None


def test_links_fifos_and_other_peoples_files_are_not_read(tmp_path: Path) -> None:
    """A shared folder may hold anything: only a plain file of our own is read, and nothing is waited for."""
    real = left(tmp_path / "eerl-1")
    real.rename(tmp_path / "elsewhere")
    real.symlink_to(tmp_path / "elsewhere")
    (tmp_path / "eerl-2").mkdir()
    os.mkfifo(tmp_path / "eerl-2" / NAME)
    if os.geteuid() == 0:
        os.chown(left(tmp_path / "eerl-3"), 12345, 12345)
    start, key = warm_start(tmp_path / "eerl-4")

    assert start.find(key) is None


def run(out: Path) -> tuple[list[dict[str, Any]], Path, str]:
    """A simulated run with ``warm_start: auto``: its ledger, its folder and what it said."""
    before = set(out.glob("eerl-*"))
    argv = [str(BIN / "eerl-run"), "--simulate", "h100:1x1", "--time-scale", "200", "--out", str(out)]
    argv += ["--policy", str(out / "policy.yaml"), "--", sys.executable]
    argv += [str(ROOT / "slurm_examples" / "simulated_grpo.py"), "--updates", "30"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    (folder,) = set(out.glob("eerl-*")) - before
    return [json.loads(line) for line in (folder / "ledger.jsonl").open()], folder, done.stderr


def test_a_second_run_starts_from_the_first_and_replays(tmp_path: Path) -> None:
    """Two runs of the same simulated job: the second says whose knowledge it has, and its plans can be replayed."""
    (tmp_path / "policy.yaml").write_text("warm_start: auto\n")
    _, folder, words = run(tmp_path)
    assert (folder / NAME).is_file()
    assert "learnt" not in words

    second, later, words = run(tmp_path)

    assert f"starts from what {folder.name} learnt" in words
    (event,) = [item for item in second if item["ev"] == "controller"]
    assert event["prior_run"] == folder.name and event["prior"]["key"]["model"] == "simulated"
    replay = subprocess.run(
        [str(BIN / "eerl"), "replay", str(later)], capture_output=True, text=True, check=False
    )
    assert replay.returncode == 0, replay.stdout + replay.stderr
