"""Where a run's numbers go besides its own files, when asked for: trackers, metrics, and the job's Slurm comment."""

from __future__ import annotations

#: By the name that a policy (``report.to``) and ``eerl report --to`` give it.
OUTLETS = ("wandb", "mlflow", "openmetrics", "slurm_comment", "slurm_admin_comment")
