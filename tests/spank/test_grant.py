"""Who gets a broker, for which GPUs, and how the job hears why not."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable

import pytest
from spank.lone_node import SPANK, LoneNode, until

MakeNode = Callable[..., LoneNode]
GONE = 4_100_000_011  # no Slurm on this machine has a step of such a job


@pytest.fixture
def build_name() -> str:
    """The release build: what is tested here is decided before, or beside, the conversation."""
    return "release"


@pytest.mark.parametrize(
    "gpus", ["", "0,", ",1", "0,0", "0 1", "a", "-1", "0;1", "0x1", "1-", "3-1", "99999", "0\n1"]
)
def test_malformed_gpu_list_gives_no_grant(node: LoneNode, gpus: str) -> None:
    """Anything but numbers, commas and ranges in SLURM_JOB_GPUS: no socket, and the reason is there to read."""
    said = node.serve(gpus=gpus)

    assert "no clock control" in said
    assert "SLURM_JOB_GPUS" in node.reason()
    assert "clock" not in node.state()
    assert node.supervisor.wait(30) == 1


def test_a_range_of_gpus_is_read(node: LoneNode) -> None:
    """0-2 means 0, 1 and 2."""
    node.serve(gpus="0-1,3")

    assert node.connect().hello()["idx"] == "0,1,3"


def test_more_gpus_than_nvml_sees(node: LoneNode) -> None:
    """Slurm's number is beyond what NVML lists: no GPU is called the job's, one log line, reason on disk."""
    node.serve(gpus="2,4")
    fields = node.connect().hello()

    assert (fields["gpus"], fields["backend"]) == ("", "none")
    assert "NVML sees only 4" in node.reason()
    until(lambda: "no clock control" in node.syslog(), "it is logged")


def test_gpus_per_node_must_agree(node: LoneNode) -> None:
    """gpus_per_node= guards against a gres list that is not the node's whole set of GPUs."""
    node.serve(gpus="0", settings=["gpus_per_node=8"])

    assert "gpus_per_node=8" in node.connect().hello()["reason"]


def test_minor_numbers_that_differ_from_pci_order_are_refused(make_node: MakeNode) -> None:
    """Minors [2,3,0,1]: whether Slurm's 0 is NVML 0 or /dev/nvidia0 cannot be told, so nothing is touched."""
    node = make_node(minors=[2, 3, 0, 1])
    node.serve(gpus="0")
    agent = node.connect()

    fields = agent.hello()

    assert fields["gpus"] == ""
    assert "gpu_order=pci" in fields["reason"]
    assert "gpu_order=minor" in node.reason()
    assert agent.ask("lock * 1200").startswith("err 1 ")
    assert node.stub.setter_calls() == []


@pytest.mark.parametrize(("order", "index"), [("minor", 2), ("pci", 0)])
def test_gpu_order_settles_which_gpu_is_meant(make_node: MakeNode, order: str, index: int) -> None:
    """With gpu_order the admin says what Slurm's numbers count; every call then concerns that GPU only."""
    node = make_node(minors=[2, 3, 0, 1])
    node.serve(gpus="0", settings=[f"gpu_order={order}"])
    agent = node.connect()

    fields = agent.hello()
    assert agent.ask("lock * 1200") == "ok"
    agent.close()
    until(node.stub.at_default, "reset")

    assert fields["gpus"] == node.stub.uuid(index)
    assert {call.uuid for call in node.stub.setter_calls()} == {node.stub.uuid(index)}


def test_no_gpu_with_that_minor_number(make_node: MakeNode) -> None:
    """gpu_order=minor and no such device file: refused, named."""
    node = make_node(minors=[4, 5, 6, 7])
    node.serve(gpus="0", settings=["gpu_order=minor"])

    assert "minor_number_0" in node.connect().hello()["reason"]


def test_minor_numbers_unknown_need_a_word_from_the_admin(node: LoneNode) -> None:
    """A driver that does not tell minor numbers: auto refuses, gpu_order=pci goes ahead."""
    node.stub.add_fault("nvmlDeviceGetMinorNumber", code=3)
    node.serve(job=12, gpus="0")
    node.serve(job=13, gpus="1", settings=["gpu_order=pci"])

    assert node.connect(12).hello()["gpus"] == ""
    assert node.connect(13).hello()["gpus"] == node.stub.uuid(1)


@pytest.mark.parametrize("mig_gpu", [0, 3])
def test_mig_anywhere_on_the_node_is_refused(node: LoneNode, mig_gpu: int) -> None:
    """One GPU in MIG mode makes Slurm's numbers count slices: measured nothing, set nothing, said why."""
    node.stub.set(mig_gpu, mig=1)
    node.serve(gpus="0,1")
    agent = node.connect()

    fields = agent.hello()
    agent.close()

    assert fields["gpus"] == ""
    assert "MIG" in node.reason()
    assert node.stub.setter_calls() == []


def test_a_gpu_lost_before_the_job_is_left_out(node: LoneNode) -> None:
    """The job's other GPUs are served; the lost one is named with its code."""
    node.stub.add_fault("*", gpu=1, code=15)
    node.serve(gpus="0,1,2")

    fields = node.connect().hello()

    assert fields["idx"] == "0,2"
    assert fields["missing"] == "1:15"


def test_all_gpus_lost_before_the_job(node: LoneNode) -> None:
    """None of the job's GPUs answers: backend=none, and the reason is that."""
    node.stub.add_fault("*", gpu=1, code=15)
    node.serve(gpus="1")
    agent = node.connect()

    fields = agent.hello()

    assert (fields["gpus"], fields["backend"], fields["missing"]) == ("", "none", "1:15")
    assert "none_of_the_job's_GPUs_answers" in fields["reason"]
    assert agent.ask("sample").startswith("ok t_ns=")


@pytest.mark.parametrize(
    ("settings", "words", "allowed"),
    [
        (["users=alice"], ["user=alice"], True),
        (["users=4001"], [], True),
        (["users=bob,carol"], ["user=alice"], False),
        (["users=alic"], ["user=alice"], False),
        (["groups=rl"], ["user=alice"], True),
        (["groups=rl"], ["user=bob"], False),
        (["groups=5000"], ["user=alice"], True),
        (["users=bob", "groups=rl"], ["user=alice"], True),
        (["partitions=gpu,rl"], ["partition=rl"], True),
        (["partitions=gpu"], ["partition=cpu"], False),
        (["accounts=llm"], ["account=llm"], True),
        (["accounts=llm"], [], False),
        (["users=alice", "partitions=gpu"], ["user=alice", "partition=cpu"], False),
    ],
)
def test_for_whom_it_is_switched_on(
    node: LoneNode, settings: list[str], words: list[str], allowed: bool
) -> None:
    """users= or groups= say who, partitions= and accounts= say where; a job left out is told."""
    uid = 4002 if "user=bob" in words else 4001

    said = node.serve(gpus="0", settings=settings, words=words, uid=uid)

    assert ("granted" in said) == allowed
    assert ("clock" in node.state()) == allowed
    assert allowed or node.reason().strip()


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda node: node.nvml.chmod(0o666), "can be written by others"),
        (lambda node: os.chown(node.nvml, 4001, 0), "belongs to uid 4001"),
        (lambda node: node.folder.chmod(0o777), "can be written by others"),
        (lambda node: node.nvml.unlink(), "No such file"),
        (lambda node: (node.nvml.unlink(), node.nvml.symlink_to("/usr/lib/libm.so")), "symbolic link out of"),
        (lambda node: (node.nvml.unlink(), node.nvml.mkdir()), "not a regular file"),
    ],
)
def test_nvml_must_be_roots_alone(node: LoneNode, spoil: Callable[[LoneNode], object], words: str) -> None:
    """nvml= is loaded by root: a file or folder that others can change is refused, and the job hears it."""
    spoil(node)

    said = node.serve(gpus="0")

    assert words in said
    assert words in node.reason()


def test_nvml_may_be_a_link_beside_its_target(node: LoneNode) -> None:
    """libnvidia-ml.so.1 -> libnvidia-ml.so.580… in one folder is how drivers are installed."""
    node.nvml.rename(node.folder / "libnvidia-ml.so.580")
    node.nvml.symlink_to("libnvidia-ml.so.580")

    assert "granted" in node.serve(gpus="0")
    assert node.connect().hello()["backend"] == "locked-clocks"


@pytest.mark.parametrize("name", ["n1.example.internal", "n" * 80, "a-b_c.9"])
def test_node_names_with_dots_and_length(make_node: MakeNode, name: str) -> None:
    """Dots and up to 80 characters work; the socket path still fits."""
    node = make_node(name=name)

    said = node.serve(job=4294967294, gpus="0")

    assert "granted" in said
    assert node.connect(4294967294).hello()["backend"] == "locked-clocks"


@pytest.mark.parametrize("name", ["n" * 81, "", "..", ".hidden", "a/b", "a b", "ä"])
def test_node_names_that_cannot_be_folders(node: LoneNode, name: str) -> None:
    """Anything else is a usage error before any file is made."""
    node.name = name

    node.serve(gpus="0")

    assert node.supervisor.wait(30) == 2
    assert not (node.root / "run/eerl").exists()


def test_bad_setting_gives_no_grant(node: LoneNode) -> None:
    """An unknown key stops the grant with the key and the allowed ones named."""
    said = node.serve(gpus="0", settings=["min_mzh=900"])

    assert "min_mzh=900 is not a known key" in said
    assert "min_mhz" in said
    assert node.state() == set()


def test_shared_gpus_end_each_others_grants(node: LoneNode) -> None:
    """shared_gpus=yes: a second job on the same GPU, asking for eerl or not, revokes the first and gets none."""
    node.serve(job=11, gpus="0,1", settings=["shared_gpus=yes"])
    first = node.agent(11)
    first.ask("lock * 1200")

    node.serve(job=12, gpus="1", settings=["shared_gpus=yes"], form="--claim")
    third = node.serve(job=13, gpus="1,2", settings=["shared_gpus=yes"])

    until(node.stub.at_default, "the first job's clocks are handed back")
    assert first.line() is None
    assert "job 12" in node.reason(11)
    assert "clock" not in node.state(11) | node.state(12) | node.state(13)
    assert "no clock control" in third
    assert "and a clock is the whole GPU's" in node.reason(13)


def test_separate_gpus_do_not_contest(node: LoneNode) -> None:
    """Two jobs on different GPUs both have their grant, shared_gpus=yes or not."""
    said = [
        node.serve(job=11, gpus="0,1", settings=["shared_gpus=yes"]),
        node.serve(job=12, gpus="2", settings=["shared_gpus=yes"]),
        node.serve(job=13, gpus="3"),
    ]

    assert all("granted" in text for text in said)


def test_a_lost_epilog_does_not_block_the_gpu_for_ever(node: LoneNode) -> None:
    """A broker whose job has long gone is ended and reset when the next job gets the same GPU."""
    node.serve(job=GONE, gpus="0")
    node.agent(GONE).ask("lock * 1200")
    old = node.supervisor
    os.utime(node.job_folder(GONE), (1_000_000_000, 1_000_000_000))

    said = node.serve(job=12, gpus="0")

    assert "granted" in said
    assert old.wait(30) == 0
    assert node.stub.at_default()


def test_usage_errors() -> None:
    """Words that make no sense end with code 2 and the usage, touching nothing."""
    for words in (
        [],
        ["--frobnicate"],
        ["--reset"],
        ["--reset", "x"],
        ["--reset", "0"],
        ["--serve", "job=1"],
    ):
        done = subprocess.run([SPANK / "eerl-clockd", *words], capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert "usage: eerl-clockd" in done.stderr
