"""Ledgers in which anything may stand anywhere: a comparison gives strict JSON or one message, never a traceback."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

import pytest
from evidence.twin_ledgers import quiet, write_run

from eerl_controller import Controller, Settings
from eerl_launch.compare import compare
from eerl_launch.compare_text import render_csv, render_text
from eerl_launch.errors import EerlError
from eerl_twin import FixedPlan, preset, simulate

JUNK = (
    None,
    "",
    "x",
    -1,
    0,
    1e300,
    -1e300,
    10**30,
    float("nan"),
    float("inf"),
    True,
    [],
    {},
    [1],
    {"a": 1},
    "1500",
)
ROUNDS = 60


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """The events of a controller's run and of the governor's."""
    world = quiet(preset("qwen-disagg").world)
    source = Controller(Settings(policy="paper"), world.mode, world.grid)
    base = tmp_path_factory.mktemp("sound")
    folders = {
        "c": write_run(base / "c", simulate(world, source, 60, 1), "paper"),
        "g": write_run(base / "g", simulate(world, FixedPlan(), 60, 1), "governor"),
        "h": write_run(base / "h", simulate(world, FixedPlan(), 60, 2), "governor"),
    }
    return {
        name: [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]
        for name, folder in folders.items()
    }


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in an event at which something stands."""
    found = [path] if path else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        found += places(inner, (*path, key))
    return found


def spoil(events: list[dict[str, Any]], rng: random.Random) -> list[dict[str, Any]]:
    """The events with junk in some places: in one event, or at one place of every update."""
    spoilt = copy.deepcopy(events)
    for _ in range(rng.randint(1, 4)):
        event = rng.choice(spoilt)
        path, junk = rng.choice(places(event)), rng.choice(JUNK)
        everywhere = event.get("ev") == "update" and rng.random() < 0.5
        for victim in [item for item in spoilt if item.get("ev") == "update"] if everywhere else [event]:
            holder: Any = victim
            try:
                for key in path[:-1]:
                    holder = holder[key]
                holder[path[-1]] = junk
            except (KeyError, IndexError, TypeError):
                pass
    return spoilt


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_junk(lines: dict[str, list[dict[str, Any]]], tmp_path: Path, seed: int) -> None:
    """Whatever stands in a ledger, the answer is a document that JSON can carry, or an error of ours."""
    rng = random.Random(seed)
    victim = rng.choice(list(lines))
    for name, events in lines.items():
        kept = spoil(events, rng) if name == victim else events
        (tmp_path / name).mkdir()
        (tmp_path / name / "ledger.jsonl").write_text("".join(json.dumps(event) + "\n" for event in kept))

    try:
        document = compare([tmp_path / name for name in lines])
    except EerlError as error:
        assert str(error)
        return

    json.dumps(document, allow_nan=False)
    assert "nan" not in render_text(document) and "nan" not in render_csv(document)
