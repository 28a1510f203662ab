"""Clocks always come home: every way a job, an agent or the broker can end."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from spank.lone_node import Client, LoneNode, until


def _locked(node: LoneNode, gpus: str = "0,1", job: int = 12, settings: list[str] | None = None) -> Client:
    node.serve(job=job, gpus=gpus, settings=settings or [])
    agent = node.agent(job)
    assert agent.ask("lock * 1200") == "ok"
    return agent


def test_sigterm_resets_and_ends(node: LoneNode) -> None:
    """TERM to the supervisor: clocks back, socket gone, both processes gone, exit code 0."""
    _locked(node)

    node.supervisor.terminate()

    assert node.supervisor.wait(30) == 0
    assert node.stub.at_default()
    assert node.state() == {"grant", "gpus"}
    assert node.stub.clients() == ()


def test_reset_of_a_running_job_ends_its_broker(node: LoneNode) -> None:
    """eerl-clockd --reset JOB, as the epilog runs it: broker ended, clocks back, nothing left on disk."""
    agent = _locked(node)

    outcome = node.run("--reset", f"node={node.name}", "12")

    assert outcome.code == 0
    assert node.supervisor.wait(30) == 0
    assert node.stub.at_default()
    assert not node.job_folder().exists()
    assert agent.line() is None


def test_reset_without_node_finds_the_job(node: LoneNode) -> None:
    """The admin's form needs the job id only."""
    _locked(node)

    assert node.run("--reset", "12").code == 0

    assert node.stub.at_default()
    assert not node.job_folder().exists()


def test_reset_of_a_job_that_set_nothing_makes_no_call(node: LoneNode) -> None:
    """A measure-only job: no setter and no NVML at its end, and no trace on disk."""
    node.serve(gpus="0,1")
    agent = node.agent()
    agent.sample()
    agent.ask("reset *")

    assert node.run("--reset", f"node={node.name}", "12").code == 0

    assert node.stub.setter_calls() == []
    assert not node.job_folder().exists()


def test_reset_of_an_unknown_job_is_nothing(node: LoneNode) -> None:
    """A job that never had a grant: success, and /run/eerl is not even made."""
    assert node.run("--reset", f"node={node.name}", "77").code == 0
    assert node.run("--reset-stale").code == 0

    assert not (node.root / "run/eerl").exists()


def test_killed_worker_is_reset_and_replaced(node: LoneNode) -> None:
    """kill -9 of the worker: the supervisor resets what is dirty and starts a second worker that sets clocks."""
    node.deaths_meant = True
    _locked(node)
    (worker,) = node.workers()

    os.kill(worker, signal.SIGKILL)
    until(node.stub.at_default, "the supervisor has reset")

    until(lambda: node.workers() not in ([], [worker]), "a second worker")
    assert node.marks() == set()
    again = node.agent()
    assert again.ask("lock * 900") == "ok"
    assert node.stub.locked_mhz(0) == (345, 900)


def test_second_death_leaves_measuring_only(node: LoneNode) -> None:
    """After two dead workers the third measures and says why; after three the broker is gone, reason on disk."""
    node.deaths_meant = True
    _locked(node)
    for _ in range(2):
        (worker,) = node.workers()
        os.kill(worker, signal.SIGKILL)
        until(lambda w=worker: node.workers() not in ([], [w]), "the next worker")  # type: ignore[misc]
    agent = node.agent()

    fields = agent.hello()

    assert fields["backend"] == "none"
    assert "died" in fields["reason"]
    assert "energy_mj" in agent.sample()[node.stub.uuid(0)]
    assert agent.ask("lock * 900").startswith("err 3 ")
    os.kill(node.workers()[0], signal.SIGKILL)
    assert node.supervisor.wait(30) == 1
    assert "died three times" in node.reason()
    assert node.stub.at_default()


def test_killed_supervisor_takes_no_clocks_along(node: LoneNode) -> None:
    """kill -9 of the supervisor: the worker hears of it, resets and ends; the epilog then tidies up."""
    _locked(node)
    (worker,) = node.workers()

    node.supervisor.kill()
    until(node.stub.at_default, "the worker has reset")

    until(lambda: not Path(f"/proc/{worker}/cwd").exists(), "the worker has ended")
    assert node.run("--reset", "12").code == 0
    assert not node.job_folder().exists()


def _kill_both(node: LoneNode) -> None:
    (worker,) = node.workers()
    os.kill(worker, signal.SIGSTOP)  # so that it cannot hear of the supervisor's end
    node.supervisor.kill()
    node.supervisor.wait()
    os.kill(worker, signal.SIGKILL)


@pytest.mark.parametrize("form", [("--reset", "12"), ("--reset-stale",)])
def test_killed_broker_is_cleaned_up_from_disk(node: LoneNode, form: tuple[str, ...]) -> None:
    """kill -9 of supervisor and worker: the dirty marks tell the epilog, or the next prolog, what to reset."""
    _locked(node, gpus="1,2")
    _kill_both(node)
    assert node.marks() == {node.stub.uuid(1), node.stub.uuid(2)}
    assert node.stub.locked_mhz(1) == (345, 1200)

    until(
        lambda: node.run(*form).code == 0 and not node.marks(), "reset once the kernel has let go of the lock"
    )

    assert node.stub.at_default()
    assert {call.uuid for call in node.stub.calls("nvmlDeviceResetGpuLockedClocks")} == {
        node.stub.uuid(1),
        node.stub.uuid(2),
    }
    assert node.job_folder().exists() == (form[0] == "--reset-stale")  # the job itself may still run


def test_stale_sweep_leaves_living_brokers_alone(node: LoneNode) -> None:
    """--reset-stale with one dead and one living broker: only the dead one's GPU is touched."""
    _locked(node, gpus="0", job=11)
    _kill_both(node)
    living = _locked(node, gpus="1", job=12)
    node.stub.clear_calls()

    until(lambda: node.run("--reset-stale").code == 0 and not node.marks(11), "the dead one is reset")

    assert node.stub.locked_mhz(0) is None
    assert node.stub.locked_mhz(1) == (345, 1200)
    assert node.stub.setter_calls(gpu=1) == []
    assert living.ask("ping") == "ok"


def test_reset_failure_keeps_the_mark_for_the_next_try(node: LoneNode) -> None:
    """Reset fails for good on one GPU: the others go back, the mark stays, the sweep tries again and says so."""
    _locked(node)
    node.stub.add_fault("nvmlDeviceResetGpuLockedClocks", gpu=1, code=999)

    first = node.run("--reset", f"node={node.name}", "12", settings=[])
    second = node.run("--reset-stale", settings=[])

    assert first.code == second.code == 1
    assert node.stub.locked_mhz(0) is None
    assert node.marks() == {node.stub.uuid(1)}
    for said in (first.text, second.text):
        assert f"{node.stub.uuid(1)} are NOT reset: code 999" in said
    assert not list((node.root / "run/eerl" / node.name).glob("unreset-*"))
    node.stub.clear_faults()
    assert node.run("--reset-stale").code == 0
    assert node.stub.at_default()
    assert node.marks() == set()


def test_drain_option_flags_the_node_until_it_works(node: LoneNode) -> None:
    """on_reset_failure=drain: unreset-<uuid> tells why, the Epilog snippet fails, a later success removes it."""
    _locked(node, settings=["on_reset_failure=drain"])
    node.stub.add_fault("nvmlDeviceResetGpuLockedClocks", gpu=1, code=999)
    flag = node.root / "run/eerl" / node.name / f"unreset-{node.stub.uuid(1)}"

    assert node.run("--reset", f"node={node.name}", "12").code == 1

    assert "code 999" in flag.read_text()
    assert node.epilog().code == 1
    node.stub.clear_faults()
    assert node.run("--reset-stale").code == 0
    assert not flag.exists()
    assert node.epilog().code == 0


def test_a_gpu_that_hangs_at_the_end_does_not_stop_the_others(node: LoneNode) -> None:
    """The reset of one GPU hangs: the epilog's form ends within its bounds, the others are reset, the mark stays."""
    _locked(node, gpus="0,1,2")
    node.stub.add_fault("nvmlDeviceResetGpuLockedClocks", gpu=1, delay_ms=60_000)

    outcome = node.run("--reset", f"node={node.name}", "12")

    assert outcome.code == 1
    assert node.stub.locked_mhz(0) is None
    assert node.stub.locked_mhz(2) is None
    assert node.marks() == {node.stub.uuid(1)}
    assert "no answer in time" in outcome.text


def test_a_failed_reset_is_tried_again_by_the_broker(node: LoneNode) -> None:
    """The writer goes while resets fail: the worker keeps the mark and tries again by itself."""
    agent = _locked(node, gpus="0")
    rule = node.stub.add_fault("nvmlDeviceResetGpuLockedClocks", code=999, times=1)

    agent.close()
    until(lambda: node.stub.fault_fired(rule) == 1, "the first try has failed")

    until(node.stub.at_default, "the second try", bound_s=60)
    until(lambda: not node.marks(), "the mark is gone")


def test_site_limit_of_the_grant_holds_in_every_reset(node: LoneNode) -> None:
    """site_max_mhz is in the grant: a one-shot without settings re-applies it, too."""
    _locked(node, gpus="0", settings=["site_max_mhz=1500"])
    _kill_both(node)

    until(lambda: node.run("--reset", "12").code == 0 and not node.job_folder().exists(), "reset")

    assert node.stub.locked_mhz(0) == (345, 1500)


def test_two_jobs_on_a_node_do_not_touch_each_other(node: LoneNode) -> None:
    """The end of one job makes no call on the other's GPUs, whose clock and writer stay."""
    _locked(node, gpus="0,1", job=11)
    other = _locked(node, gpus="2,3", job=12)
    node.stub.clear_calls()

    assert node.run("--reset", f"node={node.name}", "11").code == 0

    assert node.stub.locked_mhz(0) is None
    assert node.stub.locked_mhz(2) == (345, 1200)
    assert node.stub.setter_calls(gpu=2) == node.stub.setter_calls(gpu=3) == []
    assert other.ask("lock * 900") == "ok"


def test_requeued_job_gets_a_fresh_broker(node: LoneNode) -> None:
    """The same job id again, its first broker left behind: that one is ended and reset, the new one serves."""
    first = _locked(node)
    old = node.supervisor

    said = node.serve(gpus="0,1", words=["restart=1"])

    assert "granted" in said
    assert old.wait(30) == 0
    assert first.line() is None
    assert node.stub.at_default()
    assert node.agent().ask("lock * 900") == "ok"
    assert "restart=1" in (node.job_folder() / "grant").read_text()


def test_forgotten_jobs_leave_no_folder(node: LoneNode) -> None:
    """The sweep removes folders of jobs long gone, and of another boot at once; young ones stay."""
    folder = node.root / "run/eerl" / node.name
    for job in (4100000021, 4100000022, 4100000023):
        (folder / str(job)).mkdir(parents=True)
    (folder / "4100000022" / "reason").write_text("no\n")
    old = 1_000_000_000
    os.utime(folder / "4100000022", (old, old))
    (folder / "4100000023" / "grant").write_text(
        "job=4100000023\nuid=1\nrestart=-\nboot_id=another\npid=1\ngroup=1\nstart_ticks=1\nnvml=\nsite_max_mhz=0\ndrain=0\n"
    )

    assert node.run("--reset-stale").code == 0

    assert {entry.name for entry in folder.iterdir()} == {"4100000021"}


def test_a_step_that_still_runs_keeps_the_folder(node: LoneNode) -> None:
    """A process titled as root's slurmstepd of the job counts as life; the same title of a user does not."""
    folder = node.root / "run/eerl" / node.name
    for job in (4100000031, 4100000032):
        (folder / str(job)).mkdir(parents=True)
        os.utime(folder / str(job), (1_000_000_000, 1_000_000_000))
    with (
        node.titled("slurmstepd: [4100000031.extern]"),
        node.titled("slurmstepd: [4100000032.extern]", uid=4001),
    ):
        assert node.run("--reset-stale").code == 0

    assert {entry.name for entry in folder.iterdir()} == {"4100000031"}


def test_foreign_state_folder_is_not_used(node: LoneNode) -> None:
    """A job folder that belongs to someone else, or a link in its place, gives no grant."""
    folder = node.root / "run/eerl" / node.name
    (folder / "12").mkdir(parents=True)
    os.chown(folder / "12", 4001, 4001)
    (folder / "13").symlink_to("/tmp")

    said = [node.serve(job=12, gpus="0"), node.serve(job=13, gpus="0")]

    assert all("cannot be used" in text for text in said)
    assert node.state(12) == set()


def test_dirty_mark_comes_before_the_first_write(make_node: Callable[..., LoneNode]) -> None:
    """While the very first set call is still under way its mark is on disk already."""
    node = make_node()
    node.serve(gpus="0")
    agent = node.agent()
    node.stub.add_fault("nvmlDeviceSetGpuLockedClocks", delay_ms=1500)

    agent.send(b"lock * 1200\n")

    until(lambda: node.marks() == {node.stub.uuid(0)}, "the mark")
    assert node.stub.locked_mhz(0) is None
    assert agent.line() == "ok"


def test_no_lock_without_a_mark(node: LoneNode) -> None:
    """When the mark cannot be written the GPU is not written either."""
    node.serve(gpus="0")
    agent = node.agent()
    for entry in node.job_folder().iterdir():
        entry.unlink()
    node.job_folder().rmdir()

    answer = agent.ask("lock * 1200")

    assert answer.startswith("err 999 ")
    assert node.stub.setter_calls() == []


@pytest.mark.slow
@pytest.mark.parametrize("build_name", ["release"])
def test_nvml_is_shut_when_the_job_is_gone_and_resets_fail(node: LoneNode) -> None:
    """No client, no slurmstepd and a GPU that will not reset: after a minute NVML is let go, the mark stays."""
    job = 4_100_000_041
    node.serve(job=job, gpus="0")
    agent = node.agent(job)
    agent.ask("lock * 1200")
    rule = node.stub.add_fault("nvmlDeviceResetGpuLockedClocks", code=999)
    with node.titled(f"slurmstepd: [{job}.batch]"):
        agent.close()
        until(lambda: node.stub.fault_fired(rule) >= 2, "the reset is tried again")
        assert len(node.stub.clients()) == 1

    until(lambda: node.stub.clients() == (), "NVML is shut", bound_s=120)

    assert node.marks(job) == {node.stub.uuid(0)}
    assert node.connect(job).ask("ping") == "ok"  # it listens on
