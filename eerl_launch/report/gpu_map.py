"""Every GPU over the run as maps of coloured cells: its mean power, and how far that is from the others' in the same
updates, which shows the GPUs and nodes that differ."""

from __future__ import annotations

from array import array
from base64 import b64encode
from collections.abc import Sequence
from statistics import median
from typing import Any

from eerl_launch.report import units
from eerl_launch.report.document import Report
from eerl_launch.report.figure import Cells, Figure
from eerl_launch.report.gpu_picture import GpuGrid, Grid, draw
from eerl_launch.report.palettes import DIFFERENCE, POWER
from eerl_launch.report.stretches import places

#: The map of differences reaches at least and at most this far from the median.
LEAST_REACH, MOST_REACH = 0.05, 0.5
#: With more GPUs than this the table has a row for each node.
LISTED_GPUS = 64
#: A cell as the page's script reads it: steps of the range in 16 bits, the highest for what is not known.
CELL_STEPS, CELL_UNKNOWN = 65534, 65535


def gpu_map(report: Report) -> Figure | None:
    """Both maps in one figure; None with less than two GPUs or updates."""
    found = _read(report)
    known = [watts for row in found.power_w for watts in row if watts is not None]
    if len(found.gpus) < 2 or len(found.firsts) < 2 or not known:
        return None
    low_w, high_w = min(known), max(max(known), min(known) + 1.0)
    far = max((abs(share) for row in found.difference for share in row if share is not None), default=0.0)
    reach = min(max(far, LEAST_REACH), MOST_REACH)
    edge = f"{100 * reach:.0f} %"
    signs = ("≤ ", "≥ ") if far > reach else ("", "")
    absolute = draw(
        found,
        ("gpu_power", "mean power of each GPU"),
        found.power_w,
        POWER,
        (low_w, high_w),
        (f"{low_w:.0f} W", f"{high_w:.0f} W"),
    )
    relative = draw(
        found,
        ("gpu_difference", "power of each GPU against the median of its pool in the same updates"),
        found.difference,
        DIFFERENCE,
        (-reach, reach),
        (f"{signs[0]}{units.MINUS}{edge}", f"{signs[1]}+{edge}"),
    )
    return Figure(
        "gpus",
        "GPUs over the run",
        absolute + relative,
        _caption(found, report, any(watts is None for row in found.power_w for watts in row)),
        (
            "GPU" if len(found.gpus) <= LISTED_GPUS else "node",
            "mean W",
            "lowest W",
            "highest W",
            "lowest to median",
            "highest to median",
        ),
        _rows(found),
        "Lowest and highest of the cells. gpus.csv has every GPU, ledger.jsonl its energy in every update.",
        cells=_cells(found, low_w, high_w),
    )


def _read(report: Report) -> GpuGrid:
    run = report.run
    bins = run.power.mean_power_w()
    gpus = [gpu for gpu in report.document["gpus"] if gpu["uuid"] in set(run.power.uuids)]
    names = list(dict.fromkeys(tuple(gpu["pools"]) for gpu in gpus))
    pools = [names.index(tuple(gpu["pools"])) for gpu in gpus]
    power_w = [[entry.get(gpu["uuid"]) for entry in bins] for gpu in gpus]
    middles = [
        [
            _median([row[place] for row, member in zip(power_w, pools, strict=True) if member == pool])
            for place in range(len(bins))
        ]
        for pool in range(len(names))
    ]
    difference: Grid = [
        [
            None if watts is None or not middle else watts / middle - 1.0
            for watts, middle in zip(row, middles[pool], strict=True)
        ]
        for row, pool in zip(power_w, pools, strict=True)
    ]
    on_axis, size = places(run), run.power.updates_per_bin
    firsts = on_axis[::size]
    lasts = [on_axis[min(begin + size, len(on_axis)) - 1] for begin in range(0, len(on_axis), size)]
    return GpuGrid(gpus, pools, power_w, difference, firsts, lasts)


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _caption(found: GpuGrid, report: Report, gaps: bool) -> str:
    size = report.run.power.updates_per_bin
    words = (
        f"{len(found.gpus):,} GPUs as rows, node by node; {report.run.power.updates:,} updates as "
        f"{len(found.firsts)} columns"
        + (f", each cell the mean over up to {size} updates. " if size > 1 else ". ")
    )
    words += (
        "Above, the mean power; below, how far it is from the median of the GPUs of the same pool in the same "
        "updates: a row that keeps its colour there is a GPU that differs from the others."
    )
    return words + (" Grey is not measured." if gaps else "")


def _cells(found: GpuGrid, low_w: float, high_w: float) -> Cells:
    step_w = (high_w - low_w) / CELL_STEPS
    packed = array("H")
    for row in found.power_w:
        packed.extend(CELL_UNKNOWN if watts is None else round((watts - low_w) / step_w) for watts in row)
    return Cells(
        [_name(gpu) for gpu in found.gpus],
        found.pools,
        found.firsts,
        found.lasts,
        low_w,
        step_w,
        b64encode(_little_endian(packed)).decode(),
    )


def _little_endian(packed: array[int]) -> bytes:
    swapped = array(packed.typecode, packed)
    if array("H", [1]).tobytes() == b"\0\1":
        swapped.byteswap()
    return swapped.tobytes()


def _name(gpu: dict[str, Any]) -> str:
    return f"{gpu['node'] or units.UNKNOWN} GPU {units.plain(gpu['index'])}, {gpu['uuid']}"


def _rows(found: GpuGrid) -> list[tuple[str, ...]]:
    """A row for each GPU, or for each node when there are many."""
    groups: dict[str, list[int]] = {}
    for place, gpu in enumerate(found.gpus):
        name = f"{gpu['node'] or units.UNKNOWN} {units.plain(gpu['index'])}"
        groups.setdefault(name if len(found.gpus) <= LISTED_GPUS else str(gpu["node"]), []).append(place)
    rows = []
    for name, members in groups.items():
        watts = [value for place in members for value in found.power_w[place] if value is not None]
        shares = [value for place in members for value in found.difference[place] if value is not None]
        mean_w = sum(watts) / len(watts) if watts else None
        power = [units.plain(value) for value in (mean_w, min(watts, default=None), max(watts, default=None))]
        ends = [None if not shares else 100 * end(shares) for end in (min, max)]
        rows.append((name, *power, *(units.signed_percent(value) for value in ends)))
    return rows
