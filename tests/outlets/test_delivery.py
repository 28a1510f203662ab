"""Outlets run in processes of their own: they may fail or hang, and what waits for them does not."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner
from outlets.runs import fake_scontrol, parcel_of
from report.ledgers import RunSpec, write_run
from rig.cluster import wait_for

from eerl_launch import ending
from eerl_launch.outlets.delivery import deliver
from eerl_launch.policy import ReportOptions
from eerl_launch.tools import eerl


def alive(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_one_that_hangs_is_killed_and_holds_up_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """scontrol never answers: told so after the time given, gone with its children; the metrics are there."""
    script = f'sleep 300 & echo $! > "{tmp_path}/child"; echo $$ > "{tmp_path}/self"; wait'
    monkeypatch.setenv("PATH", fake_scontrol(tmp_path / "bin", script))

    slow, quick = deliver(["slurm_comment", "openmetrics"], parcel_of(tmp_path), 8.0)

    assert (slow.delivered, slow.text) == (False, "not done within 8 s")
    assert quick.delivered and Path(quick.text).exists()
    for name in ("self", "child"):
        pid = int((tmp_path / name).read_text())
        wait_for(lambda pid=pid: not alive(pid), f"the end of {name}", timeout_s=20)


def test_why_something_was_not_delivered_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure comes with its reason, one line without control characters."""
    monkeypatch.setenv("PATH", fake_scontrol(tmp_path / "bin", r"printf 'no\033[31m\nslurmctld' >&2; exit 1"))

    (failed,) = deliver(["slurm_comment"], parcel_of(tmp_path), 60.0)

    assert (failed.delivered, failed.text) == (False, "slurmctld")


def test_the_command_sends_on_and_says_what_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``eerl report --to`` tells where the numbers are; exit 1 when one outlet failed, the report being made."""
    monkeypatch.setenv("PATH", fake_scontrol(tmp_path / "bin", "exit 7"))
    folder = tmp_path / "textfile"
    folder.mkdir()
    arguments = ["report", str(write_run(tmp_path / "run")), "--format", "txt", "--to", "openmetrics"]
    arguments += ["--openmetrics-folder", str(folder), "--to", "slurm_comment"]

    done = CliRunner().invoke(eerl, arguments)

    assert done.exit_code == 1
    assert f"openmetrics: {folder}/eerl-4711.prom" in done.output
    assert "eerl: slurm_comment: scontrol show failed" in done.output
    assert (tmp_path / "run" / "report.txt").exists()
    assert [path.name for path in folder.iterdir()] == ["eerl-4711.prom"]


def test_at_a_jobs_end_the_way_to_send_it_later_is_told_whole(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The command that is named sends to the same folder as the policy does."""
    folder, metrics = write_run(tmp_path / "my run", RunSpec(updates=12)), tmp_path / "later"
    wanted = ReportOptions(formats=("txt",), to=("openmetrics",), openmetrics_folder=str(metrics))

    assert ending.report(folder, wanted, None) == 0

    told = capfd.readouterr().err.rpartition("once mended: eerl ")[2]
    metrics.mkdir()
    assert CliRunner().invoke(eerl, shlex.split(told)).exit_code == 0
    assert len(list(metrics.glob("eerl-*.prom"))) == 1
