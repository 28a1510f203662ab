"""A run's numbers in Weights & Biases or MLflow, through their own libraries and the settings they read.

Into the trainer's run where its id is in the environment (``WANDB_RUN_ID``, ``MLFLOW_RUN_ID``), else into one of our
own: totals with the prefix ``eerl/``, and the updates in rows. Whether the trainer's run has ended or failed is left
as it is.
"""

from __future__ import annotations

import importlib
import os
import time
from pathlib import Path
from typing import Any

from eerl_launch.outlets.parcel import Parcel, about, totals

#: What the libraries would report to their makers is not what the user asked us to send; and MLflow's plain files,
#: which we write where nothing else is configured, want to be allowed.
_QUIET = {
    "WANDB_ERROR_REPORTING": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ALLOW_FILE_STORE": "true",
}
#: MLflow takes so many numbers in one request.
_MLFLOW_BATCH = 1000


class TrackerError(Exception):
    """The tracker's library is missing or refuses; the text says what to do."""


def to_wandb(parcel: Parcel) -> str:
    """Log to wandb; the run's address, or the folder that ``wandb sync`` takes."""
    wandb = _library("wandb")
    document, environment = parcel["document"], os.environ
    joined = environment.get("WANDB_RUN_ID")
    run = wandb.init(
        id=joined,
        resume="allow" if joined else None,
        project=environment.get("WANDB_PROJECT") or "eerl",
        name=None if joined else environment.get("WANDB_NAME") or f"eerl-{document['run']['run_id']}",
        dir=environment.get("WANDB_DIR") or parcel["folder"],
        config={"eerl": about(document)},
        settings=wandb.Settings(console="off", silent=True, disable_git=True, save_code=False),
    )
    # The trainer's own steps are not ours to advance, so ours have an axis of their own.
    run.define_metric("eerl/update")
    run.define_metric("eerl/*", step_metric="eerl/update")
    for row in parcel["updates"]:
        run.log({f"eerl/{name}": value for name, value in row.items()})
    for name, value in totals(document).items():
        run.summary[f"eerl/total/{name}"] = value
    where = str(run.url or run.dir)
    run.finish(exit_code=0)
    return where


def to_mlflow(parcel: Parcel) -> str:
    """Log to MLflow; the tracking address and the run's id."""
    mlflow = _library("mlflow")
    document, environment = parcel["document"], os.environ
    if not environment.get("MLFLOW_TRACKING_URI"):
        mlflow.set_tracking_uri((Path(parcel["folder"]) / "mlruns").as_uri())
    client = mlflow.MlflowClient()
    run_id = joined = environment.get("MLFLOW_RUN_ID")
    if not joined:
        run_id = _new_mlflow_run(client, document)
    metric, now_ms = mlflow.entities.Metric, int(time.time() * 1000)
    numbers = [metric(f"eerl/total/{name}", value, now_ms, 0) for name, value in totals(document).items()]
    numbers += [
        metric(f"eerl/{name}", value, now_ms, int(row["update"]))
        for row in parcel["updates"]
        for name, value in row.items()
        if name != "update"
    ]
    for at in range(0, len(numbers), _MLFLOW_BATCH):
        client.log_batch(run_id, metrics=numbers[at : at + _MLFLOW_BATCH])
    for name, value in about(document).items():
        client.set_tag(run_id, f"eerl.{name}", value)
    if not joined:
        client.set_terminated(run_id)
    return f"{mlflow.get_tracking_uri()} run {run_id}"


def _new_mlflow_run(client: Any, document: dict[str, Any]) -> str:
    named = os.environ.get("MLFLOW_EXPERIMENT_ID")
    if not named:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or "eerl"
        experiment = client.get_experiment_by_name(name)
        named = experiment.experiment_id if experiment else client.create_experiment(name)
    created = client.create_run(named, run_name=f"eerl-{document['run']['run_id']}")
    return str(created.info.run_id)


def _library(name: str) -> Any:
    for variable, value in _QUIET.items():
        os.environ.setdefault(variable, value)
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise TrackerError(
            f"{error}; install it beside eerl (pip install 'eerl[{name}]'), which may be another Python than the "
            "trainer's"
        ) from error
