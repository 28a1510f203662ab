"""Power of every GPU over the run: sums in bins, the picture of it, and who differs."""

from __future__ import annotations

import json
import random
import struct
import zlib
from base64 import b64decode
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report.ledgers import RunSpec, node_names, start_events, write_ledger, write_run
from report.reading import strict

from eerl_launch.ledger import Event
from eerl_launch.report import write_report
from eerl_launch.report.document import make_report
from eerl_launch.report.gpu_map import CELL_UNKNOWN, gpu_map
from eerl_launch.report.palettes import DIFFERENCE, POWER
from eerl_launch.report.png import palette_png, with_text
from eerl_launch.report.power_map import MOST_BINS, PowerMap
from eerl_launch.report.standouts import standouts
from eerl_launch.report.tables import read_run

joules = st.none() | st.floats(0.0, 1e6)


@given(st.lists(st.tuples(st.floats(0.5, 100.0), joules, joules), min_size=1, max_size=3 * MOST_BINS))
def test_bins_hold_all_energy_however_often_they_are_merged(
    updates: list[tuple[float, float | None, float | None]],
) -> None:
    """Power times the seconds of its updates is the energy taken in; bins never become more than a screen shows."""
    found = PowerMap()
    for elapsed_s, first_j, second_j in updates:
        found.take(elapsed_s, {"a": first_j, "b": second_j})

    bins, size = found.mean_power_w(), found.updates_per_bin

    assert len(bins) == -(-len(updates) // size) <= MOST_BINS
    for place, entry in enumerate(bins):
        members = updates[place * size : (place + 1) * size]
        for gpu, column in (("a", 1), ("b", 2)):
            known = [(row[0], row[column]) for row in members if row[column] is not None]
            seconds = sum(elapsed_s for elapsed_s, _ in known)
            expected = sum(energy_j or 0.0 for _, energy_j in known) / seconds if known else None
            assert entry[gpu] == (None if expected is None else pytest.approx(expected))


def test_a_gpu_that_joins_late_or_is_lost_has_unknown_cells() -> None:
    """Updates in which a GPU is not named, and updates without a time, are unknown for it and change no other."""
    found = PowerMap()

    found.take(10.0, {"a": 1000.0})
    found.take(10.0, {"b": 500.0, "a": 2000.0})
    found.take(None, {"a": 9.0, "b": 9.0})
    found.take(10.0, {"b": 700.0})

    assert found.mean_power_w() == [
        {"a": 100.0, "b": None},
        {"a": 200.0, "b": 50.0},
        {"a": None, "b": None},
        {"a": None, "b": 70.0},
    ]


def test_the_picture_is_a_png_of_these_cells() -> None:
    """Every chunk has its checksum, the pixels are the rows given, and a text can be put in."""
    png = with_text(
        palette_png([b"\0\1\2", b"\2\1\0"], [(1, 2, 3), (4, 5, 6), (7, 8, 9)]), "Software", "eerl"
    )

    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, at = {}, 8
    while at < len(png):
        (length,) = struct.unpack(">I", png[at : at + 4])
        kind, content = png[at + 4 : at + 8], png[at + 8 : at + 8 + length]
        assert struct.unpack(">I", png[at + 8 + length : at + 12 + length]) == (zlib.crc32(kind + content),)
        chunks[kind] = content
        at += 12 + length
    assert list(chunks) == [b"IHDR", b"tEXt", b"PLTE", b"IDAT", b"IEND"]
    assert chunks[b"tEXt"] == b"Software\0eerl"
    assert chunks[b"IHDR"][:8] == struct.pack(">II", 3, 2)
    assert zlib.decompress(chunks[b"IDAT"]) == b"\0\0\1\2\0\2\1\0"


def test_cells_of_the_page_are_the_powers_of_the_ledger(tmp_path: Path) -> None:
    """The packed cells give each GPU's watts in each update to a hundredth; a GPU without energy is unknown there."""

    def blind(event: dict) -> Iterator[dict] | None:
        if event["ev"] != "update" or event["index"] != 5:
            return None
        first, *others = event["gpu_energy_j"]
        return iter(
            [
                {
                    **event,
                    "gpu_energy_j": {first: None} | {uuid: event["gpu_energy_j"][uuid] for uuid in others},
                }
            ]
        )

    folder = write_run(tmp_path, RunSpec(updates=20, edit=blind))
    lines = [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]
    updates = [line for line in lines if line["ev"] == "update"]

    figure = gpu_map(make_report(read_run(folder)))

    assert figure is not None and figure.cells is not None
    cells = figure.cells
    steps = struct.unpack(f"<{4 * 20}H", b64decode(cells.packed))
    for row, uuid in enumerate(RunSpec().uuids):
        assert uuid in cells.names[row]
        for column, line in enumerate(updates):
            step = steps[row * 20 + column]
            if line["gpu_energy_j"][uuid] is None:
                assert step == CELL_UNKNOWN
            else:
                watts = line["gpu_energy_j"][uuid] / line["record"]["elapsed_s"]
                assert cells.low_w + step * cells.step_w == pytest.approx(watts, abs=0.01)
    assert "Grey is not measured" in figure.caption


def wide_events(spec: RunSpec) -> Iterator[Event]:
    """A run whose updates tell the energy of each GPU, every one of them noisy."""
    yield from start_events(spec)
    rng, clock_s = random.Random(1), 3.0
    for index in range(spec.updates):
        lowered = index >= spec.lock_from
        elapsed_s = 60.0 * rng.gauss(1.0, 0.02)
        watts = 450.0 if lowered else 520.0
        energy_j = {uuid: round(elapsed_s * watts * rng.gauss(1.0, 0.05), 1) for uuid in spec.uuids}
        yield {
            "ev": "update",
            "t_s": clock_s + elapsed_s,
            "index": index,
            "begin_s": clock_s,
            "end_s": clock_s + elapsed_s,
            "state": "LOCKED" if lowered else "CALIBRATION",
            "plan_id": None,
            "record": {
                "update": index + 1,
                "elapsed_s": elapsed_s,
                "energy_j": sum(energy_j.values()),
                "valid_tokens": 600_000 + index,
                "generated_tokens": 800_000 + index,
                "pools": {
                    role: {"requested_mhz": mhz if lowered else None, "achieved_mhz": mhz - rng.random()}
                    for role, mhz in (("generation", 1500), ("training", 1200))
                },
                "phases": {},
                "flags": [],
            },
            "gpu_energy_j": energy_j,
        }
        clock_s += elapsed_s


def test_the_page_of_a_long_and_wide_run_stays_below_5_mb(tmp_path: Path) -> None:
    """2,000 updates of 512 GPUs, the noisiest there can be: the page holds them all in 5 MB, and says how."""
    spec = RunSpec(nodes=64, gpus_per_node=8, updates=2000, lock_from=500)

    page = write_report(write_ledger(tmp_path, wide_events(spec)), ["html"]).html

    text = page.read_text(encoding="utf-8")
    assert len(text.encode()) < 5e6
    assert (
        "512 GPUs as rows, node by node; 2,000 updates as 250 columns, each cell the mean over up to 8"
        in text
    )
    assert "Each row is the mean of up to 20 updates; updates.csv has every one." in text
    assert all(name in text for name in node_names(spec))


@pytest.mark.parametrize(("palette", "turns"), [(POWER, 0), (DIFFERENCE, 1)])
def test_palettes_are_told_apart_by_lightness_alone(palette: list[tuple[int, int, int]], turns: int) -> None:
    """Printed grey or seen without colours, more is lighter; in the map of differences, more different is darker."""
    light = [0.2126 * red + 0.7152 * green + 0.0722 * blue for red, green, blue in palette[:255]]

    rising = [after > before for before, after in pairwise(light[::4])]

    assert sum(left != right for left, right in pairwise(rising)) == turns
    assert rising[0] and rising[-1] is (turns == 0)


def test_who_differs_is_named_and_scatter_is_not(tmp_path: Path) -> None:
    """The one GPU that is slow, idle and hot is named with its values; the others' ordinary scatter is not."""
    spec = RunSpec(nodes=3, gpus_per_node=4, updates=20)
    odd = spec.uuids[6]

    def load(event: dict) -> Iterator[dict] | None:
        if event["ev"] != "end":
            return None
        rng = random.Random(0)
        loads = {
            uuid: {
                "achieved_mhz": rng.gauss(1500, 4) - (150 if uuid == odd else 0),
                "busy_fraction": 0.8 + rng.gauss(0, 0.005) - (0.2 if uuid == odd else 0),
                "capped_fraction": 0.3,
                "slowed_fraction": 0.4 if uuid == odd else 0.0,
            }
            for uuid in spec.uuids
        }
        return iter([{**event, "gpu_load": loads}])

    spec.edit = load
    paths = write_report(write_run(tmp_path, spec), ["json", "html"])

    found = {entry["question"]: entry["gpu"] for entry in strict(paths.json)["standouts"]}
    named = {question for question, gpu in found.items() if gpu["stands_out"]}
    assert named == {"lowest clock while busy", "most idle", "most slowed by heat or hardware protection"}
    assert {found[question]["uuid"] for question in named} == {odd}
    assert {found[question]["standing_out"] for question in named} == {1}
    assert "GPUs that stand out: node02 GPU 2 (lowest clock while busy: 1,3" in paths.html.read_text()


def test_pools_are_compared_each_with_itself() -> None:
    """GPUs of two pools with different work do not stand out for it; in a pool of two nobody can be the odd one."""

    def gpu(place: int, pool: str, watts: float | None) -> dict[str, object]:
        rest = dict.fromkeys(("achieved_mhz", "idle_fraction", "capped_fraction", "slowed_fraction"))
        return {
            "node": f"n{place}",
            "index": 0,
            "uuid": f"G{place}",
            "pools": [pool],
            "mean_power_w": watts,
            **rest,
        }

    apart = [gpu(place, "generation", 300.0) for place in range(4)]
    apart += [gpu(place, "training", 600.0) for place in range(4, 8)]

    both = standouts(apart, [])
    lost = standouts(
        [*apart[:4], gpu(4, "training", 600.0), gpu(5, "training", 90.0), gpu(6, "training", None)], []
    )

    assert [entry["gpu"]["standing_out"] for entry in both[:2]] == [0, 0]
    assert both[0]["gpu"]["compared"] == 8
    assert lost[0]["gpu"]["compared"] == 4
    assert both[2]["gpu"] is None
