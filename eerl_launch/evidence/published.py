"""The paper's own tables as frames: what the library makes of them must be what the paper prints.

Reads CSV files with the columns of the paper's transcription: ``throughput_change_pct``, ``energy_saving_pct``,
clocks with ``governor`` for an unlocked phase, ``updates`` as an inclusive range.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from eerl_launch.evidence.estimator import power_ratio

#: What makes a configuration of the headroom tables, besides its clocks.
CONFIGURATION = ["model", "gpu", "mode", "gen_gpus", "train_gpus", "size"]
CLOCKS = ["gen_mhz", "train_mhz"]


def read_table(path: Path) -> pd.DataFrame:
    """A table with its clocks as text, so that ``governor`` and ``varies`` stay what they are."""
    return pd.read_csv(path, dtype={"gen_mhz": str, "train_mhz": str, "updates": str})


def mean_power_change(rows: pd.DataFrame) -> list[float]:
    """Change of mean power in percent from the other two columns (figure 2), row by row."""
    columns = (rows["throughput_change_pct"], rows["energy_saving_pct"])
    return [
        100.0 * (power_ratio(1.0 + change / 100.0, 1.0 - saving / 100.0) - 1.0)
        for change, saving in zip(*columns, strict=True)
    ]


def chosen(headroom: pd.DataFrame, wanted: pd.DataFrame) -> pd.DataFrame:
    """The rows of the headroom tables for the settings of ``wanted``, in its order (table 2 from appendices C, D).

    ``in_limit`` is whether the setting passes section 4.2's rule, ``best`` whether none of its configuration
    that passes saves more. Raises ValueError for a setting that was not measured.
    """
    keys = [*CONFIGURATION, *CLOCKS]
    rows = wanted[keys].merge(rank(headroom), on=keys, how="left")
    missing = rows[rows["energy_saving_pct"].isna()]
    if len(missing):
        raise ValueError(f"not measured: {missing[keys].to_dict('records')}")
    return rows


def rank(headroom: pd.DataFrame, allowed_loss: float = 0.02) -> pd.DataFrame:
    """The rows with ``in_limit`` and ``best`` (at most one of each configuration and range of updates)."""
    rows = headroom.copy()
    rows["in_limit"] = (rows["throughput_change_pct"] >= -100.0 * allowed_loss) & (
        rows["energy_saving_pct"] > 0.0
    )
    eligible = rows[rows["in_limit"]]
    best = eligible.groupby([*CONFIGURATION, "updates"])["energy_saving_pct"].idxmax()
    rows["best"] = rows.index.isin(best)
    return rows


def updates_in(span: str) -> int:
    """How many updates an inclusive range such as ``2-107`` holds."""
    first, last = span.split("-")
    return int(last) - int(first) + 1


def join_intervals(parts: pd.DataFrame) -> pd.DataFrame:
    """Whole runs from their stretches (table 4 from table 5): means weighted by the number of updates.

    Exact when all updates cost the same; sums of tokens, seconds and joules would be, but are not printed.
    """
    rows = parts.assign(weight=parts["updates"].map(updates_in))
    keys = ["model", "mode", "gpu", "gen_gpus", "train_gpus"]
    found = []
    for key, group in rows.groupby(keys, sort=False):
        first = str(group["updates"].iloc[0]).split("-")[0]
        last = str(group["updates"].iloc[-1]).split("-")[1]
        values = {
            name: float(np.average(group[name], weights=group["weight"]))
            for name in ("energy_saving_pct", "throughput_change_pct")
        }
        found.append(dict(zip(keys, key, strict=True)) | {"updates": f"{first}-{last}"} | values)
    return pd.DataFrame(found)
