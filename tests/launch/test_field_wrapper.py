"""Field cases about the command behind eerl-run and our own faults: W07, W09, W11, R14, E09, N06, S24."""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from launch.field_run import EERL_RUN, Field

PYTHON = sys.executable


@pytest.fixture
def field(tmp_path: Path) -> Field:
    """A place for runs."""
    return Field(tmp_path)


# W07: output passes through.

BULK = "import os\nblock = bytes(range(256)) * 4096\nfor i in range(300): os.write(1, block)\n"


def test_three_hundred_megabytes_are_the_same_bytes(field: Field) -> None:
    """W07: 300 MB of output as fast as possible are byte for byte those of a direct run."""
    expected = hashlib.md5(bytes(range(256)) * 4096 * 300).hexdigest()

    script = f"{EERL_RUN} --out {field.folder} -- {PYTHON} -c '{BULK}' | md5sum; echo ${{PIPESTATUS[@]}}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, timeout=120, env=field.environment)

    assert done.stdout.decode().split() == [expected, "-", "0", "0"]


def test_order_of_both_streams_in_one_file(field: Field) -> None:
    """W07: what the command writes in turns to stdout and stderr stands in that order in a common file."""
    script = "import os\nfor i in range(500): os.write(1 + i % 2, b'%d\\n' % i)"
    with (field.folder / "both").open("w+b") as both:
        field.start([PYTHON, "-c", script], stdout=both, stderr=both).wait()
        both.seek(0)

        lines = [line for line in both.read().decode().splitlines() if not line.startswith("eerl: ")]

    assert lines == [str(i) for i in range(500)]


@pytest.mark.parametrize("closed", [">&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams(field: Field, closed: str) -> None:
    """W07: with stdout or more closed the command sees them closed, keeps its code, and the report is made."""
    look = f"for i in 0 1 2; do test -e /proc/$$/fd/$i && echo $i >> {field.folder}/seen; done; exit 7"
    out = field.folder / "closed"

    done = subprocess.run(
        ["bash", "-c", f"{EERL_RUN} --out {out} -- sh -c '{look}' {closed}"],
        env=field.environment,
        stdin=subprocess.DEVNULL,
        timeout=60,
    )

    seen = field.folder / "seen"
    left_open = [str(fd) for fd in sorted(_open_after(closed))]
    assert done.returncode == 7
    assert (seen.read_text().split() if seen.exists() else []) == left_open
    assert len(list(out.glob("eerl-*/report.json"))) == 1


def _open_after(redirects: str) -> set[int]:
    """Which of 0, 1 and 2 a shell leaves open."""
    closed = {{"<&-": 0, ">&-": 1, "2>&-": 2}[word] for word in redirects.split()}
    return {0, 1, 2} - closed


# W09: standard input in every form.


def test_standard_input_that_is_a_socket(field: Field) -> None:
    """W09: a command whose input is a socket reads it to its end."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        running = field.start(["sh", "-c", "cat; ls -l /proc/self/fd/0 | grep -c socket"], stdin=theirs)
        theirs.close()
        ours.sendall(b"from a socket\n")
        ours.shutdown(socket.SHUT_WR)

        done = running.wait()

    assert done.output == b"from a socket\n1\n"


def test_here_documents_and_further_descriptors(field: Field) -> None:
    """W09: a here-document and a descriptor 3 arrive as in a direct run."""
    script = "$W sh -c 'cat; cat <&3' 3</etc/hostname <<'END'\n$not expanded\nEND\n"

    direct = subprocess.run(["bash", "-c", script], env={**field.environment, "W": ""}, capture_output=True)
    ours = subprocess.run(
        ["bash", "-c", script],
        env={**field.environment, "W": f"{EERL_RUN} --out {field.folder} --"},
        capture_output=True,
        timeout=60,
    )

    assert ours.stdout == direct.stdout and b"$not expanded\n" in ours.stdout


# W11: our own failure stays ours.

EIGHT_UPDATES = """
for update in range(1, 9):
    phase("generation", 0.25, update)
    phase("training", 0.25, update)
print("end", time.time(), flush=True)
raise SystemExit(6)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
@pytest.mark.parametrize("victim", ["eerl_launch.session", "eerl_launch.agent"])
def test_every_part_of_ours_may_fail(field: Field, victim: str, number: signal.Signals) -> None:
    """W11: session or agents killed or stopped in mid-run: the code is kept, few words, the end is not held up."""
    field.simulate("h100:2x2")
    field.policy("policy: fixed\nfixed: {generation_mhz: 1500, training_mhz: 1200}\n")
    running = field.start(field.trainer(EIGHT_UPDATES))
    running.until_update(3)

    victims = running.kill(victim, number)
    done = running.wait()
    ended_s = time.time()
    for pid in victims:  # those that were stopped must not stay
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            continue

    assert victims
    assert done.code == 6
    command_ended_s = float(done.output.split()[-1])
    assert ended_s - command_ended_s < 40  # bounded: a farewell of 6 s, and 5 s for each agent that hangs
    about = [line for line in done.ours if not line.startswith("eerl: report")]
    assert len({line for line in about if "session" in line or "sim0" in line}) <= 3, done.errors
    if victim == "eerl_launch.agent":
        assert [node["state"] for node in done.report["clocks_at_end"]] == ["unknown"] * 2, done.text
        assert len(done.events("update")) == 8
        assert all(check["ok"] is not False for check in done.report["checks"])


FAULTY_RUN = """
import subprocess, sys
from eerl_launch import cli, launch

FAULT = '''
import sys
from eerl_launch import session
def fault(*_):
    raise ZeroDivisionError("injected")
session.Session.METHOD = fault
sys.exit(session.main())
'''
started = subprocess.Popen
def start(argv, **options):
    faulty = "eerl_launch.session" in argv
    return started([sys.executable, "-I", "-c", FAULT] if faulty else argv, **options)
launch.subprocess.Popen = start
cli.main()
"""


@pytest.mark.parametrize("method", ["_mark", "_record", "_show_progress", "_answer_operator", "_log_end"])
def test_a_fault_of_the_session_is_told_once(field: Field, method: str) -> None:
    """W11: whatever raises in the session, there is one message, the command keeps its code, nothing stays behind."""
    program = field.folder / "faulty.py"
    program.write_text(FAULTY_RUN.replace("METHOD", method))
    field.simulate()
    ask = """
    from eerl_launch import control
    phase("generation", 0.2, 1); phase("training", 0.2, 1); phase("generation", 0.2, 2)
    time.sleep(1.5)
    try:
        control.ask(Path(os.environ["EERL_RUN_DIR"]), "status")
    except Exception:
        pass
    print(os.environ["EERL_SOCKET"])
    raise SystemExit(6)
    """
    out = field.folder / "faulty"
    argv = [PYTHON, str(program), *field.options, "--out", str(out), "--", *field.trainer(ask)]

    done = subprocess.run(argv, env=field.environment, capture_output=True, timeout=60, text=True)

    (ledger,) = out.glob("eerl-*/ledger.jsonl")
    told = [line for line in done.stderr.splitlines() if "injected" in line]
    assert done.returncode == 6
    assert len(told) == 1 and told[0].startswith("eerl: "), done.stderr
    assert "injected" in ledger.read_text()
    assert "Traceback" not in done.stderr
    assert not Path(done.stdout.split()[-1]).parent.exists()


# R14: a crash in mid-run.


def test_a_crash_keeps_its_own_last_words(field: Field) -> None:
    """R14: the traceback stands before our few last lines; the open phase is flagged, and clocks are home."""
    field.simulate()
    field.policy("policy: fixed\nfixed: {generation_mhz: 1500, training_mhz: 1200}\n")
    program = """
    for update in range(1, 8):
        phase("generation", 0.2, update); phase("training", 0.2, update)
    def deep(n):
        return deep(n - 1) if n else 1 / 0
    phase("generation", 0.2, 8)
    mark.begin("training", update=8)
    time.sleep(0.3)
    deep(40)
    """

    done = field.run(field.trainer(program))

    lines = done.errors.splitlines()
    last_word = max(i for i, line in enumerate(lines) if "ZeroDivisionError" in line)
    phases = [line for line in done.events("phase") if line["update"] == 8]
    assert done.code == 1
    assert 0 < len(lines) - last_word - 1 <= 6, lines[
        last_word:
    ]  # one of them says that the GPUs are simulated
    assert all(line.startswith("eerl: ") for line in lines[last_word + 1 :])
    assert [(line["phase"], line["complete"]) for line in phases] == [
        ("generation", True),
        ("training", False),
    ]
    assert done.report["complete"] is False
    assert {node["state"] for node in done.report["clocks_at_end"]} == {"ok"}


# N06, S24: what the user's environment holds.


@pytest.mark.parametrize(
    "rival",
    [
        "raise RuntimeError('a rival package')",
        "def nvmlInit(): pass\ndef nvmlDeviceGetUUID(h): return b'GPU-wrong'\n",
    ],
    ids=["raises", "bytes"],
)
def test_a_rival_pynvml_on_pythonpath(field: Field, rival: str) -> None:
    """N06: a rival package of that name changes neither our UUIDs nor what the command has on its PYTHONPATH."""
    stub = field.stub(gpus=2)
    rivals = field.folder / "rivals"
    rivals.mkdir()
    (rivals / "pynvml.py").write_text(rival)
    field.environment["PYTHONPATH"] = f"{rivals}:/nowhere"

    done = field.run(["sh", "-c", "echo $PYTHONPATH; sleep 1"])

    adapters, _, theirs = done.output.decode().partition(":")
    assert adapters.startswith("/dev/shm/eerl-") and theirs == f"{rivals}:/nowhere\n"
    assert [gpu["uuid"] for gpu in done.report["gpus"]] == list(stub.uuids())
    assert done.report["allocation"]["energy_j"] > 0


@pytest.mark.parametrize("module", ["yaml", "click", "rich", "numpy", "jinja2", "selectors"])
def test_modules_of_our_names_on_pythonpath(field: Field, module: str) -> None:
    """S24: a module on PYTHONPATH that is named like one of ours stops neither the command nor the report."""
    rivals = field.folder / "rivals"
    rivals.mkdir()
    (rivals / f"{module}.py").write_text("raise RuntimeError('not ours')\n")
    field.environment["PYTHONPATH"] = str(rivals)
    field.simulate()

    done = field.run(["sh", "-c", "echo ran; exit 4"], cwd=rivals)

    assert (done.code, done.output) == (4, b"ran\n"), done.errors
    assert "Traceback" not in done.errors
    assert done.report["run"]["exit_code"] == 4


def test_a_hostile_home_and_locale(field: Field) -> None:
    """S24: no HOME, LANG=C, umask 077 and a path with an umlaut: the report is complete and where it belongs."""
    field.out = field.folder / "Läufe"
    field.environment |= {"HOME": "/nonexistent", "LC_ALL": "C", "LANG": "C"}
    field.simulate()

    done = field.run(field.trainer("phase('generation', 0.5, 1); phase('training', 0.5, 1)"), umask=0o077)

    assert done.code == 0
    assert done.folder.parent == field.out
    assert {"report.json", "report.html", "report.txt", "updates.csv"} <= {
        p.name for p in done.folder.iterdir()
    }
    assert not Path("/nonexistent").exists()
    assert "Traceback" not in done.errors


# E09: two runs with the same place.


def test_two_runs_of_one_job_keep_their_reports(field: Field) -> None:
    """E09: two launcher calls in one job with the same output option make two reports, none overwritten."""
    field.environment |= {"SLURM_JOB_ID": "990042", "SLURM_JOB_NODELIST": "n1", "SLURMD_NODENAME": "n1"}
    field.simulate()

    first, second = (field.run(["sh", "-c", f"exit {code}"]) for code in (1, 2))

    assert (first.folder.name, second.folder.name) == ("eerl-990042", "eerl-990042-2")
    assert [done.report["run"]["exit_code"] for done in (first, second)] == [1, 2]
