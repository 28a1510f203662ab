"""Who waits while the longest responses are generated: GPUs and nodes, by idleness and by power.

Idle: the seconds at the end of generation in which a GPU had nothing to do, by its utilisation (late by up to a
second, so a wait is at least that). Power says more where an engine that waits keeps its GPU spinning: GPUs differ
in draw for good, so each is held against its own mean, and what changes from update to update is the imbalance.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from eerl_launch.profiles.gather import Gathered
from eerl_launch.profiles.spread import UNKNOWN, Values, as_array, ratio_of_sums, spread
from eerl_launch.report.values import number, table

NO_GENERATION = "no generation was measured GPU by GPU"
ONE_GPU = "one GPU generates: nobody waits for another"
NEVER_ENDS = "in-flight: generation never stops to wait for its longest responses"
NO_TAILS = (
    "the ledger does not tell when each GPU ran out of work: it was written before eerl measured it, or the "
)
NO_TAILS += "GPUs do not tell their utilisation"


def imbalance(run: Gathered) -> dict[str, Any]:
    """The profile of waiting, with a row per GPU and node that generates, and per separate pool."""
    uuids = sorted({uuid for item in run.generations for uuid in item.uuids}, key=_order(run))
    empty: dict[str, Any] = {
        "gpus": len(uuids),
        "updates": len({item.place for item in run.generations}),
        "waiting_fraction": None,
        "waiting_s_of_mean_gpu": None,
        "waiting_reason": None,
        "power_unevenness_fraction": None,
        "by_gpu": [],
        "by_node": [],
        "by_pool": _by_pool(run),
    }
    if not uuids:
        return empty | {"waiting_reason": NO_GENERATION}
    seconds, joules, idle_s = _arrays(run, uuids)
    reason = None
    if run.run.mode == "async_inflight":
        reason, idle_s = NEVER_ENDS, np.full_like(idle_s, UNKNOWN)
    elif len(uuids) == 1:
        reason, idle_s = ONE_GPU, np.full_like(idle_s, UNKNOWN)
    elif not np.isfinite(idle_s).any():
        reason = NO_TAILS
    by_gpu = _by_gpu(run, uuids, seconds, joules, idle_s)
    waits = spread(_row_means(idle_s))
    return empty | {
        "waiting_fraction": ratio_of_sums(idle_s.ravel(), _where(seconds, idle_s).ravel()),
        "waiting_s_of_mean_gpu": None if waits is None else waits.to_dict(),
        "waiting_reason": reason,
        "power_unevenness_fraction": _unevenness(joules, seconds) if len(uuids) > 1 else None,
        "by_gpu": by_gpu,
        "by_node": _by_node(by_gpu, seconds, joules, idle_s),
    }


def _by_pool(run: Gathered) -> list[dict[str, Any]]:
    """Separate pools: how long each neither worked nor took part in a refit, and what it drew meanwhile."""
    rows = []
    elapsed_s = run.values("elapsed_s")
    for role in dict.fromkeys(role for row in run.updates for role in row.pool_waits):
        entries = [table(row.pool_waits.get(role)) for row in run.updates]
        wait_s, energy_j = (
            as_array([number(entry.get(key)) for entry in entries]) for key in ("wait_s", "energy_j")
        )
        waits, joules = spread(wait_s), spread(energy_j)
        rows.append(
            {
                "pool": str(role),
                "gpus": len(run.run.pools.get(role, ())) or None,
                "mean_wait_s": None if waits is None else waits.mean,
                "p90_wait_s": None if waits is None else waits.p90,
                "wait_fraction": ratio_of_sums(wait_s, _where(elapsed_s, wait_s)),
                "mean_wait_energy_j": None if joules is None else joules.mean,
            }
        )
    return rows


def _order(run: Gathered) -> Any:
    nodes = {name: place for place, name in enumerate(run.run.nodes)}

    def key(uuid: str) -> tuple[int, int, str]:
        gpu = run.run.gpus[uuid]
        return nodes.get(gpu.node or "", len(nodes)), -1 if gpu.index is None else gpu.index, uuid

    return key


def _arrays(run: Gathered, uuids: list[str]) -> tuple[Values, Values, Values]:
    """Seconds of generation, joules and idle seconds by update and GPU; NaN where not known."""
    shape = (len(run.updates), len(uuids))
    seconds, joules, idle_s = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    column_of = {uuid: column for column, uuid in enumerate(uuids)}
    for item in run.generations:
        columns = [column_of[uuid] for uuid in item.uuids]
        seconds[item.place, columns] += item.elapsed_s
        joules[item.place, columns] += item.energy_j
        idle_s[item.place, columns] += UNKNOWN if item.idle_tail_s is None else item.idle_tail_s
    for values in (joules, idle_s):
        values[seconds == 0] = UNKNOWN
    return seconds, joules, np.minimum(idle_s, seconds)


def _where(values: Values, known: Values) -> Values:
    return np.where(np.isfinite(known), values, UNKNOWN)


def _row_means(values: Values) -> Values:
    known = np.isfinite(values)
    count = known.sum(axis=1)
    result = np.full(len(values), UNKNOWN)
    np.divide(np.where(known, values, 0.0).sum(axis=1), count, out=result, where=count > 0)
    return result


def _unevenness(joules: Values, seconds: Values) -> float | None:
    """How far a GPU's power in an update is from what it usually has among the others, root mean square.

    GPUs and updates have each their own level; what is left when both are taken out is unevenness of the work.
    """
    whole = np.isfinite(joules).all(axis=1)
    power = joules[whole] / seconds[whole]
    if len(power) < 2 or not (power > 0).all():
        return None
    left = np.log(power)
    left -= left.mean(axis=1, keepdims=True)
    left -= left.mean(axis=0, keepdims=True)
    freedom = (power.shape[0] - 1) * (power.shape[1] - 1)
    return float(np.sqrt((left**2).sum() / freedom))


def _by_gpu(
    run: Gathered, uuids: list[str], seconds: Values, joules: Values, idle_s: Values
) -> list[dict[str, Any]]:
    power = [ratio_of_sums(joules[:, place], seconds[:, place]) for place in range(len(uuids))]
    known = [value for value in power if value is not None]
    mean_w = sum(known) / len(known) if known else None
    rows = []
    for place, uuid in enumerate(uuids):
        gpu = run.run.gpus[uuid]
        own, watts = idle_s[:, place], power[place]
        waits = spread(own)
        rows.append(
            {
                "node": gpu.node,
                "index": gpu.index,
                "uuid": uuid,
                "generation_power_w": watts,
                "relative_power": watts / mean_w if watts is not None and mean_w else None,
                "waiting_fraction": ratio_of_sums(own, _where(seconds[:, place], own)),
                "mean_waiting_s": None if waits is None else waits.mean,
                "p90_waiting_s": None if waits is None else waits.p90,
                "last_updates": _times_last(idle_s, place),
            }
        )
    return rows


def _times_last(idle_s: Values, place: int) -> int | None:
    """In how many updates this GPU was the last to finish, or one of them; None when it is not known."""
    known = np.isfinite(idle_s).all(axis=1)
    uneven = known & (idle_s.max(axis=1) > idle_s.min(axis=1))
    if not known.any():
        return None
    return int((idle_s[uneven, place] == idle_s[uneven].min(axis=1)).sum())


def _by_node(
    by_gpu: list[dict[str, Any]], seconds: Values, joules: Values, idle_s: Values
) -> list[dict[str, Any]]:
    rows = []
    for node in dict.fromkeys(row["node"] for row in by_gpu):
        columns = [place for place, row in enumerate(by_gpu) if row["node"] == node]
        own = idle_s[:, columns]
        rows.append(
            {
                "node": node,
                "gpus": len(columns),
                "generation_power_w_per_gpu": ratio_of_sums(
                    joules[:, columns].ravel(), seconds[:, columns].ravel()
                ),
                "waiting_fraction": ratio_of_sums(own.ravel(), _where(seconds[:, columns], own).ravel()),
            }
        )
    return rows
