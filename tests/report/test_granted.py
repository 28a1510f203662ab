"""What Slurm granted against what was seen: half a job never looks like a whole one (field case E04)."""

from __future__ import annotations

import json
from pathlib import Path

from eerl_launch.ledger import LedgerWriter
from eerl_launch.report import write_report


def test_a_node_that_never_joined_is_missing_from_the_gpus_too(tmp_path: Path) -> None:
    """Slurm granted 2 + 2 GPUs, one node joined: 2 of 4 GPUs in the first lines, and the total is called partial."""
    gpus = [{"uuid": f"GPU-{i}", "index": i, "name": "H100", "energy_scope": "gpu"} for i in range(2)]
    with LedgerWriter(tmp_path) as ledger:
        ledger.append({"ev": "start", "t_s": 0.0, "schema_version": 1, "nodes": ["n1", "n2"], "policy": {}})
        ledger.append({"ev": "granted", "t_s": 0.1, "gpus_by_node": {"n1": [0, 1], "n2": [2, 3]}})
        ledger.append({"ev": "node", "t_s": 0.2, "node": "n1", "state": "joined", "gpus": gpus})
        ledger.append({"ev": "node", "t_s": 0.2, "node": "n2", "state": "not_measured", "reason": "no agent"})
        ledger.append(
            {
                "ev": "end",
                "t_s": 60.0,
                "run_s": 60.0,
                "exit_code": 0,
                "status": "complete",
                "gpu_energy_j": {"GPU-0": 6000.0, "GPU-1": 6000.0},
                "gpu_coverage": {"GPU-0": 1.0, "GPU-1": 1.0},
            }
        )

    write_report(tmp_path, ["txt", "json"])

    text = (tmp_path / "report.txt").read_text()
    total = json.loads((tmp_path / "report.json").read_text())["allocation"]
    assert (total["gpus_expected"], total["energy_j"]) == (4, 12000.0)
    assert "2 of 4 GPUs" in " ".join(text.split()[:60])
    assert "Partial" in text
