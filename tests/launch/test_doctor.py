"""``eerl doctor``: each hazard of a cluster is found and comes with its cure."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from eerl_launch import doctor_node
from eerl_launch.devices import broker
from eerl_launch.doctor import Check, examine_all, to_json, to_text, worst
from eerl_launch.doctor_node import Place, examine, to_line
from eerl_launch.tools import eerl

JOB = {
    "SLURM_JOB_ID": "42",
    "SLURM_JOB_NODELIST": "node[01-02]",
    "SLURMD_NODENAME": "node01",
    "SLURM_JOB_USER": "ann",
    "SLURM_CPU_BIND": "mask_cpu:0xff",
}
CONFIG = "Configuration data\nPrologFlags             = Alloc,Contain\nGpuFreqDef              = (null)\n"
HELP = "Options provided by plugins:\n      --eerl[=policy]     [eerl] lower clocks\n"


class FakeSlurm:
    """Answers the three commands that doctor runs; an unknown one fails the test."""

    def __init__(self, config: str = CONFIG, usage: str = HELP, nodes: Sequence[Check] = ()) -> None:
        self.config, self.usage, self.nodes = config, usage, nodes
        self.srun_complaint = ""
        self.agent_argv: list[str] = []

    def __call__(self, argv: Sequence[str], env: Mapping[str, str]) -> tuple[int, str, str] | None:
        assert "SLURM_CPU_BIND" not in env
        if list(argv) == ["scontrol", "show", "config"]:
            return 0, self.config, ""
        if list(argv) == ["srun", "--help"]:
            return 0, self.usage, ""
        assert argv[0] == "srun" and argv[-1] == "eerl_launch.doctor_node", argv
        self.agent_argv = list(argv)
        lines = [
            json.dumps({"name": c.name, "state": c.state, "seen": c.seen, "cure": c.cure, "node": c.node})
            for c in self.nodes
        ]
        return 0, "\n".join([*lines, "noise of a login banner"]), self.srun_complaint


def find(found: Sequence[Check], name: str) -> Check:
    """The one finding of that name."""
    (check,) = [check for check in found if check.name == name]
    return check


BOTH = [Check("broker", "ok", "8 GPUs", node="node01"), Check("broker", "ok", "8 GPUs", node="node02")]


def test_all_well() -> None:
    """A job on a well set up cluster has nothing but ok, and equal nodes share a line."""
    found = examine_all(JOB, FakeSlurm(nodes=BOTH))

    assert worst(found) == "ok"
    text = to_text(found)
    assert "[node01, node02] 8 GPUs" in text
    assert text.count("8 GPUs") == 1
    assert "→" not in text


@pytest.mark.parametrize(
    ("slurm", "name", "state", "cure"),
    [
        (FakeSlurm(CONFIG.replace("Alloc,Contain", "Alloc,RunInJob")), "PrologFlags", "fail", "removes RunInJob"),
        (FakeSlurm(CONFIG.replace("Alloc,Contain", "(null)")), "PrologFlags", "warn", "PrologFlags=Alloc"),
        (FakeSlurm(CONFIG.replace("GpuFreqDef              = (null)", "GpuFreqDef = medium")),
         "GpuFreqDef", "warn", "unsets GpuFreqDef"),
        (FakeSlurm(usage="no plugins\n"), "--eerl", "fail", "plugstack.conf"),
    ],
)  # fmt: skip
def test_hazards_of_the_cluster(slurm: FakeSlurm, name: str, state: str, cure: str) -> None:
    """Settings that stop the plugin or set clocks themselves are found, with the cure."""
    slurm.nodes = BOTH

    check = find(examine_all(JOB, slurm), name)

    assert check.state == state
    assert cure in check.cure


def test_slurm_own_default_is_no_hazard() -> None:
    """The frequency built into Slurm is fine; one that the job itself asks for is not."""
    slurm = FakeSlurm(CONFIG.replace("(null)", "high,memory=high"), nodes=BOTH)

    found = examine_all({**JOB, "SLURM_GPU_FREQ": "low"}, slurm)

    assert find(found, "GpuFreqDef").state == "ok"
    assert find(found, "SLURM_GPU_FREQ").state == "warn"


def test_node_that_says_nothing() -> None:
    """A node from which nothing comes is named, with srun's own complaint."""
    slurm = FakeSlurm(nodes=BOTH[:1])
    slurm.srun_complaint = "srun: error: node02: task 1: execve(): No such file or directory"

    check = find(examine_all(JOB, slurm), "agent")

    assert (check.node, check.state) == ("node02", "fail")
    assert "execve" in check.seen
    assert "--nodes=2" in slurm.agent_argv


def test_heterogeneous_job_is_told() -> None:
    """The nodes of other components are counted out loud."""
    env = {**JOB, "SLURM_HET_SIZE": "2", "SLURM_JOB_NODELIST_HET_GROUP_0": "node[01-02]",
           "SLURM_JOB_NODELIST_HET_GROUP_1": "cpu[1-3]"}  # fmt: skip

    found = examine_all(env, FakeSlurm(nodes=BOTH))

    assert any("3 nodes of other components" in check.seen for check in found)


def test_outside_a_job() -> None:
    """Without Slurm doctor looks at this machine and says so."""
    found = examine_all({}, lambda argv, env: None)

    assert find(found, "Slurm job").state == "warn"
    assert find(found, "python").state == "ok"
    assert worst(found) in ("ok", "warn")


@pytest.fixture
def run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place of our own for /run/eerl."""
    monkeypatch.setattr(broker, "RUN_FOLDER", tmp_path / "run")
    (tmp_path / "run" / "node01").mkdir(parents=True)
    return tmp_path / "run" / "node01"


def node_checks(**env: str) -> list[Check]:
    """All findings of node01 in job 42."""
    return list(examine(Place("node01", "42", env)))


def test_prolog_that_did_not_run(run_folder: Path) -> None:
    """A node without the plugin's traces tells what may be the reason."""
    check = find(node_checks(), "plugin")

    assert check.state == "fail"
    assert "restarts slurmd" in check.cure and "RunInJob" in check.cure
    assert check.node == "node01"


def test_refused_grant(run_folder: Path) -> None:
    """The plugin's own words about a refusal are shown."""
    (run_folder / "42").mkdir()
    (run_folder / "42" / "reason").write_text("GPU 3 is in MIG mode\n")

    check = find(node_checks(), "plugin")

    assert (check.state, check.seen) == ("fail", "no grant: GPU 3 is in MIG mode")


@pytest.fixture
def broker_answers(run_folder: Path) -> Iterator[list[str]]:
    """A broker at its socket; the list's last text is what it answers to hello."""
    (run_folder / "42").mkdir()
    answers: list[str] = []
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.bind(str(run_folder / "42" / "clock"))
    server.listen(8)

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection, connection.makefile("rwb") as stream:
                for _line in stream:
                    stream.write(answers[-1].encode() + b"\n")
                    stream.flush()

    threading.Thread(target=serve, daemon=True).start()
    yield answers
    server.shutdown(socket.SHUT_RDWR)
    server.close()


def test_broker_that_sets_clocks(broker_answers: list[str]) -> None:
    """A working broker is shown with its GPUs, clocks and driver, and their map."""
    broker_answers.append(
        "ok gpus=GPU-aaaaaaaa-1,GPU-bbbbbbbb-2 backend=locked-clocks min_mhz=345 max_mhz=1980 lease_s=10 "
        "clocks=345,360,1980 names=NVIDIA_H100,NVIDIA_H100 idx=4,5 driver=580.1 scope=gpu"
    )

    found = node_checks()

    assert find(found, "plugin").state == "ok"
    assert find(found, "broker").state == "ok"
    assert "2 GPUs, locked-clocks, 345 to 1980 MHz, driver 580.1" in find(found, "broker").seen
    assert "4=GPU-aaaaaaaa" in find(found, "GPU map").seen


def test_broker_that_only_measures(broker_answers: list[str]) -> None:
    """A broker without clock control is a warning with its reason; two GPU models are one as well."""
    broker_answers.append(
        "ok gpus=GPU-aaaaaaaa-1,GPU-bbbbbbbb-2 backend=none reason=no_permission lease_s=10 clocks=345 "
        "names=NVIDIA_H100,NVIDIA_L4 idx=0,1 driver=580.1 scope=gpu"
    )

    found = node_checks()

    assert find(found, "broker").state == "warn"
    assert "no permission" in find(found, "broker").seen
    assert find(found, "GPU models").state == "warn"


def test_dead_broker(run_folder: Path) -> None:
    """A socket that nobody serves is a failure that points to the site's log."""
    (run_folder / "42").mkdir()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(str(run_folder / "42" / "clock"))

    check = find(node_checks(), "broker")

    assert check.state == "fail"
    assert "syslog" in check.cure


def test_shared_gpus_and_marker_socket(run_folder: Path, tmp_path: Path) -> None:
    """Shards are refused with the reason, and a marker socket that is not there is found."""
    found = node_checks(SLURM_SHARDS_ON_NODE="2", EERL_SOCKET=str(tmp_path / "absent"))

    assert find(found, "shards").state == "fail"
    assert find(found, "markers").state == "fail"
    assert find(found, "marker socket").state == "ok"


def test_check_that_breaks_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug in one check does not hide the others."""

    def check_bug(place: Place) -> Iterator[Check]:
        raise ZeroDivisionError("x")

    monkeypatch.setattr(doctor_node, "CHECKS", (check_bug, doctor_node.check_python))

    found = node_checks()

    assert [check.name for check in found] == ["bug", "python"]
    assert "ZeroDivisionError" in found[0].seen


def test_lines_are_short_enough_for_srun(run_folder: Path) -> None:
    """Every line that a node prints stays below what srun passes on whole."""
    (run_folder / "42").mkdir()
    (run_folder / "42" / "reason").write_text("π" * 5000)

    for check in node_checks():
        assert len(to_line(check)) <= 900
        assert json.loads(to_line(check))["name"] == check.name


def test_command_for_scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    """``--json`` has the same findings, and the exit code follows the worst of them."""
    for name in list(os.environ):
        if name.startswith("SLURM"):
            monkeypatch.delenv(name)

    result = CliRunner().invoke(eerl, ["doctor", "--json"])

    document = json.loads(result.stdout)
    assert document["state"] in ("ok", "warn", "fail")
    assert result.exit_code == (1 if document["state"] == "fail" else 0)
    assert {"node", "name", "state", "seen", "cure"} == set(document["checks"][0])
    assert to_json([Check("a", "ok", "b")])["checks"][0]["cure"] is None
