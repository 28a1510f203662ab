"""Field cases about places and the network: S17, S18, S19, S20, R13, E06, E08."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from launch.field_run import EERL_RUN, Field

ROOT = Path(__file__).resolve().parents[2]

root_only = pytest.mark.skipif(os.getuid() != 0, reason="mounting and changing the user need root")


@pytest.fixture
def field(tmp_path: Path) -> Field:
    """A place for runs on simulated GPUs."""
    field = Field(tmp_path)
    field.simulate()
    return field


TWO_UPDATES = """
for update in (1, 2):
    phase("generation", 0.3, update); phase("training", 0.3, update)
path = os.environ["EERL_SOCKET"]
print(path, oct(os.stat(os.path.dirname(path)).st_mode & 0o777), flush=True)
"""


def has_two_updates(done: object) -> bool:
    return [event["label"] for event in done.events("update")] == [1, 2]  # type: ignore[attr-defined]


# S17, S19: what TMPDIR is like.


def long_tmpdir(folder: Path) -> Path:
    long = folder / ("t" * 130)
    long.mkdir()
    return long


def missing(folder: Path) -> Path:
    return folder / "not-there"


def read_only(folder: Path) -> Path:
    path = folder / "read-only"
    path.mkdir(mode=0o555)
    return path


@pytest.mark.parametrize("place", [long_tmpdir, missing, read_only])
def test_tmpdir_of_any_kind(field: Field, place: object) -> None:
    """S17, S19: a TMPDIR that is long, missing or read-only: markers arrive by a short path in a private folder."""
    field.environment["TMPDIR"] = str(place(field.folder))  # type: ignore[operator]

    done = field.run(field.trainer(TWO_UPDATES))

    path, mode = done.output.decode().split()
    assert done.code == 0
    assert len(os.fsencode(path)) <= 107
    assert mode == "0o700"
    assert has_two_updates(done)


@root_only
@pytest.mark.parametrize("kind", ["full", "read-only", "missing"])
def test_shared_memory_of_any_kind(field: Field, kind: str) -> None:
    """S19: where /dev/shm is full, read-only or absent another place is taken, and markers arrive."""
    field.options.clear()  # a simulation lives in that folder; this is about the socket
    field.stub(gpus=1)
    mounts = {
        "full": "mount -t tmpfs -o size=64k none /dev/shm; head -c 1M /dev/zero > /dev/shm/full 2>/dev/null",
        "read-only": "mount -t tmpfs -o ro none /dev/shm",
        "missing": "mount -t tmpfs none /dev; mknod -m 666 /dev/null c 1 3; mknod -m 666 /dev/urandom c 1 9",
    }
    done = field.run(
        field.trainer(TWO_UPDATES), wrap=["unshare", "-m", "sh", "-c", f'{mounts[kind]}; exec "$@"', "sh"]
    )

    assert done.code == 0, done.errors
    assert has_two_updates(done), done.errors
    assert kind == "full" or not done.output.startswith(b"/dev/shm")


# S18: file systems that hold no sockets.

SHIM = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

static int there(const struct sockaddr *a)
{
    return a->sa_family == AF_UNIX && !strncmp(((const struct sockaddr_un *)a)->sun_path, "/dev/shm/", 9);
}
int CALL(int fd, const struct sockaddr *a, socklen_t n)
{
    int (*next)(int, const struct sockaddr *, socklen_t) = dlsym(RTLD_NEXT, NAME);
    if (there(a)) { errno = CODE; return -1; }
    return next(fd, a, n);
}
"""


@pytest.mark.parametrize(("call", "code"), [("bind", "EOPNOTSUPP"), ("connect", "ECONNREFUSED")])
def test_a_file_system_without_sockets(field: Field, call: str, code: str) -> None:
    """S18: where bind or connect is refused another folder is taken, the command is told it, and markers arrive."""
    shim = SHIM.replace("CALL", call).replace("NAME", f'"{call}"').replace("CODE", code)
    field.environment["LD_PRELOAD"] = field.shim(shim)

    done = field.run(field.trainer(TWO_UPDATES))

    path, mode = done.output.decode().split()
    assert done.code == 0
    assert not path.startswith("/dev/shm/") and mode == "0o700"
    assert has_two_updates(done)
    assert any(path.rsplit("/", 1)[0] in json.dumps(event) for event in done.ledger), (
        "the ledger names the place"
    )


# S19: the folder is wiped in mid-run.


def test_a_cleaner_that_takes_everything(field: Field) -> None:
    """S19: rm -rf of the private folder: markers go on, and a new process finds the socket within 10 s."""
    field.options.clear()
    field.stub(gpus=1)
    program = """
    import shutil
    phase("generation", 0.3, 1); phase("training", 0.3, 1)
    shutil.rmtree(os.path.dirname(os.environ["EERL_SOCKET"]))
    for update in range(2, 12):
        phase("generation", 0.4, update); phase("training", 0.4, update)
    assert os.path.exists(os.environ["EERL_SOCKET"])
    newcomer = "from eerl_launch import mark; mark.metric('again', 1.0)"
    subprocess.run([sys.executable, "-c", newcomer], check=True)
    from eerl_launch import control
    print(control.ask(Path(os.environ["EERL_RUN_DIR"]), "status")["run_id"], os.environ["EERL_RUN_ID"])
    raise SystemExit(3)
    """

    done = field.run(field.trainer(program))

    assert done.code == 3, done.errors
    assert len(set(done.output.split())) == 1, "eerl status finds another run, or none"
    assert [event["label"] for event in done.events("update")] == list(range(1, 12))
    assert (done.events("metric")[0]["name"], done.events("end")[0]["markers"]["lost"]) == ("again", 0)


def test_a_disk_that_is_full(field: Field) -> None:
    """S19: when nothing more can be written in mid-run the command goes on, and what is missing is said once."""
    program = """
    for update in range(1, 9):
        phase("generation", 0.3, update); phase("training", 0.3, update)
        mark.update(update, valid_tokens=100)
    raise SystemExit(3)
    """
    running = field.start(field.trainer(program))
    running.until_update(2)
    written = (running.folder / "ledger.jsonl").stat().st_size

    (session,) = running.processes("eerl_launch.session")
    subprocess.run(["prlimit", f"--pid={session}", f"--fsize={written + 1000}"], check=True)
    done = running.wait()

    about = [line for line in done.ours if "File too large" in line or "lines are missing" in line]
    assert done.code == 3
    assert sum("lines are missing" in line for line in about) == 1, done.errors
    assert "Traceback" not in done.errors
    again = subprocess.run(
        [str(EERL_RUN.with_name("eerl")), "report", str(done.folder)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert again.returncode == 0, again.stderr
    assert done.report["complete"] is False
    assert done.report["updates"]["updates"] >= 2


def test_a_cut_write_leaves_no_module_behind(field: Field) -> None:
    """S19: an installation with nothing compiled has no cut modules after a run that could not write: Python would
    take them for whole ones, and no later run could make its report."""
    for cache in ROOT.glob("*/**/__pycache__"):
        if cache.parent.relative_to(ROOT).parts[0] in ("eerl_launch", "controller"):
            shutil.rmtree(cache)
    done = field.run(["sleep", "0.5"], wrap=["prlimit", "--fsize=3000"])

    assert done.code == 0, done.errors
    assert not [*(ROOT / "eerl_launch").rglob("*.pyc"), *(ROOT / "controller").rglob("*.pyc")]


# S20: containers.

#: A new, empty /tmp in which the checkout and the interpreter are still where they were, should they be below it.
NEW_TMP = "mount -t tmpfs x /mnt && mkdir /mnt/0 /mnt/1 && " + " && ".join(
    [
        *(f"mount --rbind '{place}' /mnt/{i}" for i, place in enumerate((ROOT, sys.prefix))),
        "mount -t tmpfs x /tmp",
        *(
            f"mkdir -p '{place}' && mount --rbind /mnt/{i} '{place}'"
            for i, place in enumerate((ROOT, sys.prefix))
        ),
    ]
)


@root_only
def test_a_container_with_its_own_tmp(field: Field) -> None:
    """S20: a command in a user namespace with another /tmp reaches the socket all the same."""
    program = field.trainer(TWO_UPDATES)
    text = Path(program[1]).read_text()
    inner = f'{NEW_TMP} && exec {program[0]} -c "$TRAINER"'
    field.environment["TRAINER"] = text

    done = field.run(["unshare", "-rm", "sh", "-c", inner])

    assert done.code == 0, done.errors
    assert has_two_updates(done)


@root_only
def test_a_container_that_hides_the_socket(field: Field) -> None:
    """S20: where the socket is not visible marker calls cost little and raise nothing, and the report says so."""
    program = field.trainer("""
    costs = []
    for update in range(200):
        begin = time.perf_counter()
        mark.begin("generation", update=update); mark.end("generation", update=update)
        costs.append((time.perf_counter() - begin) / 2)
    print(sorted(costs)[len(costs) // 2], flush=True)
    time.sleep(0.5)
    raise SystemExit(5)
    """)
    inner = f'{NEW_TMP} && mount -t tmpfs x /dev/shm && exec "$0" -c "$TRAINER"'
    field.environment["TRAINER"] = Path(program[1]).read_text()

    done = field.run(["unshare", "-rm", "sh", "-c", inner, program[0]])

    assert done.code == 5, done.errors
    assert float(done.output) < 0.05
    assert done.events("update") == []
    assert done.report["allocation"]["energy_j"] > 0
    assert sum("no markers came" in line for line in done.ours) == 1
    assert "No markers were received: only the energy of the whole job is known" in done.text


# R13: other users.


@root_only
def test_a_second_user_cannot_send_markers(field: Field) -> None:
    """R13: another user's connection is refused and changes nothing."""
    program = field.trainer("""
    phase("generation", 0.3, 1)
    text = "import socket; s = socket.socket(socket.AF_UNIX); s.connect(%r)" % os.environ["EERL_SOCKET"]
    other = ["setpriv", "--reuid=4999", "--regid=4999", "--clear-groups", "/usr/bin/python3", "-c", text]
    print(subprocess.run(other, capture_output=True, text=True).stderr.splitlines()[-1], flush=True)
    phase("training", 0.3, 1)
    """)

    done = field.run(program)

    assert done.code == 0
    assert b"PermissionError" in done.output
    assert {event["phase"] for event in done.events("phase")} == {"generation", "training"}


@pytest.mark.parametrize("kind", ["file", "link"])
def test_something_of_ours_is_never_deleted(field: Field, kind: str) -> None:
    """R13: a file or link at the socket's path stays as it is, and the command runs."""
    job = f"99{os.getpid() % 100000:05d}"
    folder = Path(f"/dev/shm/eerl-{os.getuid()}-{job}")
    folder.mkdir(mode=0o700)
    precious = field.folder / "precious"
    precious.write_text("keep me")
    try:
        at_path = folder / "s"
        if kind == "file":
            at_path.write_text("keep me")
        else:
            at_path.symlink_to(precious)
        field.environment |= {"SLURM_JOB_ID": job, "SLURM_JOB_NODELIST": "n1", "SLURMD_NODENAME": "n1"}

        done = field.run(["sh", "-c", "exit 4"])

        assert done.code == 4
        assert at_path.read_text() == "keep me" and precious.read_text() == "keep me"
        assert at_path.is_symlink() == (kind == "link")
        assert len(done.ours) == 1 and str(at_path) in done.errors, done.errors
    finally:
        shutil.rmtree(folder)


# R12: a socket that a killed run has left.


def test_after_a_killed_run(field: Field) -> None:
    """R12: kill -9 of a run leaves its socket: the next run of the job works, a third beside it steps aside."""
    job = f"98{os.getpid() % 100000:05d}"
    field.environment |= {"SLURM_JOB_ID": job, "SLURM_JOB_NODELIST": "n1", "SLURMD_NODENAME": "n1"}
    first = field.start(["sleep", "60"])
    first.until(lambda: list(field.out.glob("eerl-*/control.json")), "the first session")
    first.kill("eerl_launch")
    first.kill("sleep")
    first.process.kill()
    first.wait()
    left = Path(f"/dev/shm/eerl-{os.getuid()}-{job}/s").exists()

    second = field.start(field.trainer(TWO_UPDATES + "time.sleep(3)"))
    second.until(lambda: list(field.out.glob(f"eerl-{job}-2/control.json")), "the second session")
    third = subprocess.run(
        [str(EERL_RUN), "--out", str(field.out), "--", "sh", "-c", "exit 8"],
        env=field.environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    done = second.wait()

    assert left, "the killed run left no socket: nothing was shown"
    assert third.returncode == 8
    assert third.stderr.count("eerl: ") == 1 and "another eerl-run" in third.stderr
    assert done.code == 0 and has_two_updates(done)


# E06: no network.


@root_only
def test_without_a_network(field: Field) -> None:
    """E06: with the network taken away a run with price and carbon is complete, and its products are exact."""
    field.policy("policy: governor\nreport: {price_per_kwh: 0.25, carbon_g_per_kwh: 300, pue: 1.3}\n")

    done = field.run(field.trainer(TWO_UPDATES), wrap=["unshare", "-n"])

    assert done.code == 0
    assert has_two_updates(done)
    kwh = done.report["allocation"]["energy_j"] / 3.6e6
    found = json.dumps(done.report)
    assert re.search(r'"carbon[a-z_]*": ?([0-9.e-]+)', found)
    assert any(abs(value - kwh * 300 * 1.3) < 1e-6 * kwh * 300 for value in numbers(done.report) if value), (
        found[:2000]
    )


def numbers(value: object) -> list[float]:
    """Every number in a document."""
    if isinstance(value, dict):
        return [n for item in value.values() for n in numbers(item)]
    if isinstance(value, list):
        return [n for item in value for n in numbers(item)]
    return [float(value)] if isinstance(value, (int, float)) and not isinstance(value, bool) else []


def test_nothing_of_ours_connects_to_a_network(field: Field) -> None:
    """E06: neither launcher, session, agents nor report ever call connect for anything but Unix sockets."""
    if shutil.which("strace") is None:
        shim = """
        #define _GNU_SOURCE
        #include <dlfcn.h>
        #include <stdlib.h>
        #include <sys/socket.h>
        int connect(int fd, const struct sockaddr *a, socklen_t n)
        {
            int (*next)(int, const struct sockaddr *, socklen_t) = dlsym(RTLD_NEXT, "connect");
            if (a->sa_family != AF_UNIX) abort();
            return next(fd, a, n);
        }
        """
        field.environment["LD_PRELOAD"] = field.shim(shim)
        done = field.run(field.trainer(TWO_UPDATES))
    else:
        log = field.folder / "connects"
        done = field.run(
            field.trainer(TWO_UPDATES),
            wrap=["strace", "-f", "-qq", "-e", "trace=connect,sendto,bind", "-o", str(log)],
        )
        calls = [line for line in log.read_text().splitlines() if "AF_INET" in line or "AF_NETLINK" in line]
        assert "AF_UNIX" in log.read_text()
        assert calls == []

    assert done.code == 0
    assert has_two_updates(done)


# E08: what can be read while the job runs.


def test_every_file_parses_at_every_read(field: Field) -> None:
    """E08: read every 50 ms during the run, all files of the run folder are whole; at the end the ledger says so."""
    program = """
    for update in range(1, 11):
        phase("generation", 0.2, update); phase("training", 0.2, update)
        mark.update(update, valid_tokens=100)
    """
    running = field.start(field.trainer(program))
    reads, seen = 0, set()

    while running.process.poll() is None:
        for path in field.out.glob("eerl-*/*"):
            try:
                data = path.read_bytes()
            except FileNotFoundError:
                continue
            seen.add(path.name)
            reads += 1
            if path.suffix == ".jsonl":
                assert data == b"" or data.endswith(b"\n")
                for line in data.splitlines():
                    json.loads(line)
            elif path.suffix == ".json":
                json.loads(data)
            elif path.suffix == ".html":
                assert data.rstrip().endswith(b"</html>")
            elif path.suffix == ".csv":
                assert len({len(row) for row in csv.reader(data.decode().splitlines())}) == 1
        time.sleep(0.05)
    done = running.wait()

    assert reads > 20 and {"ledger.jsonl", "control.json", "report.json"} <= seen
    assert done.ledger[-1]["ev"] == "end" and done.ledger[-1]["status"] == "complete"
    assert done.events("start")[0]["user"] and done.events("start")[0]["run_id"]
    assert not (done.folder / "control.json").exists()
