"""TRL's AsyncGRPOTrainer, TRL and script as they are, on a real Slurm cluster: a pool on each of two nodes.

Two ranks train. The trainer, its rollout worker and both of its HTTP clients are TRL's own. ``vllm_standin`` stands
in for the server (vLLM's HTTP interface, random answers), for NCCL and for the attention kernel.
"""

from __future__ import annotations

import itertools
import json
import subprocess
from pathlib import Path

import pytest
from adapters.environments import trl_python
from rig.cluster import Cluster, free_ports
from slurm.scripts import PYTHON, leftovers, read_run, touched_gpus

HERE = Path(__file__).parent
SCRIPT = HERE.parents[1] / "slurm_examples" / "trl_async.sbatch"
UPDATES = 6
POLICY = "policy: fixed\nfixed: {generation_mhz: 1500, training_mhz: 1200}\n"
OPTIONS = (
    *(f"--max_steps={UPDATES}", "--num_generations=4", "--max_completion_length=20", "--token_budget=128"),
    *("--max_inflight_tasks=8", "--use_cpu", "--bf16=False", "--gradient_checkpointing=False"),
    *(
        "--dtype=float32",
        "--report_to=none",
        "--save_strategy=no",
        "--logging_steps=1",
        "--disable_tqdm=True",
    ),
)

pytestmark = [pytest.mark.slurm, pytest.mark.trl, pytest.mark.slow, pytest.mark.timeout(1500)]


def make_model(folder: Path) -> None:
    """A tiny one, which a user would have; its weights are written for their owner only."""
    code = "import sys, pathlib, async_grpo_script as s; s.make_model(pathlib.Path(sys.argv[1]))"
    subprocess.run([str(trl_python()), "-c", code, str(folder)], cwd=HERE, check=True, capture_output=True)
    for path in folder.iterdir():
        path.chmod(0o644)


def test_generation_and_training_on_a_node_each(cluster: Cluster) -> None:
    """The report has the mode, both pools, and TRL's own counts of what each update made and what it consumed."""
    tools = cluster.work / "bin"
    tools.mkdir()
    (tools / "vllm").write_text(f'#!/bin/sh\nexec {PYTHON} {HERE}/vllm_standin/serve.py "$@"\n')
    (tools / "vllm").chmod(0o755)
    make_model(cluster.work / "model")
    (cluster.work / "fixed.yaml").write_text(POLICY)
    env = {
        "EERL_BIN": f"{Path(PYTHON).parent}:{tools}",
        "EERL_POLICY": str(cluster.work / "fixed.yaml"),
        "LAUNCH": f"{trl_python()} -m torch.distributed.run --nproc-per-node=2",
        "PYTHONPATH": str(HERE / "vllm_standin"),
        "SERVER_ADDRESS": "127.0.0.1",
        "SERVER_PORT": str(free_ports(1)[0]),
        "SCORED": str(cluster.work / "scored"),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    words = [
        cluster.work / "model",
        HERE / "async_grpo_plain.py",
        *("--model", cluster.work / "model", "--output_dir", cluster.work / "out"),
        *OPTIONS,
    ]
    script = SCRIPT.read_text().replace("set -eu\n", f"set -- {' '.join(map(str, words))}\nset -eu\n", 1)

    job = cluster.run(script, "--gpus-per-node=2", timeout_s=600, env=env)

    assert (job.state, job.exit_code) == ("COMPLETED", 0), job.errors
    run = read_run(cluster, job)
    (told,) = run.events("run")
    assert (told["framework"], told["mode"], told["total_updates"]) == ("trl", "async_inflight", UPDATES)
    assert (run.report["run"]["framework"], run.report["run"]["mode"]) == ("trl", "async_inflight")
    assert all(check["ok"] for check in run.report["checks"])
    updates = [event["record"] for event in run.events("update")]
    # What the loss took, as TRL logs it, and what the reward function was shown, group by group.
    log = json.loads((cluster.work / "out" / "trainer_state.json").read_text())["log_history"]
    trained = [entry["batch/trained_tokens_per_step"] for entry in log[:UPDATES]]
    assert [record["valid_tokens"] for record in updates] == trained
    groups = [json.loads(line) for line in (cluster.work / "scored").read_text().splitlines()]
    scored = list(itertools.accumulate(map(sum, groups)))
    generated = list(itertools.accumulate(record["generated_tokens"] or 0 for record in updates))
    assert set(generated) <= set(scored), "whole groups, each of them once and in its order"
    longest = {max(group) for group in groups}
    # None where no group came between two pauses: the trainer had enough of them.
    assert {record["longest_generated_tokens"] for record in updates} <= {*longest, None}
    assert {record["longest_consumed_tokens"] for record in updates} <= set(itertools.chain(*groups))
    ages = [record["policy_age_max"] for record in updates]
    assert ages[0] == 0 and max(ages) >= 1
    for record in updates:
        assert record["pools"].keys() == {"generation", "training"}
        assert all(pool["energy_j"] > 0 for pool in record["pools"].values())
        assert {"generation", "training"} <= record["phases"].keys()
        assert record["generation_busy_fraction"] > record["training_busy_fraction"]
    assert run.report["updates"]["generated_tokens"] == generated[-1]
    for name, mhz in (("n1", 1200), ("n2", 1500)):
        calls = cluster.node(name).stub.setter_calls()
        locks = {call.args for call in calls if call.function == "nvmlDeviceSetGpuLockedClocks"}
        assert locks == {f"min=345 max={mhz}"}
        assert touched_gpus(cluster, name) == {0, 1}
    assert not [line for line in job.errors.splitlines() if line.startswith("eerl: trl")]
    assert leftovers(cluster) == []
