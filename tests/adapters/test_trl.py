"""Plain TRL on CPU with the adapter: its markers say exactly what was generated and what the loss consumed."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from adapters.environments import OLDER_TRL, TRL, trl_python
from launch.marker_listener import Listener

from eerl_launch import adapter_folder

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "slurm_examples" / "trl_grpo.py"
WITNESS = Path(__file__).with_name("trl_witness.py")
#: Of an interpreter, what starts two processes of a script.
Launcher = Callable[[Path], list[str]]

pytestmark = [pytest.mark.trl, pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.fixture(
    scope="module",
    params=[TRL, *(pytest.param(version, marks=pytest.mark.frameworks) for version in OLDER_TRL)],
)
def python(request: pytest.FixtureRequest) -> Path:
    """An interpreter with torch and a TRL: the newest, and with ``make test-frameworks`` older ones."""
    return trl_python(request.param)


def torchrun(python: Path) -> list[str]:
    """PyTorch's launcher, as a module: an older TRL's environment has not the command itself."""
    return [str(python), "-m", "torch.distributed.run", "--nproc-per-node=2"]


def accelerate(python: Path) -> list[str]:
    """The launcher of README's first example, told what it would guess; the script itself says that it has no GPU."""
    told = ["--num_machines=1", "--mixed_precision=no", "--dynamo_backend=no", "--main_process_port=0"]
    return [str(python.parent / "accelerate"), "launch", "--multi_gpu", "--num_processes=2", *told]


def train(
    python: Path, folder: Path, *options: str, launcher: Launcher | None = None, **env: str
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The markers of a training, and what each rank really did; eerl is on the path as eerl-run puts it there."""
    hooks = adapter_folder.environment({}, adapter_folder.lay(folder, "adapters"), "auto")
    listener = Listener(folder / "s")
    start, processes = ([str(python)], 1) if launcher is None else (launcher(python), 2)
    try:
        done = subprocess.run(
            [*start, str(WITNESS), str(EXAMPLE), str(folder / "seen"), *options],
            env={
                **os.environ,
                "EERL_SOCKET": str(folder / "s"),
                **hooks,
                "OMP_NUM_THREADS": "1",
                "HF_HOME": str(folder / "hf"),
                **env,
            },
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        listener.drain()
    finally:
        listener.close()
    seen = [json.loads((folder / f"seen.{rank}").read_text()) for rank in range(processes)]
    return [json.loads(line) for line in listener.lines], seen


def of(markers: list[dict[str, Any]], event: str, phase: str | None = None) -> list[dict[str, Any]]:
    """The markers of one kind."""
    return [m for m in markers if m["ev"] == event and (phase is None or m.get("phase") == phase)]


def test_counts_are_exact(python: Path, tmp_path: Path) -> None:
    """G, L and N of every update equal what was generated and what went into the loss, truncation masked out."""
    markers, (seen,) = train(python, tmp_path, "--updates", "5", "--max-tokens", "48", "--mask-truncated")

    updates = of(markers, "update")
    assert [u["update"] for u in updates] == list(range(5))
    assert [u["generated_tokens"] for u in updates] == [sum(lengths) for lengths in seen["generated"]]
    assert [u["longest_response_tokens"] for u in updates] == [max(lengths) for lengths in seen["generated"]]
    assert [u["responses"] for u in updates] == [8] * 5
    assert [u["valid_tokens"] for u in updates] == seen["consumed"]
    assert sum(seen["consumed"]) < sum(map(sum, seen["generated"]))
    told = of(markers, "metric")
    assert [m["update"] for m in told] == list(range(5))
    assert [(m["value"], m["max"], m["responses"]) for m in told] == [
        (sum(lengths) / 8, max(lengths), 8) for lengths in seen["generated"]
    ]
    logged = [entry for entry in seen["log"] if "completions/mean_length" in entry]
    assert [u["generated_tokens"] for u in updates] == [
        round(8 * e["completions/mean_length"]) for e in logged
    ]
    assert [u["reward"] for u in updates] == pytest.approx([e["reward"] for e in logged])


def test_phases_in_order(python: Path, tmp_path: Path) -> None:
    """Each update has its phases once, in order and closed; a validation does not look like an update."""
    markers, _ = train(python, tmp_path, "--updates", "3", "--beta", "0.1", WITNESS_EVALUATE="1")

    assert of(markers, "run")[0]["total_updates"] == 3
    assert of(markers, "run")[0]["mode"] == "colocated_sync"
    assert (of(markers, "run")[0]["algorithm"], of(markers, "run")[0]["reward"]) == ("GRPO", "function")
    steps = [(m["ev"], m.get("phase")) for m in markers if m["ev"] not in ("run", "metric")]
    one_update = [
        (event, phase)
        for phase in ("generation", "logprob", "reward", "training")
        for event in ("begin", "end")
    ] + [("update", None)]
    assert steps == one_update * 3 + [("begin", "validation"), ("end", "validation")]
    times = [m["t"] for m in markers]
    assert times == sorted(times)


def test_several_optimizer_steps_per_update(python: Path, tmp_path: Path) -> None:
    """A rollout that is trained on twice, in two optimizer steps, is one update with its tokens counted once."""
    markers, (seen,) = train(python, tmp_path, "--updates", "6", "--iterations", "2")

    updates = of(markers, "update")
    assert [u["update"] for u in updates] == [0, 1, 2]
    assert len(of(markers, "begin", "training")) == 3
    assert [u["generated_tokens"] for u in updates] == [sum(lengths) for lengths in seen["generated"]]
    assert [2 * u["valid_tokens"] for u in updates] == [
        sum(seen["consumed"][index : index + 2]) for index in (0, 2, 4)
    ]


@pytest.mark.parametrize(
    ("python", "launcher"),
    [
        (TRL, torchrun),
        (TRL, accelerate),
        *(pytest.param(version, torchrun, marks=pytest.mark.frameworks) for version in OLDER_TRL),
    ],
    indirect=["python"],
)
def test_two_processes_make_one_sender(python: Path, launcher: Launcher, tmp_path: Path) -> None:
    """With two ranks one of them sends, and what it sends is the sum over both."""
    markers, seen = train(python, tmp_path, "--updates", "3", "--mask-truncated", launcher=launcher)

    updates = of(markers, "update")
    assert [u["update"] for u in updates] == [0, 1, 2]
    assert [u["responses"] for u in updates] == [16] * 3
    for number, update in enumerate(updates):
        assert update["generated_tokens"] == sum(sum(rank["generated"][number]) for rank in seen)
        assert update["longest_response_tokens"] == max(max(rank["generated"][number]) for rank in seen)
        assert update["valid_tokens"] == sum(rank["consumed"][number] for rank in seen)
    assert {m["phase"] for m in of(markers, "begin")} == {"generation", "reward", "training"}
    assert all(len(of(markers, "begin", phase)) == 3 for phase in ("generation", "reward", "training"))


def test_losses_are_those_of_plain_trl(python: Path, tmp_path: Path) -> None:
    """The training runs the same: equal losses with the adapter and without."""
    losses = []
    for name in ("with", "without"):
        (tmp_path / name).mkdir()
        env = {"PYTHONPATH": ""} if name == "without" else {}
        markers, (seen,) = train(python, tmp_path / name, "--updates", "3", **env)
        assert bool(markers) == (name == "with")
        losses.append([entry["loss"] for entry in seen["log"] if "loss" in entry])

    assert losses[0] == losses[1]
    assert len(losses[0]) == 3
