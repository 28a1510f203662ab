"""Who of a job's processes marks phases: one, and nobody twice."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from eerl_launch.adapters import speaker

ROOT = Path(__file__).parents[2]
#: Speaks if it may, says so, and stays until its input closes.
OTHER = "import sys; from eerl_launch.adapters import speaker; print(speaker.silence(), flush=True); sys.stdin.read()"


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A job of its own, in which nobody has spoken."""
    monkeypatch.setenv("EERL_SOCKET", str(tmp_path / "s"))
    seat, helper = speaker.Seat(speaker.LOCK_NAME), speaker.Seat(speaker.HELPER_NAME)
    monkeypatch.setattr(speaker, "_trainer", seat)
    monkeypatch.setattr(speaker, "_helper", helper)
    monkeypatch.setattr(speaker, "_parent", 0)
    monkeypatch.setattr(speaker, "threads", speaker.Threads())
    yield
    seat.leave()
    helper.leave()


def other(code: str = OTHER) -> subprocess.Popen[str]:
    """Another trainer of the job, or what it starts."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "controller")])
    return subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )


def test_the_first_of_two_trainers_speaks() -> None:
    """A second one at the same time is silent and says why; after its end, or its death, the next may."""
    with other() as first:
        assert first.stdout is not None and first.stdout.readline() == "None\n"
        reason = speaker.silence()
        assert reason is not None and "second trainer" in reason
        first.kill()
    assert speaker.silence() is None
    with other() as late:
        heard = late.communicate("", timeout=60)[0]
    assert "second trainer" in heard


def test_asking_again_is_the_same(tmp_path: Path) -> None:
    """The one that speaks goes on speaking."""
    assert speaker.silence() is None
    assert speaker.silence() is None


def test_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside eerl-run nothing is marked."""
    monkeypatch.delenv("EERL_SOCKET")

    assert speaker.silence() is not None


def test_a_script_that_marks_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its markers are the ones that count; one that only sends a metric leaves phases to the adapter."""
    theirs = ModuleType("eerl_launch.mark")
    monkeypatch.setitem(sys.modules, "eerl_launch.mark", theirs)
    theirs.marks_phases = lambda: False  # type: ignore[attr-defined]
    assert speaker.silence() is None

    theirs.marks_phases = lambda: True  # type: ignore[attr-defined]
    reason = speaker.silence()

    assert reason is not None and "marks its phases itself" in reason


def test_a_place_that_takes_no_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no lock file can be made there is no reason for silence."""
    monkeypatch.setenv("EERL_SOCKET", "/proc/no/such/place/s")

    assert speaker.silence() is None


#: Speaks, forks a child that stays until its input closes, says whether both may speak, and is killed.
LEAVES_A_CHILD = """
import os, signal, sys
from eerl_launch.adapters import speaker
print(speaker.silence(), flush=True)
reader, writer = os.pipe()
if os.fork() == 0:
    print(speaker.silence(), flush=True)
    os.write(writer, b".")
    sys.stdin.read()
    os._exit(0)
os.read(reader, 1)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_child_does_not_keep_its_parents_place() -> None:
    """A forked child may speak while the trainer lives; once that is gone the next trainer may, child or no child."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "controller")])
    with subprocess.Popen(
        [sys.executable, "-c", LEAVES_A_CHILD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    ) as trainer:
        assert trainer.stdin is not None and trainer.stdout is not None
        assert [trainer.stdout.readline() for _ in range(2)] == ["None\n"] * 2
        assert trainer.wait(60) < 0

        assert speaker.silence() is None
        trainer.stdin.close()


def in_thread(work: Callable[[], Any]) -> Any:
    """What ``work`` finds in a thread of its own."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result(60)


def trains() -> str | None:
    """A training begins; why it must be silent."""
    speaker.threads.begins()
    return speaker.silence()


def test_trainers_in_two_threads() -> None:
    """While one trains another is silent, in all that it does; when the first has ended the next speaks."""
    assert trains() is None

    def second() -> tuple[str | None, bool]:
        reason, adds = trains(), speaker.may_add()
        speaker.threads.ends()
        return reason, adds

    reason, adds = in_thread(second)
    assert reason is not None and "second trainer" in reason and not adds
    assert speaker.silence() is None and speaker.may_add()

    speaker.threads.ends()
    assert in_thread(trains) is None


def test_a_training_that_ended_without_a_word() -> None:
    """Neither a thread that is gone nor what its own thread began before keeps anybody silent."""
    assert in_thread(trains) is None

    assert trains() is None
    assert trains() is None


#: Says whether it may speak for the trainer that has started it, and stays until its input closes.
HELPER = OTHER.replace("silence", "parent_speaks")


def test_one_helper_of_a_trainer_speaks() -> None:
    """Of two that a process with two trainers has started the first does, until it ends."""
    assert speaker.silence() is None and speaker.parent_speaks()

    with other(HELPER) as first, other(HELPER) as late:
        assert first.stdout is not None and late.stdout is not None
        heard = {first.stdout.readline(), late.stdout.readline()}
        assert heard == {"True\n", "False\n"}
        first.communicate("", timeout=60)
        late.communicate("", timeout=60)
    with other(HELPER) as next_one:
        assert next_one.communicate("", timeout=60)[0] == "True\n"
