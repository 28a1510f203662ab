"""eerl_spank.so, driven hook by hook by a host that loads it as Slurm does."""

from __future__ import annotations

import concurrent.futures
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from spank.lone_node import SPANK, LoneNode, until

JOB = 4_100_000_012
HOST_SOURCE = Path(__file__).with_name("spank_host.c")
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]

Build = Callable[[str], Path]


@pytest.fixture(scope="session")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The host, plain and with sanitizers, so that a plugin with sanitizers finds their runtime."""
    folder = tmp_path_factory.mktemp("host")
    programs = {"release": folder / "plain", "sanitized": folder / "sanitized"}
    for name, program in programs.items():
        subprocess.run(
            [
                *("gcc", "-std=c11", "-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra", "-Werror", "-rdynamic"),
                *("-o", program, HOST_SOURCE, "-ldl", *(SANITIZERS if name == "sanitized" else [])),
            ],
            check=True,
        )
    return programs


class Plugin:
    """One node's plugin: each call is a process of its own, as in Slurm."""

    def __init__(self, node: LoneNode, host: Path, library: Path) -> None:
        self.node = node
        self.host = host
        self.library = library
        self.node_name = node.name

    def call(
        self,
        context: str,
        hook: str,
        *,
        option: str = "-",
        settings: list[str] | None = None,
        uid: int | None = None,
        **environment: str,
    ) -> str:
        """Call a hook with these plugstack arguments; its log. A hook that crashes fails the test."""
        arguments = [f"nvml={self.node.nvml}", f"clockd={self.node.clockd}"] if settings is None else settings
        done = subprocess.run(
            [
                *self.node.inside(self.host, self.library, context, hook),
                *(str(JOB), "4001", option, *arguments),
            ],
            env={"SLURMD_NODENAME": self.node_name, **environment},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            user=uid,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.endswith("rc=0\n"), done.stdout
        return done.stdout.removesuffix("rc=0\n")

    def prolog(self, option: str = "", gpus: str | None = "0,1", **more: object) -> str:
        """The job begins here, as a prolog of slurmd sees it."""
        environment = {"SLURM_JOB_GPUS": gpus} if gpus is not None else {}
        environment |= {"SLURM_JOB_USER": "alice", "SLURM_JOB_GID": "4001", "SLURM_JOB_PARTITION": "gpu"}
        return self.call("job_script", "job_prolog", option=option, **environment, **more)  # type: ignore[arg-type]

    def epilog(self, **more: object) -> str:
        """The job ends here."""
        return self.call("job_script", "job_epilog", **more)  # type: ignore[arg-type]

    def with_settings(self, *words: str) -> list[str]:
        """plugstack arguments that still find this node's files."""
        return [f"nvml={self.node.nvml}", f"clockd={self.node.clockd}", *words]


@pytest.fixture
def plugin(node: LoneNode, build: Build, build_name: str, hosts: dict[str, Path]) -> Plugin:
    """The plugin on a node of four H100."""
    return Plugin(node, hosts[build_name], build(build_name) / "eerl_spank.so")


def test_only_slurms_names_are_exported(build: Build) -> None:
    """nm shows plugin_* and slurm_spank_* alone, and nothing of NVML or CUDA is linked."""
    library = build("release") / "eerl_spank.so"
    nm = ["nm", "-D"]
    names = {
        line.split()[-1]
        for line in subprocess.run(
            [*nm, "--defined-only", library], capture_output=True, text=True, check=True
        ).stdout.splitlines()
    }
    needed = subprocess.run(
        [*nm, "-u", library, build("release") / "eerl-clockd"], capture_output=True, text=True, check=True
    )

    assert names == {
        *("plugin_name", "plugin_type", "plugin_version", "spank_plugin_version"),
        *(
            "slurm_spank_init",
            "slurm_spank_init_post_opt",
            "slurm_spank_job_prolog",
            "slurm_spank_job_epilog",
        ),
    }
    assert "nvml" not in needed.stdout


def test_make_check_is_clean(build: Build) -> None:
    """cppcheck, shellcheck and the symbol tests of the Makefile find nothing."""
    build("release")

    done = subprocess.run(["make", "-s", "-C", SPANK, "check"], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr


def test_install_puts_everything_under_destdir(build: Build, tmp_path: Path) -> None:
    """make install DESTDIR=: plugin, broker, Epilog snippet, boot unit and documents, nothing outside."""
    build("release")

    subprocess.run(
        ["make", "-s", "-C", SPANK, "install", f"DESTDIR={tmp_path}", "PREFIX=/opt/eerl"],
        check=True,
        capture_output=True,
    )

    files = {os.fspath(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert files == {
        "opt/eerl/lib/slurm/eerl_spank.so",
        "opt/eerl/libexec/eerl/eerl-clockd",
        "opt/eerl/libexec/eerl/epilog-eerl.sh",
        "opt/eerl/lib/systemd/system/eerl-reset.service",
        "opt/eerl/share/doc/eerl/README.md",
        "opt/eerl/share/doc/eerl/plugstack.conf.example",
    }
    unit = (tmp_path / "opt/eerl/lib/systemd/system/eerl-reset.service").read_text()
    assert "ExecStart=/opt/eerl/libexec/eerl/eerl-clockd --reset-stale\n" in unit


def test_job_from_prolog_to_epilog(plugin: Plugin, node: LoneNode) -> None:
    """The prolog starts a broker that outlives it; the epilog ends it, resets and forgets."""
    began = plugin.prolog()
    agent = node.agent(JOB)
    assert agent.ask("lock * 1200") == "ok"

    ended = plugin.epilog()

    assert "info: eerl: job 4100000012: clock control granted to uid 4001" in began
    assert "reset of" in ended or node.stub.at_default()
    assert node.stub.at_default()
    assert not node.job_folder(JOB).exists()
    until(lambda: node.brokers() == [], "no process is left")


def test_the_broker_is_on_its_own(plugin: Plugin, node: LoneNode) -> None:
    """Own session, no environment, no descriptor of slurmd's, standard streams at /dev/null."""
    plugin.prolog(LD_PRELOAD="", SECRET="1")

    until(lambda: len(node.brokers()) == 2, "supervisor and worker")
    brokers = node.brokers()
    for pid in brokers:
        assert os.getsid(pid) in brokers
        assert Path(f"/proc/{pid}/environ").read_bytes() == b""
        assert Path(f"/proc/{pid}/cwd").readlink() == Path("/")
        assert {Path(f"/proc/{pid}/fd/{fd}").readlink() for fd in (0, 1, 2)} == {Path("/dev/null")}
        kinds = [entry.readlink().name.split(":")[0] for entry in Path(f"/proc/{pid}/fd").iterdir()]
        assert "pipe" not in kinds
    plugin.epilog()


@pytest.mark.parametrize(
    ("default", "option", "granted"),
    [
        ("off", "-", False),
        ("off", "", True),
        ("off", "(null)", True),
        ("off", "on", True),
        ("off", "off", False),
        ("on", "-", True),
        ("on", "off", False),
    ],
)
def test_who_asks_gets_it(plugin: Plugin, node: LoneNode, default: str, option: str, granted: bool) -> None:
    """--eerl where it is off by default, --eerl=off where it is on; --eerl alone is what Slurm calls (null)."""
    plugin.prolog(option=option, settings=plugin.with_settings(f"default={default}"))

    assert ("clock" in node.state(JOB)) == granted
    plugin.epilog()
    assert not node.job_folder(JOB).exists()


@pytest.mark.parametrize("gpus", [None, ""])
def test_job_without_gpus(plugin: Plugin, node: LoneNode, gpus: str | None) -> None:
    """No GPU given: nothing is started, written or said."""
    assert plugin.prolog(gpus=gpus) == ""
    assert plugin.epilog() == ""

    assert not (node.root / "run/eerl").exists()


def test_wrong_settings_make_it_inert(plugin: Plugin, node: LoneNode) -> None:
    """An unknown key: one error line that names it, no broker, and the job begins as ever."""
    said = plugin.prolog(settings=plugin.with_settings("min_mzh=900"))

    assert said.count("error: ") == 1
    assert "min_mzh=900" in said
    assert node.brokers() == []


def test_settings_spoilt_during_a_job_do_not_keep_its_clocks(plugin: Plugin, node: LoneNode) -> None:
    """A typo in plugstack.conf between prolog and epilog: the epilog still ends the broker and resets."""
    plugin.prolog()
    node.agent(JOB).ask("lock * 1200")

    plugin.epilog(settings=plugin.with_settings("nonsense"))

    assert node.stub.at_default()
    assert not node.job_folder(JOB).exists()


def test_missing_broker_program(plugin: Plugin, node: LoneNode) -> None:
    """No eerl-clockd: one error line, the job begins, and the epilog has nothing to do."""
    node.clockd.unlink()

    said = plugin.prolog()

    assert said.count("error: ") == 1
    assert "No such file" in said
    assert plugin.epilog() == ""


def test_broker_program_of_someone_else_is_not_run(plugin: Plugin, node: LoneNode) -> None:
    """A clockd= that others can write is not run as root."""
    node.clockd.chmod(0o777)

    said = plugin.prolog()

    assert "can be written by others" in said
    assert node.brokers() == []


def test_a_broker_that_does_not_start_is_killed(plugin: Plugin, node: LoneNode) -> None:
    """The prolog waits a bounded time, kills what has not reported, and lets the job begin."""
    node.clockd.unlink()
    node.clockd.symlink_to("slow")
    slow = node.folder / "slow"
    slow.write_text("#!/bin/sh\nexec sleep 300\n")
    slow.chmod(0o755)
    begun = time.monotonic()

    with concurrent.futures.ThreadPoolExecutor(1) as aside:
        prolog = aside.submit(plugin.prolog)
        until(lambda: _sleepers(node), "the slow program runs")
        said = prolog.result()

    assert "has not finished in 3 s and was killed" in said
    assert time.monotonic() - begun < 30
    until(lambda: not _sleepers(node), "it is dead")


def _sleepers(node: LoneNode) -> list[str]:
    mine = Path(f"/proc/{node.holder}/ns/mnt").stat().st_ino
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "ns/mnt").stat().st_ino == mine:
                title = (entry / "cmdline").read_bytes()
                if title.startswith(b"sleep\x00300"):
                    found.append(entry.name)
        except OSError:
            continue
    return found


def test_prolog_heals_what_an_earlier_job_left(plugin: Plugin, node: LoneNode) -> None:
    """A dirty mark without a broker is reset by the next prolog on the node, of any job, with a log line."""
    node.serve(job=11, gpus="3")
    node.agent(11).ask("lock * 1200")
    (worker,) = node.workers()
    os.kill(worker, 19)  # SIGSTOP: it must not hear of its supervisor's end
    node.supervisor.kill()
    node.supervisor.wait()
    os.kill(worker, 9)
    until(lambda: worker not in node.brokers(), "the worker is dead")
    assert node.stub.locked_mhz(3) == (345, 1200)

    said = plugin.prolog(option="-", gpus=None)

    assert node.stub.at_default()
    assert f"job 11: reset of {node.stub.uuid(3)}: done" in said


def test_slurmd_start_heals_without_waiting(plugin: Plugin, node: LoneNode) -> None:
    """In slurmd's own context the sweep runs by itself; slurmd goes on at once."""
    node.serve(job=11, gpus="3")
    node.agent(11).ask("lock * 1200")
    (worker,) = node.workers()
    os.kill(worker, 19)
    node.supervisor.kill()
    node.supervisor.wait()
    os.kill(worker, 9)
    until(lambda: worker not in node.brokers(), "the worker is dead")

    said = plugin.call("slurmd", "init")

    assert said == ""
    until(node.stub.at_default, "reset")


@pytest.mark.parametrize("context", ["local", "allocator", "remote"])
def test_option_is_registered_where_jobs_are_made(plugin: Plugin, context: str) -> None:
    """srun, sbatch and slurmstepd know --eerl, even where plugstack.conf is wrong for this node."""
    assert plugin.call(context, "init", settings=["nonsense"]) == "registered: --eerl\n"


@pytest.mark.parametrize("value", ["", "(null)", "on", "off"])
def test_option_values(plugin: Plugin, value: str) -> None:
    """--eerl, --eerl=on and --eerl=off are taken."""
    assert "error" not in plugin.call("allocator", "option", option=value)


def test_wrong_option_value_is_refused_at_submission_only(plugin: Plugin) -> None:
    """sbatch says what is allowed; on a node the same value never fails a step."""
    command = [plugin.host, plugin.library, "allocator", "option", "1", "1", "fast"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)

    assert "rc=-1" in done.stdout
    assert "--eerl=on or --eerl=off" in done.stdout
    assert plugin.call("remote", "option", option="fast") == "registered: --eerl\n"


def test_a_shard_step_is_noted(plugin: Plugin, node: LoneNode) -> None:
    """A step that has shards marks the job, where there is a grant, and the broker stops setting clocks."""
    plugin.call("remote", "init_post_opt", SLURM_SHARDS_ON_NODE="1")
    assert not (node.root / "run/eerl").exists()
    plugin.prolog()
    agent = node.agent(JOB)

    plugin.call("remote", "init_post_opt")
    assert agent.ask("lock * 1200") == "ok"
    plugin.call("remote", "init_post_opt", SLURM_SHARDS_ON_NODE="1")

    assert agent.ask("lock * 900").startswith("err 3 ")
    plugin.epilog()
    assert node.stub.at_default()


@pytest.mark.parametrize("build_name", ["release"])
def test_slurmd_that_is_not_root(plugin: Plugin) -> None:
    """A slurmd without root can grant nothing: said once, job unharmed."""
    folder = Path("/dev/shm") / f"eerl-host-{os.getpid()}"
    folder.mkdir(mode=0o755)
    try:
        for file in (plugin.host, plugin.library):
            (folder / file.name).write_bytes(file.read_bytes())
            (folder / file.name).chmod(0o755)
        done = subprocess.run(
            [
                folder / plugin.host.name,
                folder / plugin.library.name,
                "job_script",
                "job_prolog",
                "1",
                "4001",
                "",
            ],
            env={"SLURMD_NODENAME": "n1", "SLURM_JOB_GPUS": "0"},
            capture_output=True,
            text=True,
            check=True,
            user=4001,
        )
    finally:
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()

    assert "slurmd does not run as root" in done.stdout
    assert done.stdout.endswith("rc=0\n")


@pytest.mark.parametrize("name", ["", "..", "a/b", "n" * 81, "-" * 200])
def test_odd_node_names(plugin: Plugin, node: LoneNode, name: str) -> None:
    """A node name that cannot be a folder: one line, nothing written."""
    plugin.node_name = name

    said = plugin.prolog()

    assert said.count("error: ") == 1
    assert plugin.epilog() == ""
    assert not (node.root / "run/eerl").exists()


TEXT = st.text(st.characters(min_codepoint=1, max_codepoint=0x2FF), max_size=300)


@given(
    gpus=TEXT,
    user=TEXT,
    option=TEXT,
    words=st.lists(TEXT, max_size=4),
    hook=st.sampled_from(["job_prolog", "job_epilog"]),
)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_environment_crashes_a_hook(
    plugin: Plugin, gpus: str, user: str, option: str, words: list[str], hook: str
) -> None:
    """Whatever Slurm, users and plugstack.conf say: the hook returns 0, under sanitizers, too."""
    plugin.call(
        "job_script",
        hook,
        option=option,
        settings=plugin.with_settings(*words),
        SLURM_JOB_GPUS=gpus,
        SLURM_JOB_USER=user,
        SLURM_JOB_GID=user,
        SLURM_RESTART_COUNT=user,
    )
    plugin.epilog()
