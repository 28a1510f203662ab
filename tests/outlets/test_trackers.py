"""Weights & Biases and MLflow through their own libraries, without a network."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlflow
import pytest
from outlets.runs import parcel_of
from wandb.proto import wandb_internal_pb2

from eerl_launch.outlets.delivery import deliver
from eerl_launch.outlets.parcel import totals


@pytest.fixture(autouse=True)
def no_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of this machine's settings for trackers, and a home without any."""
    for name in ("WANDB_RUN_ID", "WANDB_PROJECT", "WANDB_DIR", "MLFLOW_RUN_ID", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")


def wandb_records(path: Path) -> Iterator[Any]:
    """The records of an offline run: a log of LevelDB's form (blocks of 32 KiB, 7 bytes before each piece)."""
    data, at, whole = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        _, size, kind = struct.unpack("<IHB", data[at : at + 7])
        whole += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # a whole record, or the last piece of one
            record = wandb_internal_pb2.Record()
            record.ParseFromString(whole)
            whole = b""
            yield record


def test_wandb_has_totals_and_every_update(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An offline run, under the id that the trainer's has: 60 updates on an axis of their own, and the totals."""
    monkeypatch.setenv("WANDB_RUN_ID", "trainer7")
    monkeypatch.setenv("WANDB_PROJECT", "theirs")
    parcel = parcel_of(tmp_path)

    (sent,) = deliver(["wandb"], parcel, 120.0)

    assert sent.delivered, sent.text
    (path,) = tmp_path.glob("wandb/offline-run-*-trainer7/*.wandb")
    rows, summary, axes, projects = [], {}, set(), set()
    for record in wandb_records(path):
        kind = record.WhichOneof("record_type")
        if kind == "history":
            rows.append(
                {".".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            )
        elif kind == "summary":
            summary |= {item.key: json.loads(item.value_json) for item in record.summary.update}
        elif kind == "metric":
            axes.add((record.metric.glob_name or record.metric.name, record.metric.step_metric))
        elif kind == "run":
            projects.add(record.run.project)
    assert [row["eerl/update"] for row in rows] == list(range(1, 61))
    assert rows[5]["eerl/energy_j"] == pytest.approx(parcel["updates"][5]["energy_j"])
    assert ("eerl/*", "eerl/update") in axes and projects == {"theirs"}
    wanted = totals(parcel["document"])
    assert {name: summary[f"eerl/total/{name}"] for name in wanted} == pytest.approx(wanted)


def test_mlflow_adds_to_the_trainers_run_and_leaves_its_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trainer's run that failed gets the numbers, and stays failed; what it logged itself is untouched."""
    store = (tmp_path / "store").as_uri()
    client = mlflow.MlflowClient(store)
    run_id = client.create_run(client.create_experiment("grpo")).info.run_id
    client.log_metric(run_id, "loss", 0.5)
    client.set_terminated(run_id, "FAILED")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    monkeypatch.setenv("MLFLOW_RUN_ID", run_id)
    parcel = parcel_of(tmp_path)

    (sent,) = deliver(["mlflow"], parcel, 120.0)

    assert sent.delivered, sent.text
    run = client.get_run(run_id)
    assert run.info.status == "FAILED"
    assert run.data.metrics["loss"] == 0.5
    for name, value in totals(parcel["document"]).items():
        assert run.data.metrics[f"eerl/total/{name}"] == pytest.approx(value)
    history = client.get_metric_history(run_id, "eerl/energy_j")
    assert [point.step for point in history] == list(range(1, 61))
    assert run.data.tags["eerl.policy"] == "eerl"
