"""The command behind eerl-run behaves as it would without it (field cases W01–W11, S16)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pexpect
import pytest
import terminal_dialogue

from eerl_launch.launch import SessionProcess

EERL_RUN = Path(sys.executable).with_name("eerl-run")
PYTHON = sys.executable


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Where run folders go."""
    folder = tmp_path / "out"
    folder.mkdir()
    return folder


def wrapped(out: Path, *command: str) -> list[str]:
    return [str(EERL_RUN), "--out", str(out), "--", *command]


def run(argv: Sequence[str], **options: object) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(argv, capture_output=True, timeout=60, **options)  # type: ignore[call-overload, no-any-return]


@pytest.mark.parametrize("code", [0, 1, 2, 42, 255])
def test_exit_code_is_the_commands(out: Path, code: int) -> None:
    """Whatever the command returns, eerl-run returns."""
    assert run(wrapped(out, "sh", "-c", f"exit {code}")).returncode == code


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_death_by_signal_is_128_plus_n(out: Path, number: int) -> None:
    """A command killed by signal N gives 128 + N, as in a shell."""
    assert run(wrapped(out, "sh", "-c", f"kill -{int(number)} $$")).returncode == 128 + number


@pytest.mark.parametrize(("name", "code"), [("no-such-command-here", 127), ("/etc/passwd", 126)])
def test_command_that_cannot_run(out: Path, name: str, code: int) -> None:
    """Not found and not executable give a shell's codes."""
    assert run(wrapped(out, name)).returncode == code


def test_arguments_verbatim(out: Path) -> None:
    """Every argument arrives as typed, options that look like ours included."""
    arguments = ["a b", "", "+trainer.x=[1, 2]", "$HOME", "*", "--policy", "z", "--", "\n", "ä"]

    done = run(wrapped(out, PYTHON, "-c", "import sys,json;print(json.dumps(sys.argv[1:]))", *arguments))

    assert json.loads(done.stdout) == arguments


def test_output_bytes_are_untouched(out: Path) -> None:
    """Bytes that are no text pass through unchanged and unprefixed."""
    script = "import os; os.write(1, b'a' + bytes(range(128, 256)) + b'\\0\\r\\n')"

    assert run(wrapped(out, PYTHON, "-c", script)).stdout == b"a" + bytes(range(128, 256)) + b"\0\r\n"


def test_output_appears_at_once(out: Path) -> None:
    """A byte without a line end is visible while the command still runs."""
    with subprocess.Popen(
        wrapped(out, "sh", "-c", "printf a; read x; printf b"), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stdin is not None

        first = os.read(process.stdout.fileno(), 10)
        process.stdin.write(b"\n")
        process.stdin.close()

        assert first == b"a"
        assert process.stdout.read() == b"b"


def test_stdin_reaches_the_command_and_only_it(out: Path) -> None:
    """The command reads all of the input; a shell loop around eerl-run loses none of its own."""
    assert run(wrapped(out, "cat"), input=b"a\nb\nc\n").stdout == b"a\nb\nc\n"

    loop = f"while read x; do {EERL_RUN} --out {out} -- true 2>/dev/null; echo $x; done"
    assert run(["sh", "-c", loop], input=b"1\n2\n3\n").stdout == b"1\n2\n3\n"


@pytest.mark.parametrize(
    "redirect", ["", "<&-", "<&- >&2", "3</etc/passwd", "2>&-", "</dev/null 5>/dev/null"]
)
def test_descriptors_are_those_of_a_direct_run(out: Path, redirect: str) -> None:
    """The command sees the same open descriptors as without eerl-run, closed ones included."""
    look = r"ls /proc/self/fd | wc -l; for i in 0 1 2 3 4 5; do test -e /proc/$$/fd/$i && echo $i; done"
    (out / "look").write_text(look)
    script = f"$W sh {out}/look > {out}/$N {redirect}"
    plain = {**os.environ, "W": "", "N": "plain"}
    with_us = {**os.environ, "W": f"{EERL_RUN} --out {out} --", "N": "ours"}

    run(["bash", "-c", script], env=plain)
    run(["bash", "-c", script], env=with_us)

    assert (out / "ours").read_text() == (out / "plain").read_text()


def test_pipe_semantics(out: Path) -> None:
    """SIGPIPE ends the command as it would without eerl-run, whose exit code says so."""
    script = f"{EERL_RUN} --out {out} -- yes 2>/dev/null | head -1; echo ${{PIPESTATUS[0]}}"

    assert run(["bash", "-c", script]).stdout == b"y\n141\n"


def test_daemon_left_behind_does_not_hold_us(out: Path) -> None:
    """A daemon with our descriptors neither keeps eerl-run waiting nor is it killed."""
    began = time.monotonic()

    process = subprocess.Popen(
        wrapped(out, "bash", "-c", "setsid sleep 45 & echo $!; exit 3"), stdout=subprocess.PIPE
    )
    code = process.wait(30)

    assert process.stdout is not None
    daemon = int(process.stdout.readline())
    assert code == 3
    assert time.monotonic() - began < 30
    os.kill(daemon, 0)
    os.kill(daemon, signal.SIGKILL)


def test_environment_is_kept_and_only_ours_added(out: Path) -> None:
    """The command's environment is the caller's plus EERL_* names, and the adapters' folder before its PYTHONPATH."""
    environment = {
        "PATH": os.environ["PATH"],
        "SLURM_CPU_BIND": "mask_cpu:0xff",
        "PYTHONPATH": "/x:y",
        "LC_ALL": "C",
    }

    done = run(
        wrapped(out, PYTHON, "-c", "import os,json;print(json.dumps(dict(os.environ)))"), env=environment
    )

    seen = json.loads(done.stdout)
    ours, _, seen["PYTHONPATH"] = seen["PYTHONPATH"].partition(":")
    assert Path(ours).parent == Path(seen["EERL_SOCKET"]).parent
    assert {name: value for name, value in seen.items() if not name.startswith("EERL_")} == environment
    assert {"EERL_SOCKET", "EERL_RUN_DIR", "EERL_RUN_ID"} <= set(seen)


def test_signal_mask_dispositions_and_setsid(out: Path) -> None:
    """The command starts with the mask and dispositions of a direct run, and may call setsid."""
    script = (
        "import re,os;t=open('/proc/self/status').read();"
        "print(re.findall(r'^(Sig(?:Blk|Ign)):\\t(.*)$',t,re.M)); os.setsid()"
    )
    direct = ["bash", "-c", f'{PYTHON} -c "{script}"; exit $?']

    plain = run(direct)
    ours = run(["bash", "-c", f'{EERL_RUN} --out {out} -- {PYTHON} -c "{script}"; exit $?'])

    assert (ours.stdout, ours.returncode) == (plain.stdout, plain.returncode) and ours.returncode == 0


COUNTER = """
import signal, sys, time
seen = {}
def note(number, frame):
    seen[number] = seen.get(number, 0) + 1
for number in (1, 2, 10, 12, 15, 18):
    signal.signal(number, note)
print("ready", flush=True)
deadline = time.time() + 20
while not seen and time.time() < deadline:
    time.sleep(0.05)
time.sleep(1.2)
print(sorted(seen.items()), flush=True)
"""


@pytest.fixture
def counting(out: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A wrapped command that counts the signals it receives."""
    with subprocess.Popen(
        wrapped(out, PYTHON, "-c", COUNTER), stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process
        process.wait(30)


@pytest.mark.parametrize("number", [1, 2, 10, 12, 15, 18])
def test_signal_to_the_launcher_reaches_the_command_once(
    counting: subprocess.Popen[bytes], number: int
) -> None:
    """kill PID on eerl-run: the command sees the signal exactly once and ends as it likes."""
    counting.send_signal(number)

    assert counting.stdout is not None
    assert counting.stdout.readline().decode().strip() == f"[({number}, 1)]"
    assert counting.wait(30) == 0


@pytest.mark.parametrize("number", [10, 15])
def test_signal_to_everything_reaches_the_command_once(
    counting: subprocess.Popen[bytes], number: int
) -> None:
    """As scancel does: every process of the job gets the signal; the command still sees it once."""
    pids = [counting.pid]
    for pid in pids:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        pids += [int(child) for child in children]
    for pid in pids:
        os.kill(pid, number)

    assert counting.stdout is not None
    assert counting.stdout.readline().decode().strip() == f"[({number}, 1)]"


def test_a_witness_without_a_processor_is_waited_for(counting: subprocess.Popen[bytes]) -> None:
    """On a loaded machine the witness comes late to a signal that all received; the command still sees it once."""
    launcher = Path(f"/proc/{counting.pid}/cmdline").read_bytes()
    pids = [
        int(pid) for pid in Path(f"/proc/{counting.pid}/task/{counting.pid}/children").read_text().split()
    ]
    (witness,) = [pid for pid in pids if Path(f"/proc/{pid}/cmdline").read_bytes() == launcher]
    os.kill(witness, signal.SIGSTOP)
    time.sleep(0.3)  # until it has left its wait for signals

    for pid in (counting.pid, *pids):
        os.kill(pid, signal.SIGTERM)
    time.sleep(0.6)
    os.kill(witness, signal.SIGCONT)

    assert counting.stdout is not None
    assert counting.stdout.readline().decode().strip() == "[(15, 1)]"


def test_term_reaches_the_whole_tree(out: Path) -> None:
    """TERM on eerl-run reaches workers behind a shell that does not pass it on."""
    worker = (
        "import signal,time,os;signal.signal(15,lambda *a:(os.write(1,b'T'),os._exit(0)));"
        "os.write(1,b'r');time.sleep(30)"
    )
    script = f'{PYTHON} -c "{worker}" & {PYTHON} -c "{worker}" & wait; wait'
    with subprocess.Popen(
        wrapped(out, "bash", "-c", script), stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        assert process.stdout is not None
        assert os.read(process.stdout.fileno(), 1) + os.read(process.stdout.fileno(), 1) == b"rr"

        process.terminate()

        assert process.stdout.read() == b"TT"


def test_no_time_limit_between_term_and_the_end(out: Path) -> None:
    """A command that saves a checkpoint on TERM gets all the time it needs; its code is kept."""
    script = "trap 'sleep 7; echo saved; exit 5' TERM; echo r; while true; do sleep 0.1; done"
    with subprocess.Popen(
        wrapped(out, "bash", "-c", script), stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"r\n"

        process.terminate()

        assert process.stdout.read() == b"saved\n"
        assert process.wait(30) == 5


def test_terminal_input_and_one_interrupt(out: Path) -> None:
    """On a terminal the command reads input, sees a terminal on 0, 1 and 2, and Ctrl-C interrupts it once."""
    script = terminal_dialogue.program(8)
    child = pexpect.spawn(str(EERL_RUN), ["--out", str(out), "--", PYTHON, "-c", script], timeout=30)

    terminal_dialogue.hold(child)


def test_broken_policy_stops_before_the_command(out: Path, tmp_path: Path) -> None:
    """A policy with a misspelt key: exit 2, one message, and the command never starts."""
    policy = tmp_path / "p.yaml"
    policy.write_text("max_throughput_los: 2%\n")
    mark = tmp_path / "started"

    done = run([str(EERL_RUN), "--policy", str(policy), "--out", str(out), "--", "touch", str(mark)])

    assert done.returncode == 2
    assert b"max_throughput_loss" in done.stderr
    assert not mark.exists()


def test_killed_session_costs_the_measurement_only(out: Path) -> None:
    """kill -9 of the session: one message, the command ends by itself with its own code, nothing is left."""
    script = "echo r; sleep 2; exit 9"
    with subprocess.Popen(
        wrapped(out, "bash", "-c", script),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == b"r\n"
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        (session,) = [
            pid for pid in children if b"eerl_launch.session" in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]

        os.kill(int(session), signal.SIGKILL)

        assert process.wait(20) == 9
        assert process.stderr.read().count(b"session ended") <= 2


def test_dead_session_sends_no_signal_to_the_command() -> None:
    """Telling a session that is gone raises SIGPIPE in the launcher, which must not be passed on to the command."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGPIPE})
    process = subprocess.Popen(["true"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    process.wait(20)
    try:
        SessionProcess(process).tell({"ev": "started", "pid": 1})

        assert signal.SIGPIPE not in signal.sigpending()
    finally:
        signal.sigtimedwait({signal.SIGPIPE}, 0)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        assert process.stdout is not None
        process.stdout.close()


def test_killed_launcher_leaves_a_report(out: Path) -> None:
    """kill -9 of eerl-run: the session finishes the ledger and the report, marked as not complete."""
    with subprocess.Popen(
        wrapped(out, "sleep", "3"), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    ) as process:
        deadline = time.monotonic() + 20
        while not list(out.glob("*/control.json")) and time.monotonic() < deadline:
            time.sleep(0.05)

        process.kill()
        process.wait(10)

        while not list(out.glob("*/report.json")) and time.monotonic() < deadline:
            time.sleep(0.1)
        (report,) = out.glob("*/report.json")
        assert json.loads(report.read_text())["complete"] is False


def test_second_instance_of_a_job_is_transparent(out: Path) -> None:
    """Two eerl-run in one job on one node: the second runs the command only, and says so once."""
    environment = {
        **os.environ,
        "SLURM_JOB_ID": "990017",
        "SLURM_JOB_NODELIST": "n1",
        "SLURMD_NODENAME": "n1",
    }
    first = subprocess.Popen(
        wrapped(out, "sh", "-c", "echo r; sleep 4"),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
    )
    assert first.stdout is not None and first.stdout.readline() == b"r\n"

    second = run(wrapped(out, "sh", "-c", "exit 6"), env=environment)

    assert second.returncode == 6
    assert second.stderr.count(b"another eerl-run of this job") == 1
    assert first.wait(30) == 0
    assert len(list(out.glob("eerl-990017*"))) == 1


def test_unwritable_target_is_said_before_and_replaced(tmp_path: Path) -> None:
    """A target that cannot hold the run folder: one message with the place used instead."""
    wall = tmp_path / "file"
    wall.write_text("")
    work = tmp_path / "work"
    work.mkdir()

    done = run([str(EERL_RUN), "--out", str(wall / "x"), "--", "true"], cwd=work)

    assert done.returncode == 0
    assert b"the report goes to" in done.stderr
    assert len(list(work.glob("eerl-*/ledger.jsonl"))) == 1


def test_a_metrics_folder_that_takes_no_file_is_told_at_the_beginning(out: Path, tmp_path: Path) -> None:
    """It is told once, while the command runs; with the folder there by the end, the metrics are left in it."""
    policy, folder = tmp_path / "p.yaml", tmp_path / "textfile"
    policy.write_text(f"report: {{formats: [txt], to: [openmetrics], openmetrics_folder: {folder}}}\n")
    until_told = 'until grep -q "no such folder" "$EERL_RUN_DIR/ledger.jsonl"; do sleep 0.1; done'
    script = f"{until_told}; mkdir {folder}; exit 3"

    done = run([str(EERL_RUN), "--policy", str(policy), "--out", str(out), "--", "sh", "-c", script])

    assert done.returncode == 3
    told = f"eerl: report.openmetrics_folder {folder}: there is no such folder".encode()
    assert done.stderr.count(told) == 1
    assert len(list(folder.glob("eerl-local-*.prom"))) == 1
