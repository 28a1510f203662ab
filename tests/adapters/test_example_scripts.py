"""The frameworks' batch scripts, with stubs for Slurm, Ray and Python that write down how they were called."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from eerl_launch.policy import load_policy

EXAMPLES = Path(__file__).parents[2] / "slurm_examples"
RAY = ("verl", "openrlhf")
#: Writes down its name, its arguments and what it has of eerl; steps run what they are given.
STUB = f"""#!{sys.executable}
import json, os, sys, time
name = os.path.basename(sys.argv[0])
seen = {{key: os.environ.get(key) for key in ("EERL_SOCKET", "PYTHONPATH", "RAY_ADDRESS", "COMMAND")}}
line = json.dumps({{"name": name, "words": sys.argv[1:], **seen}})
with open(os.environ["CALLS"], "a") as calls:
    calls.write(line + "\\n")
if name == "scontrol":
    print("n1\\nn2\\nn3")
elif name == "eerl-run":
    command = sys.argv[sys.argv.index("--") + 1 :]
    os.environ.update(EERL_SOCKET="/dev/shm/eerl/s", PYTHONPATH="/dev/shm/eerl/adapters")
    os.execvp(command[0], command)
elif name == "srun":
    command = sys.argv[1:]
    while command[0].startswith("--"):
        command.pop(0)
    os.execvp(command[0], command)
elif name == "python3" and sys.argv[1:2] == ["-"]:
    sys.stdin.read()
    for _ in range(600):  # until Ray has started on all three nodes
        if open(os.environ["CALLS"]).read().count('"name": "ray"') >= 3:
            break
        time.sleep(0.1)
"""


def calls(script: str, tmp_path: Path, *words: str, **env: str) -> list[dict[str, Any]]:
    """Run a batch script as sbatch does; what it called, in order of time but for what runs beside."""
    tools = tmp_path / "bin"
    tools.mkdir(exist_ok=True)
    for name in ("eerl-run", "srun", "scontrol", "ray", "python3", "vllm", "accelerate"):
        (tools / name).write_text(STUB)
        (tools / name).chmod(0o755)
    (tmp_path / "slurm_script").write_text(script)
    record = tmp_path / "calls"
    record.write_text("")
    own = ("EERL_", "SLURM_", "PYTHON")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    job = {
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "n[1-3]",
        "SLURM_JOB_NUM_NODES": "3",
        "SLURM_GPUS_ON_NODE": "4",
    }
    done = subprocess.run(
        ["bash", str(tmp_path / "slurm_script"), *words],
        cwd=tmp_path,
        env={
            **clean,
            **job,
            "PATH": f"{tools}:{clean['PATH']}",
            "CALLS": str(record),
            "EERL_EXAMPLES": str(EXAMPLES),
        }
        | env,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in record.read_text().splitlines()]


def example(name: str) -> str:
    return (EXAMPLES / f"{name}.sbatch").read_text()


def steps(seen: list[dict[str, Any]]) -> list[list[str]]:
    """The steps that were started, whatever came first."""
    return sorted(call["words"] for call in seen if call["name"] == "srun")


@pytest.mark.parametrize("name", RAY)
def test_every_step_has_the_hooks(name: str, tmp_path: Path) -> None:
    """eerl-run stands in front of all, so Ray on every node and the trainer start under its environment."""
    seen = calls(example(name), tmp_path, "--some=option")

    assert seen[0]["name"] == "eerl-run"
    assert seen[0]["words"][:3] == ["--adapter", name, "--"]
    started = [call for call in seen if call["name"] in ("ray", "python3")]
    assert {call["EERL_SOCKET"] for call in started} == {"/dev/shm/eerl/s"}
    assert {call["PYTHONPATH"] for call in started} == {"/dev/shm/eerl/adapters"}
    rays = [call["words"] for call in started if call["name"] == "ray"]
    assert sum("--head" in words for words in rays) == 1
    assert sum("--address=n1:6379" in words for words in rays) == 2
    trainer = started[-1]
    assert trainer["words"][0] == "-m"
    assert trainer["words"][-1] == "--some=option"
    assert trainer["RAY_ADDRESS"] == "n1:6379"


@pytest.mark.parametrize("name", RAY)
def test_what_is_marked_is_all_that_eerl_adds(name: str, tmp_path: Path) -> None:
    """Without the marked lines the script starts the very same steps, and nothing of eerl."""
    plain = re.sub(r".*# eerl\n", "", example(name))

    with_eerl, without = calls(example(name), tmp_path), calls(plain, tmp_path)

    assert steps(with_eerl) == steps(without)
    assert "eerl-run" not in {call["name"] for call in without}
    assert {call["EERL_SOCKET"] for call in without} == {None}


def test_a_container_gets_the_hooks_before_its_own_path(tmp_path: Path) -> None:
    """The job's PYTHONPATH is forced on the image, whose own value is appended."""
    seen = calls(
        example("verl"), tmp_path, CONTAINER="an/image", MOUNTS="/data:/data", IMAGE_PYTHONPATH="/of/image"
    )

    assert all("--container-env=PYTHONPATH" in words for words in steps(seen))
    assert all(
        "--container-image=an/image" in words and "--container-mounts=/data:/data" in words
        for words in steps(seen)
    )
    paths = {call["PYTHONPATH"] for call in seen if call["name"] == "ray"}
    assert paths == {"/dev/shm/eerl/adapters:/of/image"}


def test_nemo_rl_is_given_its_own_script(tmp_path: Path) -> None:
    """ray.sub runs under eerl-run with what the user gave for it, word for word."""
    (tmp_path / "ray.sub").write_text("srun python3 driver\n")

    seen = calls(
        example("nemo_rl"),
        tmp_path,
        SLURM_SUBMIT_DIR=str(tmp_path),
        CONTAINER="c",
        MOUNTS="m",
        COMMAND="uv run 'x y'",
    )

    assert [call["name"] for call in seen] == ["eerl-run", "srun", "python3"]
    assert seen[-1]["COMMAND"] == "uv run 'x y'"
    assert seen[-1]["PYTHONPATH"] == "/dev/shm/eerl/adapters"


def test_nemo_rl_without_an_image(tmp_path: Path) -> None:
    """What is missing is named before anything starts."""
    with pytest.raises(AssertionError, match="CONTAINER: the image"):
        calls(example("nemo_rl"), tmp_path)


def test_an_asynchronous_trl_script_gets_the_servers_address(tmp_path: Path) -> None:
    """The server is no part of eerl-run, whose policy says which node it has; without eerl the rest is the same."""
    (tmp_path / "own.yaml").write_text("max_throughput_loss: 1%\n")
    words, script = ("a/model", "train.py", "--max_steps=5"), example("trl_async")

    seen = calls(script, tmp_path, *words, EERL_POLICY="own.yaml")
    plain = calls(re.sub(r".*# eerl\n", "", script), tmp_path, *words)

    (server,) = steps(seen)
    assert "--nodelist=n2" in server and server[server.index("vllm") :][:3] == ["vllm", "serve", "a/model"]
    assert steps(plain) == [server]
    url = ["--vllm_server_base_url", "http://n2:8000"]
    for called in (seen, plain):
        (trainer,) = [call["words"] for call in called if call["name"] == "accelerate"]
        assert trainer == ["launch", "train.py", "--max_steps=5", *url]
    policy = load_policy(tmp_path / "eerl-policy-7.yaml")
    assert (policy.pools.generation, policy.pools.training) == (("n2:*",), ("n1:*",))
    assert policy.max_throughput_loss == 0.01
    assert "eerl-run" not in {call["name"] for call in plain}
