"""TRL's AsyncGRPOTrainer, unmodified, on CPU: what is generated and what is consumed are told apart, to the token."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from adapters.environments import trl_python
from launch.marker_listener import Listener

from eerl_launch import adapter_folder
from eerl_launch.markers import parse
from eerl_launch.modes import Border
from eerl_launch.update_tracker import UpdateTracker
from eerl_launch.updates import Update

#: A thread may be kept waiting for so long between what it does and what it notes.
MOMENT_S = 0.05
SCRIPT = Path(__file__).with_name("async_grpo_script.py")
STANDIN = Path(__file__).with_name("vllm_standin")

pytestmark = [pytest.mark.trl, pytest.mark.slow, pytest.mark.timeout(1200)]


def train(folder: Path, *options: str, processes: int = 1) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The markers of a training, and what the first rank really did."""
    given = {"PYTHONPATH": str(STANDIN)}
    hooks = adapter_folder.environment(given, adapter_folder.lay(folder, "adapters"), "auto")
    listener = Listener(folder / "s")
    launcher = [] if processes == 1 else ["-m", "torch.distributed.run", "--nproc-per-node", str(processes)]
    try:
        done = subprocess.run(
            [str(trl_python()), *launcher, str(SCRIPT), str(folder / "seen"), *options],
            env={**os.environ, "EERL_SOCKET": str(folder / "s"), "OMP_NUM_THREADS": "1", **hooks},
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        listener.drain()
    finally:
        listener.close()
    return [json.loads(line) for line in listener.lines], json.loads((folder / "seen").read_text())


def updates(markers: list[dict[str, Any]]) -> list[Update]:
    """The updates that a session would make of the markers."""
    tracker, found = UpdateTracker(Border.PAUSE), []
    end = time.time()
    for message in markers:
        marker = parse(json.dumps(message).encode(), "0/1", end, end)
        edge = tracker.feed(marker)
        if edge is not None and edge.closed is not None:
            found.append(edge.closed)
    assert tracker.odd == {}
    return found


def ages(seen: dict[str, Any]) -> list[int]:
    """How old the oldest sample of each batch was.

    The queue is first in, first out: the versions of the samples that were put are those of the batches, in order.
    """
    versions = iter(version for _, version, _ in seen["put"])
    return [
        max(version_now - next(versions) for _ in batch)
        for batch, (_, version_now) in zip(seen["batches"], seen["micro"], strict=False)
    ]


def test_consumed_and_generated_are_exact(tmp_path: Path) -> None:
    """Valid tokens, longest response and age of each step are the loss's; generated tokens those handed over."""
    markers, seen = train(tmp_path, "--steps", "6")

    assert [m["mode"] for m in markers if m["ev"] == "run"] == ["async_inflight"]
    assert markers[0]["total_updates"] == 6
    told = [m for m in markers if m["ev"] == "update"]
    assert [m["update"] for m in told] == list(range(6))
    assert [m["valid_tokens"] for m in told] == [tokens for tokens, _ in seen["micro"]]
    assert [m["longest_consumed_tokens"] for m in told] == [max(batch) for batch in seen["batches"][:6]]
    assert [m["policy_age"] for m in told] == ages(seen)
    assert max(ages(seen)) >= 1
    ends = [m for m in markers if m["ev"] == "end" and m["phase"] == "generation"]
    assert sum(m["generated_tokens"] for m in ends) == sum(tokens for tokens, _, _ in seen["put"])
    assert not [m for m in markers if m["ev"] == "note"]


def test_updates_are_between_pauses(tmp_path: Path) -> None:
    """A session counts to each update what was generated between its pauses, and what was trained on in it.

    Another trainer in a thread of the same process, meanwhile, is nobody's, and told.
    """
    markers, seen = train(tmp_path, "--steps", "6", "--beside")

    found = updates(markers)

    (note,) = {m["text"] for m in markers if m["ev"] == "note"}
    assert "a second trainer of this job" in note
    assert len([m for m in markers if m["ev"] == "run"]) == 1
    assert len(found) == 6
    assert [u.longest_consumed() for u in found] == [max(batch) for batch in seen["batches"][:6]]
    assert [u.numbers["policy_age"] for u in found] == ages(seen)
    assert [u.tokens("valid_tokens", "training") for u in found] == [tokens for tokens, _ in seen["micro"]]
    begins = [begin for begin, _ in seen["syncs"]]
    for number, update in enumerate(found):
        # What comes within a moment of a border may be counted on either side of it.
        least, most = (
            sum(
                tokens
                for tokens, _, put_s in seen["put"]
                if begins[number] + moment < put_s <= begins[number + 1] - moment
            )
            for moment in (MOMENT_S, -MOMENT_S)
        )
        assert least <= update.tokens("generated_tokens", "generation") <= most
        assert update.trainings == 1


def test_several_steps_between_weight_updates(tmp_path: Path) -> None:
    """Two optimizer steps of two micro-batches each, with the same weights, are one update with their sum."""
    markers, seen = train(tmp_path, "--steps", "6", "--every", "2", "--accumulate", "2")

    assert markers[0]["total_updates"] == 3
    tokens = [count for count, _ in seen["micro"]]
    told = [m["valid_tokens"] for m in markers if m["ev"] == "update"]
    assert told == [sum(tokens[index : index + 2]) for index in range(0, 12, 2)]
    assert told == seen["trained"]
    found = updates(markers)
    assert [u.tokens("valid_tokens", "training") for u in found] == [
        sum(tokens[index : index + 4]) for index in range(0, 12, 4)
    ]


def test_two_processes_make_one_sender(tmp_path: Path) -> None:
    """With two ranks one of them sends, and its valid tokens are those of both losses."""
    markers, seen = train(tmp_path, "--steps", "4", processes=2)

    told = [m for m in markers if m["ev"] == "update"]
    assert [m["update"] for m in told] == list(range(4))
    assert [m["valid_tokens"] for m in told] == [sum(batch) for batch in seen["batches"][:4]]
    assert all(m["valid_tokens"] > tokens for m, (tokens, _) in zip(told, seen["micro"], strict=True))
    assert len(updates(markers)) == 4


def test_trls_own_worker(tmp_path: Path) -> None:
    """Its rollouts are made in a process of its own, whose markers are its share of the one trainer's."""
    command = [sys.executable, str(STANDIN / "serve.py"), "serve", "model", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        url = f"http://127.0.0.1:{int(server.stdout.readline())}"
        try:
            markers, seen = train(tmp_path, "--steps", "4", "--server", url)
        finally:
            server.kill()

    scored = [json.loads(line) for line in (tmp_path / "seen.scored").read_text().splitlines()]
    ends = [m for m in markers if m["ev"] == "end" and m["phase"] == "generation"]
    told = [m["generated_tokens"] for m in ends if m["generated_tokens"]]
    # The last groups may have been scored when the worker was stopped already.
    assert told == [sum(lengths) for lengths in scored][: len(told)]
    assert len(scored) - len(told) <= 1
    assert [m["longest_response_tokens"] for m in ends if m["generated_tokens"]] == [
        max(lengths) for lengths in scored
    ][: len(told)]
    updates_told = [m for m in markers if m["ev"] == "update"]
    assert [m["valid_tokens"] for m in updates_told] == [tokens for tokens, _ in seen["micro"]]
    assert all("policy_age" in m for m in updates_told)
    assert not [m for m in markers if m["ev"] == "note"]
