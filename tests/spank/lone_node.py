"""A compute node without Slurm: a mount namespace of its own with /run, /dev/shm, /dev/log and stub GPUs.

The broker is started in it with the arguments the plugin would give it, and spoken to over its socket as the
job's owner.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from nvml_stub.stub import Stub, build_library

REPO = Path(__file__).resolve().parents[2]
SPANK = REPO / "spank"
OWNER = 4001
HANG_BOUND_S = 30.0  # no test waits longer than this for anything

_HOLDER = """
set -e
mount --make-rprivate /
mount -t tmpfs -o mode=0755 tmpfs /run
mount -t tmpfs -o mode=0755 tmpfs /dev
mknod -m 666 /dev/null c 1 3
mknod -m 666 /dev/zero c 1 5
mknod -m 666 /dev/urandom c 1 9
mkdir -m 1777 /dev/shm
: > /dev/log
mount --bind "$1/log" /dev/log
mount --bind "$1/passwd" /etc/passwd
mount --bind "$1/group" /etc/group
echo ready
exec cat
"""


def until(condition: Callable[[], object], what: str, bound_s: float = HANG_BOUND_S) -> None:
    """Wait until ``condition()`` holds; fail with ``what`` when it does not within a generous bound."""
    end = time.monotonic() + bound_s
    while not condition():
        assert time.monotonic() < end, f"still not so after {bound_s:.0f} s: {what}"
        time.sleep(0.01)


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def without_namespaces() -> str:
    """Why no lone node can be made here; empty when one can."""
    if os.geteuid() != 0:
        return "needs root: the broker drops root's rights, and a node is a mount namespace"
    tried = subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False)
    return (
        "" if tried.returncode == 0 else "needs mount namespaces (unshare -m), which this container forbids"
    )


class Client:
    """One connection to a broker."""

    def __init__(self, connection: socket.socket) -> None:
        self.raw = connection
        self.raw.settimeout(HANG_BOUND_S)
        self._rest = b""

    def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        self.raw.sendall(data)

    def line(self) -> str | None:
        """The next line from the broker; None when it has closed."""
        while b"\n" not in self._rest:
            try:
                data = self.raw.recv(65536)
            except ConnectionResetError:
                return None
            if not data:
                return None
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return line.decode("ascii")

    def ask(self, request: str) -> str:
        """One request, its answer."""
        self.send(request.encode() + b"\n")
        answer = self.line()
        assert answer is not None, f"the broker closed instead of answering {request!r}"
        return answer

    def hello(self) -> dict[str, str]:
        """Greet; the fields of the answer."""
        answer = self.ask("hello 1")
        assert answer.startswith("ok "), answer
        return dict(word.split("=", 1) for word in answer.split()[1:])

    def sample(self) -> dict[str, dict[str, int]]:
        """One reading: fields by UUID."""
        answer = self.ask("sample")
        assert answer.startswith("ok t_ns="), answer
        readings = {}
        for entry in answer.split(" ", 2)[2].split(" ; "):
            uuid, *words = entry.split()
            readings[uuid] = {key: int(value, 0) for key, value in (word.split("=") for word in words)}
        return readings

    def close(self) -> None:
        """Hang up."""
        self.raw.close()


@dataclass(frozen=True)
class Outcome:
    """What a one-shot said and its exit code."""

    code: int
    text: str


class LoneNode:
    """See the module's docstring."""

    def __init__(
        self, folder: Path, clockd: Path, *, name: str = "node01", gpus: int = 4, **stub: object
    ) -> None:
        self.name = name
        self.folder = folder
        self.clockd = folder / "eerl-clockd"
        self.nvml = folder / "libnvidia-ml.so.1"
        shutil.copy(clockd, self.clockd)
        shutil.copy(build_library(), self.nvml)
        (folder / "passwd").write_text(
            "root:x:0:0::/:/bin/sh\nalice:x:4001:4001::/:/bin/sh\nbob:x:4002:4002::/:/bin/sh\n"
        )
        (folder / "group").write_text("root:x:0:\nalice:x:4001:\nbob:x:4002:\nrl:x:5000:alice\n")
        self._syslog = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._syslog.bind(os.fspath(folder / "log"))
        self._log_lines: list[str] = []
        self._log_reader = threading.Thread(target=self._read_log, daemon=True)
        self._log_reader.start()
        self._holder = subprocess.Popen(
            ["unshare", "-m", "sh", "-c", _HOLDER, "sh", os.fspath(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == "ready\n"
        self.holder = self._holder.pid
        self.root = Path(f"/proc/{self.holder}/root")
        self.stub = Stub.create(self.root / "dev/shm/eerl-nvml-stub", gpus=gpus, **stub)  # type: ignore[arg-type]
        self._started: list[subprocess.Popen[bytes]] = []
        self._clients: list[Client] = []
        self.deaths_meant = False

    def _read_log(self) -> None:
        with contextlib.suppress(OSError):
            while data := self._syslog.recv(8192):
                self._log_lines.append(data.decode(errors="replace"))

    def syslog(self) -> str:
        """What was logged on this node so far."""
        return "\n".join(self._log_lines)

    def stop(self) -> None:
        """End what this node runs."""
        self.stub.clear_faults()
        for client in self._clients:
            client.close()
        for process in self._started:
            if process.poll() is None:
                self._kill_group(process.pid)
                process.wait()
        for pid in self.brokers():  # those a prolog has started, or whose supervisor a test has killed
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._holder.kill()
        self._holder.wait()
        self._syslog.shutdown(
            socket.SHUT_RDWR
        )  # ends the reader before its descriptor's number is used again
        self._log_reader.join()
        self._syslog.close()
        self.stub.close()

    def _kill_group(self, pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            if os.getpgid(pid) == pid:
                os.killpg(pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def settings(self, *settings: str) -> list[str]:
        """plugstack settings with this node's NVML."""
        return [f"nvml={self.nvml}", *settings]

    def inside(self, *command: str | Path) -> list[str]:
        """The command line that runs a command on this node."""
        return ["nsenter", "-m", "-t", str(self._holder.pid), *map(os.fspath, command)]

    def serve(
        self,
        job: int = 12,
        gpus: str = "0,1",
        settings: Sequence[str] = (),
        *,
        uid: int = OWNER,
        words: Sequence[str] = (),
        form: str = "--serve",
    ) -> str:
        """Start a broker as the prolog would; what it reports, once it has said all."""
        read, write = os.pipe()
        process = subprocess.Popen(
            [
                *self.inside(
                    self.clockd, form, f"node={self.name}", f"job={job}", f"uid={uid}", f"gid={uid}"
                ),
                *(f"gpus={gpus}", *words, f"report={write}", "--", *self.settings(*settings)),
            ],
            pass_fds=(write,),
            env={},
        )
        os.close(write)
        self._started.append(process)
        with os.fdopen(read) as report:
            ready, _, _ = select.select([report], [], [], HANG_BOUND_S)
            assert ready, "the broker reports nothing"
            return report.read()

    def brokers(self) -> list[int]:
        """Every process of this node's eerl-clockd."""
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and os.fsencode(self.clockd) in (
                    entry / "cmdline"
                ).read_bytes().split(b"\0"):
                    found.append(int(entry.name))
        return found

    @property
    def supervisor(self) -> subprocess.Popen[bytes]:
        """The broker started last."""
        return self._started[-1]

    def workers(self) -> list[int]:
        """The supervisor's worker, once it is there; its other children reset what a dead worker left."""
        pid = self.supervisor.pid
        children = [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        return [child for child in children if _name(child) == "eerl-worker"]

    def run(self, *arguments: str, settings: Sequence[str] | None = None) -> Outcome:
        """A one-shot form of eerl-clockd."""
        tail = [] if settings is None else ["--", *self.settings(*settings)]
        done = subprocess.run(
            [*self.inside(self.clockd, *arguments), *tail],
            capture_output=True,
            text=True,
            timeout=HANG_BOUND_S,
            check=False,
        )
        return Outcome(done.returncode, done.stderr)

    def epilog(self) -> Outcome:
        """The shipped Epilog snippet, in the environment Slurm gives it."""
        done = subprocess.run(
            self.inside(
                "env", "-i", f"SLURMD_NODENAME={self.name}", "PATH=/usr/bin:/bin", SPANK / "epilog-eerl.sh"
            ),
            capture_output=True,
            text=True,
            timeout=HANG_BOUND_S,
            check=False,
        )
        return Outcome(done.returncode, done.stderr)

    @contextlib.contextmanager
    def titled(self, title: str, uid: int = 0) -> Iterator[None]:
        """A process that shows ``title`` in ps."""
        process = subprocess.Popen(
            [title, "60"], executable=shutil.which("sleep"), user=uid, stdout=subprocess.DEVNULL
        )
        try:
            until(lambda: Path(f"/proc/{process.pid}/cmdline").read_text().startswith(title), "the title")
            yield
        finally:
            process.kill()
            process.wait()

    def job_folder(self, job: int = 12) -> Path:
        """Where the job's state lies."""
        return self.root / "run/eerl" / self.name / str(job)

    def state(self, job: int = 12) -> set[str]:
        """Names in the job's folder; empty when it is gone."""
        folder = self.job_folder(job)
        return {entry.name for entry in folder.iterdir()} if folder.exists() else set()

    def marks(self, job: int = 12) -> set[str]:
        """UUIDs marked dirty."""
        return {name.removeprefix("dirty-") for name in self.state(job) if name.startswith("dirty-")}

    def reason(self, job: int = 12) -> str:
        """What the job is told."""
        return (self.job_folder(job) / "reason").read_text()

    def connect(self, job: int = 12, uid: int = OWNER) -> Client:
        """Connect to a broker as some user."""
        folder = os.open(self.job_folder(job), os.O_PATH)
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        before = os.geteuid()
        os.seteuid(uid)
        try:
            connection.connect(f"/proc/self/fd/{folder}/clock")
        except OSError:
            connection.close()
            raise
        finally:
            os.seteuid(before)
            os.close(folder)
        self._clients.append(Client(connection))  # held, so that none hangs up by being forgotten
        return self._clients[-1]

    def agent(self, job: int = 12) -> Client:
        """A connection that has said hello."""
        client = self.connect(job)
        client.hello()
        return client


@contextlib.contextmanager
def lone_node(folder: Path, clockd: Path, **wishes: object) -> Iterator[LoneNode]:
    """A node for the length of a ``with``."""
    node = LoneNode(folder, clockd, **wishes)  # type: ignore[arg-type]
    try:
        yield node
    finally:
        node.stop()
