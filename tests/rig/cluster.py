"""A real Slurm cluster of 1-8 nodes on one machine, from nothing, with stub GPUs; also the way to try eerl by hand.

    python tests/rig/cluster.py start --nodes 2 --gpus 8     start it and say how to submit
    python tests/rig/cluster.py shell                        a shell of an ordinary user on the first node
    python tests/rig/cluster.py stop                         leave nothing behind

Needs root and Debian's slurmctld, slurmd, slurm-client, munge. Nothing outside a directory of its own in /tmp and
an ordinary user ``eerl`` (uid 4001, made when absent) is touched. Only the GPUs are simulated.
"""

from __future__ import annotations

import argparse
import contextlib
import grp
import json
import os
import pwd
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # run as a script: the folders that pytest puts on the path
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from nvml_stub.stub import LIBRARY, Stub, build_library
from rig.config import Spec, gres_conf, plugstack_conf, slurm_conf
from rig.jobs import Job, parse_job
from rig.node import Node
from rig.processes import end, in_namespaces

HERE = Path(__file__).resolve().parent
REPO = HERE.parents[1]
REMEMBERED = REPO / ".build" / "cluster.json"  # where the command line finds the cluster it has started
TOOLS = ("slurmctld", "slurmd", "sbatch", "munged", "nsenter", "unshare", "setpriv", "ldconfig")
SYSTEM_PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
TEMPORARY = Path("/tmp")  # of the nodes, too
USER_NAME, USER_ID = "eerl", 4001


def missing() -> str:
    """Why no cluster can be started here, with the cure; empty when one can."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    if os.geteuid() != 0:
        return "a Slurm cluster needs root (mount namespaces, ordinary users)"
    absent = [tool for tool in TOOLS if shutil.which(tool, path=path) is None]
    if absent:
        return f"{', '.join(absent)} not found: apt install slurmctld slurmd slurm-client libslurm-dev munge"
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode != 0:
        return "mount namespaces are not allowed here (a container without CAP_SYS_ADMIN?)"
    if not (HERE / "job.py").stat().st_mode & stat.S_IROTH:
        return f"{REPO} cannot be read by the job's user (umask 077?): chmod -R o+rX {REPO}"
    mode = stat.S_IMODE(TEMPORARY.stat().st_mode)
    if mode & 0o003 != 0o003:
        return (
            f"{TEMPORARY} has mode {mode:04o}, so the job's user cannot write to it: chmod 1777 {TEMPORARY}"
        )
    return ""


def job_user() -> pwd.struct_passwd:
    """The ordinary user whose jobs these are, made when the machine has none."""
    with contextlib.suppress(KeyError):
        return pwd.getpwnam(USER_NAME)
    with contextlib.suppress(KeyError):
        return pwd.getpwuid(USER_ID)
    subprocess.run(
        ["useradd", "-u", str(USER_ID), "-M", "-d", "/nonexistent", "-s", "/bin/bash", USER_NAME], check=True
    )
    return pwd.getpwnam(USER_NAME)


def wait_for(truth: Callable[[], Any], what: str, timeout_s: float = 60.0, every_s: float = 0.05) -> Any:
    """Poll until ``truth()`` is true and give its value back; TimeoutError names what did not come."""
    deadline = time.monotonic() + timeout_s
    while not (value := truth()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {timeout_s:g} s for {what}")
        time.sleep(every_s)
    return value


class Cluster:
    """A running cluster. Make one with ``Cluster.start(...)``, end it with ``stop()``."""

    def __init__(self, base: Path, spec: Spec, holders: dict[str, int]) -> None:
        self.base = base
        self.spec = spec
        self.conf = base / "etc" / "slurm.conf"
        self.user = job_user()
        self.work = base / "work"
        self.nodes = {name: Node(self, name, holder) for name, holder in holders.items()}

    # Life.

    @classmethod
    def start(cls, spec: Spec | None = None, **wishes: Any) -> Cluster:
        """Start a cluster; the wishes are the fields of ``Spec``. All nodes are idle when it returns."""
        reason = missing()
        if reason:
            raise RuntimeError(reason)
        spec = spec or Spec(**wishes)
        base = Path(tempfile.mkdtemp(prefix="eerl-rig-", dir=TEMPORARY))
        base.chmod(0o755)
        cluster = cls(base, spec, {})
        umask = os.umask(0o022)  # the job's user must read what is laid out, and the daemons' files
        try:
            cluster._lay_out()
            cluster._start_daemons()
        except BaseException:
            cluster.stop()
            raise
        finally:
            os.umask(umask)
        return cluster

    def _lay_out(self) -> None:
        for name in ("etc", "log", "munge", "run", "state", "syslog", "stage", "lib", "eerl"):
            (self.base / name).mkdir(mode=0o755)
        for name in ("work", "home"):
            (self.base / name).mkdir()
            os.chown(self.base / name, self.user.pw_uid, self.user.pw_gid)
        host = socket.gethostname().split(".")[0]
        etc = self.base / "etc"
        self.conf.write_text(
            slurm_conf(self.spec, self.base, host, free_ports(1 + len(self.spec.node_names)))
        )
        (etc / "gres.conf").write_text(gres_conf(self.spec))
        (etc / "plugstack.conf").write_text(plugstack_conf(self.spec, self.base))
        for name, text in (("prolog", self.spec.prolog), ("epilog", self.spec.epilog)):
            if text:
                (etc / f"{name}.sh").write_text(text)
                (etc / f"{name}.sh").chmod(0o755)
        shutil.copyfile(build_library(), self.base / "lib" / LIBRARY.name)
        loader = self.base / "lib" / "ld.so.conf"
        loader.write_text(f"{self.base}/lib\ninclude /etc/ld.so.conf\n")
        subprocess.run(
            ["ldconfig", "-X", "-C", str(loader.with_name("ld.so.cache")), "-f", str(loader)], check=True
        )
        if self.spec.plugin:
            self.install_plugin()

    def install_plugin(self) -> None:
        """Build spank/ and put the plugin and the broker where plugstack.conf of this cluster says."""
        subprocess.run(
            ["make", "-s", "-C", str(REPO / "spank"), "all"], check=True, stdout=subprocess.DEVNULL
        )
        for name in ("eerl_spank.so", "eerl-clockd"):
            new = self.base / "eerl" / f"{name}.new"
            shutil.copyfile(REPO / "spank" / name, new)
            new.chmod(0o755)
            new.rename(self.base / "eerl" / name)  # replace by rename: a running slurmd may have it mapped

    def _start_daemons(self) -> None:
        key = self.base / "munge" / "key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        munge = self.base / "munge"
        self.spawn(
            "munged.out",
            ["munged", "--foreground", "--force", "--num-threads=2", f"--key-file={key}", f"--socket={munge}/socket",
             f"--pid-file={munge}/pid", f"--seed-file={munge}/seed", f"--log-file={munge}/log"],
        )  # fmt: skip
        self._spawn_ready(["syslog.py", str(self.base), *self.spec.node_names], "syslog")
        for name in self.spec.node_names:
            self.nodes[name] = Node(self, name, self._hold_namespace(name))
            state = self.nodes[name].root / "dev/shm/eerl-nvml-stub"
            model = self.spec.models.get(name, self.spec.model)
            Stub.create(state, model=model, gpus=self.spec.gpus, seed=name, minors=self.spec.minors).close()
        wait_for((munge / "socket").exists, "munged")
        self.spawn("slurmctld.out", ["slurmctld", "-D", "-f", str(self.conf)])
        for node in self.nodes.values():
            node.start_slurmd()
        self.wait_nodes()

    def _hold_namespace(self, name: str) -> int:
        wish = {
            "base": str(self.base),
            "node": name,
            "gpus": self.spec.gpus,
            "loader_cache": name not in self.spec.stub_missing_on,
            "plugin_missing": name in self.spec.plugin_missing_on,
            "visible": sorted({str(REPO), sys.prefix, sys.base_prefix}),
        }
        return self._spawn_ready(
            ["namespace.py", json.dumps(wish)], name, ["unshare", "--mount", "--propagation=private"]
        )

    def _spawn_ready(self, script: list[str], what: str, under: Sequence[str] = ()) -> int:
        """Start a script of the rig and wait for its word that it is ready; returns its pid."""
        with (self.base / "log" / f"{what}.rig").open("wb") as errors:
            started = subprocess.Popen(
                [*under, sys.executable, str(HERE / script[0]), *script[1:]],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
                env=self.environment(),
            )
        assert started.stdout is not None
        if started.stdout.readline() != b"ready\n":
            raise RuntimeError(f"{what}: {(self.base / 'log' / f'{what}.rig').read_text()}")
        started.stdout.close()
        self._note(started)
        return started.pid

    def spawn(self, log: str, command: list[str]) -> int:
        """Start a daemon of the cluster in the background."""
        with (self.base / "log" / log).open("ab") as output:
            started = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env=self.environment(),
                cwd=self.base,
            )
        self._note(started)
        return started.pid

    _children: dict[int, subprocess.Popen[bytes]] = {}  # noqa: RUF012 - all of this interpreter, to be reaped

    def _note(self, started: subprocess.Popen[bytes]) -> None:
        Cluster._children[started.pid] = started

    def stop(self) -> None:
        """Kill everything of the cluster and remove its directory."""
        left = in_namespaces([node.namespace for node in self.nodes.values()], self.base)
        deadline = time.monotonic() + 20
        while left and time.monotonic() < deadline:
            end(left, patience_s=2)
            for child in list(Cluster._children.values()):
                if child.poll() is not None:
                    Cluster._children.pop(child.pid, None)
            left = in_namespaces([node.namespace for node in self.nodes.values()], self.base)
        if left:
            raise RuntimeError(f"would not die: {[f'{p.pid} {p.command}' for p in left]}; see {self.base}")
        shutil.rmtree(self.base, ignore_errors=True)

    # Use.

    def environment(self, **more: str) -> dict[str, str]:
        """The environment of the cluster's clients and daemons: this checkout's commands first."""
        path = [os.path.normpath(Path(sys.executable).parent), *SYSTEM_PATH]
        return {
            "PATH": ":".join(path),
            "SLURM_CONF": str(self.conf),
            "HOME": str(self.base / "home"),
            "USER": self.user.pw_name,
            "LOGNAME": self.user.pw_name,
            "LANG": "C.UTF-8",
            **more,
        }

    def command(
        self, *command: str, as_root: bool = False, check: bool = True, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run a Slurm client outside the nodes, as on a login node, as the job's user unless told otherwise."""
        if not as_root:
            options |= {"user": self.user.pw_uid, "group": self.user.pw_gid, "extra_groups": []}
        environment = self.environment(**options.pop("env", {}))
        done = subprocess.run(
            command,
            env=environment,
            cwd=options.pop("cwd", self.work),
            text=True,
            capture_output=True,
            **{"timeout": 60, **options},
        )
        if check and done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)}: exit {done.returncode}: {done.stderr.strip()}")
        return done

    def sbatch(self, script: str, *arguments: str, env: dict[str, str] | None = None) -> int:
        """Submit a script (``#!/bin/bash`` is added when absent); returns the job id."""
        if not script.startswith("#!"):
            script = f"#!/bin/bash\n{script}\n"
        outputs = ["-o", f"{self.work}/%j.out", "-e", f"{self.work}/%j.err"]
        done = self.command("sbatch", "--parsable", *outputs, *arguments, input=script, env=env or {})
        return int(done.stdout.split(";")[0])

    def job(self, job_id: int) -> Job:
        """The job as it is now."""
        return parse_job(self.command("scontrol", "-o", "show", "job", str(job_id)).stdout, job_id)

    def wait_running(self, job_id: int, timeout_s: float = 60.0) -> Job:
        """Wait until the job runs (or has ended)."""
        return self._wait(job_id, lambda job: job.state == "RUNNING" or job.ended, "start", timeout_s)

    def wait_end(self, job_id: int, timeout_s: float = 120.0) -> Job:
        """Wait until the job and its epilogs are over."""
        return self._wait(job_id, lambda job: job.ended, "end", timeout_s)

    def _wait(self, job_id: int, truth: Callable[[Job], bool], what: str, timeout_s: float) -> Job:
        deadline = time.monotonic() + timeout_s
        while not truth(job := self.job(job_id)):
            if time.monotonic() > deadline:
                seen = f"{job.state} ({job.reason})\n{job.output}{job.errors}"
                raise TimeoutError(f"job {job_id} did not {what} in {timeout_s:g} s: {seen}")
            time.sleep(0.1)
        return job

    def wait_second_attempt(self, job_id: int, timeout_s: float = 180.0) -> Job:
        """Wait until a job that requeues itself once is over, with a shorter pause than Slurm's between the two.

        Not none: credentials have a resolution of a second, and that of the first attempt is revoked.
        """
        self._wait(job_id, lambda job: job.restarts == 1 and job.state == "PENDING", "come back", timeout_s)
        time.sleep(2)
        self.scontrol("update", f"jobid={job_id}", "StartTime=now")
        return self._wait(job_id, lambda job: job.restarts == 1 and job.ended, "end again", timeout_s)

    def run(
        self, script: str, *arguments: str, timeout_s: float = 120.0, env: dict[str, str] | None = None
    ) -> Job:
        """Submit and wait for the end."""
        return self.wait_end(self.sbatch(script, *arguments, env=env), timeout_s)

    def node(self, name: str | int = 0) -> Node:
        """A node by name or number."""
        return self.nodes[name] if isinstance(name, str) else list(self.nodes.values())[name]

    def squeue(self, *arguments: str) -> list[str]:
        """squeue's lines, without a header."""
        return self.command("squeue", "-h", *arguments).stdout.splitlines()

    def sinfo(self) -> dict[str, str]:
        """The nodes' states, as ``sinfo -N -o %T`` words them."""
        lines = self.command("sinfo", "-h", "-N", "-p", "main", "-o", "%N %T").stdout.splitlines()
        return dict(line.split(maxsplit=1) for line in lines)

    def scancel(self, *arguments: str) -> None:
        """scancel as the job's user."""
        self.command("scancel", *arguments, check=False)

    def scontrol(self, *arguments: str) -> str:
        """scontrol as root."""
        return self.command("scontrol", *arguments, as_root=True).stdout

    def wait_nodes(self, names: Iterable[str] | None = None, timeout_s: float = 60.0) -> None:
        """Wait until the nodes (all) answer; jobs may be on them."""
        wanted = set(names or self.nodes)
        good = {"idle", "allocated", "mixed", "completing"}

        def answered() -> bool:
            done = self.command("sinfo", "-h", "-N", "-p", "main", "-o", "%N %T", check=False)
            states = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
            return all(states.get(name) in good for name in wanted)

        wait_for(answered, f"the nodes {sorted(wanted)}", timeout_s)

    def settle(self) -> None:
        """Make the cluster as good as new for the next test: no job, all nodes up, GPUs and logs at their start."""
        self.command("scancel", "-u", self.user.pw_name, check=False)
        for node in self.nodes.values():
            node.stub.clear_faults()
            if node.slurmd() is None:
                node.restart_slurmd()
        try:
            wait_for(lambda: not self.squeue(), "the queue to empty", 30, 0.1)
        except TimeoutError:
            for node in self.nodes.values():  # a job whose stepds were killed ends when slurmd has come back
                node.restart_slurmd()
            wait_for(lambda: not self.squeue(), "the queue to empty after slurmd's restart", 60, 0.1)
        for name, state in self.sinfo().items():
            if "drain" in state or "down" in state:
                self.command("scontrol", "update", f"node={name}", "state=resume", as_root=True, check=False)
        self.wait_nodes()
        for node in self.nodes.values():
            end(
                [p for p in node.processes() if not p.command.startswith("slurmd ")]
            )  # orphans of killed steps
            for path in node.run_dir().glob("*") if node.run_dir().exists() else ():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            for path in (node.root / "dev/shm").glob(f"eerl-{self.user.pw_uid}-*"):
                shutil.rmtree(path, ignore_errors=True)  # of a run whose every part was killed
            node.reset_gpus()

    def evidence(self, lines: int = 40) -> str:
        """The ends of all logs, for a failed test."""
        parts = []
        logs = [path for path in (self.base / "log").iterdir() if path.suffix != ".out"]  # .out repeats .log
        for path in sorted(logs):
            tail = path.read_text(errors="replace").splitlines()[-lines:]
            parts += [f"--- {path.name}", *tail] if tail else []
        for path in sorted(self.work.glob("*.out")) + sorted(self.work.glob("*.err")):
            parts += [f"--- {path.name}", *path.read_text(errors="replace").splitlines()[-20:]]
        return "\n".join(parts)


MakeCluster = Callable[..., Cluster]  # the fixture of tests/conftest.py


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now; kept open together so that they differ."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def remember(cluster: Cluster, where: Path) -> None:
    """Let later commands find the cluster."""
    where.parent.mkdir(exist_ok=True)
    holders = {name: node.holder for name, node in cluster.nodes.items()}
    wishes = {"nodes": list(holders), "gpus": cluster.spec.gpus}
    where.write_text(json.dumps({"base": str(cluster.base), "holders": holders, "spec": wishes}))


def recall(where: Path) -> Cluster:
    """The cluster the command line has started."""
    if not where.exists():
        raise SystemExit(
            "eerl: no cluster is running here; start one with: python tests/rig/cluster.py start"
        )
    saved = json.loads(where.read_text())
    if not Path(saved["base"]).exists():
        where.unlink()
        raise SystemExit("eerl: the cluster started here is gone; start another")
    wishes = saved["spec"]
    return Cluster(
        Path(saved["base"]), Spec(nodes=tuple(wishes["nodes"]), gpus=wishes["gpus"]), saved["holders"]
    )


def example(nodes: int, gpus: int, *, plugin: bool) -> str:
    """A command line that tries eerl on this cluster; the job loads the GPUs of its first node."""
    run = f"eerl-run -- python3 {HERE}/job.py --updates 60 --generation 1.3 --training 1.1 --scale"
    wishes = f"-N{nodes} --gpus-per-node={gpus}{' --eerl' if plugin else ''}"
    return f"sbatch {wishes} --wrap '{run}'"


def main() -> None:
    """The command line; see the head of this file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument(
        "--remember", type=Path, default=REMEMBERED, help="where the running cluster is noted"
    )
    commands = parser.add_subparsers(dest="command", required=True)
    start = commands.add_parser("start", help="start a cluster")
    start.add_argument("--nodes", type=int, default=2)
    start.add_argument("--gpus", type=int, default=8, help="stub GPUs per node")
    start.add_argument("--model", default="h100", choices=("h100", "a100", "b200", "gb200"))
    start.add_argument("--plugstack", default="default=on", help="key=value words for the plugin's line")
    start.add_argument("--no-plugin", action="store_true")
    commands.add_parser("stop", help="stop it")
    shell = commands.add_parser("shell", help="a shell, or a command, of the job's user on the first node")
    shell.add_argument("argv", nargs=argparse.REMAINDER)
    wish = parser.parse_args()
    if wish.command == "start":
        if missing():
            raise SystemExit(f"eerl: {missing()}")
        if wish.remember.exists() and Path(json.loads(wish.remember.read_text())["base"]).exists():
            raise SystemExit(
                "eerl: a cluster is running already; stop it first: python tests/rig/cluster.py stop"
            )
        cluster = Cluster.start(
            nodes=wish.nodes,
            gpus=wish.gpus,
            model=wish.model,
            plugin=not wish.no_plugin,
            plugstack=wish.plugstack,
        )
        remember(cluster, wish.remember)
        print(
            f"{wish.nodes} nodes with {wish.gpus} simulated {wish.model} GPUs each are idle;"
            f" logs are in {cluster.base}/log\n"
            f"submit an RL-shaped job as an ordinary user, two and a half minutes long:\n"
            f"  python tests/rig/cluster.py shell\n"
            f"  {example(wish.nodes, wish.gpus, plugin=not wish.no_plugin)}\n"
            f"stop it:\n"
            f"  python tests/rig/cluster.py stop"
        )
    elif wish.command == "stop":
        recall(wish.remember).stop()
        wish.remember.unlink()
    else:
        cluster = recall(wish.remember)
        groups = ",".join(str(g.gr_gid) for g in grp.getgrall() if cluster.user.pw_name in g.gr_mem)
        drop = [f"--reuid={cluster.user.pw_uid}", f"--regid={cluster.user.pw_gid}"]
        drop += [f"--groups={groups}" if groups else "--clear-groups"]
        enter = ["nsenter", f"--mount=/proc/{cluster.node().holder}/ns/mnt", f"--wd={cluster.work}", "--"]
        os.execvpe(
            "nsenter", [*enter, "setpriv", *drop, *(wish.argv or ["bash", "-i"])], cluster.environment()
        )


if __name__ == "__main__":
    main()
