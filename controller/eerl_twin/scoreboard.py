"""``python -m eerl_twin.scoreboard``: policies on many worlds, as a table and as JSON.

Worlds are the population's (default) or the calibrated presets. The seeds from ``FINAL_SEED`` on are for one last
score, at the end of a development; do not look at them before. Those from 1,000,000 on were that once before.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from eerl_controller import ExecutionMode
from eerl_twin.page import Played, page, with_short_table
from eerl_twin.population import population
from eerl_twin.presets import ALIASES, preset, preset_names
from eerl_twin.score import (
    CONTROLLED,
    HINDSIGHT,
    MAX_LOSS,
    Row,
    RunScore,
    as_json,
    as_markdown,
    rows,
    score,
)

#: First seed of the worlds that are scored once.
FINAL_SEED = 2_000_000
#: The page has one run of each preset for so many of each mode.
PRESET_SHARE = 5
_MODES = [mode.value for mode in ExecutionMode]


def _play(
    task: tuple[str, int], *, updates: int, inflight_updates: int, policies: Sequence[str]
) -> list[RunScore]:
    """Every policy on one run of a preset, or of the population's world of a mode."""
    name, seed = task
    if name in _MODES:
        mode = ExecutionMode(name)
        horizon = inflight_updates if mode is ExecutionMode.ASYNC_INFLIGHT else updates
        return score(population(seed, mode, horizon=horizon), seed, horizon, policies)
    world = preset(name).world
    horizon = inflight_updates if world.mode is ExecutionMode.ASYNC_INFLIGHT else updates
    return score(world, seed, horizon, policies)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m eerl_twin.scoreboard", description=__doc__)
    parser.add_argument("--runs", type=int, default=75, help="runs of each mode or preset (default 75)")
    parser.add_argument("--updates", type=int, default=300, help="updates of each run (default 300)")
    parser.add_argument("--inflight-updates", type=int, help="of in-flight runs, which calibrate longer")
    parser.add_argument("--modes", default=",".join(_MODES), help=f"of {', '.join(_MODES)} (default all)")
    parser.add_argument("--presets", help="calibrated presets instead of the population, as qwen-disagg,...")
    parser.add_argument("--policies", default=",".join(CONTROLLED + HINDSIGHT), help="default all")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first world (default 0)")
    parser.add_argument("--final", action="store_true", help="the seeds that are scored once, at the end")
    parser.add_argument("--json", type=Path, help="write everything here too")
    parser.add_argument(
        "--page", type=Path, help="write the scoreboard's page here, presets of table 4 included"
    )
    parser.add_argument("--readme", type=Path, help="put the short table between its marks in this document")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default 1)")
    options = parser.parse_args(argv)
    options.inflight_updates = options.inflight_updates or options.updates
    options.policies = options.policies.split(",")
    options.wanted = (options.presets or options.modes).split(",")
    existing = preset_names() if options.presets else _MODES
    for given, known in ((options.wanted, existing), (options.policies, [*CONTROLLED, *HINDSIGHT])):
        unknown = sorted(set(given) - set(known))
        if unknown:
            parser.error(f"unknown {', '.join(unknown)}; known are {', '.join(known)}")
    if min(options.runs, options.updates, options.inflight_updates, options.jobs) < 1:
        parser.error("--runs, --updates and --jobs must be at least 1")
    if options.presets and (options.page or options.readme):
        parser.error("--page and --readme are of the population; the page has its own presets")
    return options


def _scores(options: argparse.Namespace, names: Sequence[str], runs: int, first: int) -> list[RunScore]:
    tasks = [(name, first + run) for name in names for run in range(runs)]
    work = partial(
        _play,
        updates=options.updates,
        inflight_updates=options.inflight_updates,
        policies=options.policies,
    )
    if options.jobs == 1:
        done = [work(task) for task in tasks]
    else:
        with ProcessPoolExecutor(options.jobs) as pool:
            done = list(pool.map(work, tasks, chunksize=2))
    return [item for run in done for item in run]


def main(argv: Sequence[str] | None = None) -> int:
    """Score, print the table, write what was asked for; returns the exit code."""
    options = _arguments(argv)
    first = options.seed + (FINAL_SEED if options.final else 0)

    def played(runs: int, made: Sequence[Row]) -> Played:
        return Played(runs, options.updates, options.inflight_updates, first, MAX_LOSS, made)

    scores = _scores(options, options.wanted, options.runs, first)
    made = rows(scores, by_world=bool(options.presets))
    board = played(options.runs, made)
    sys.stdout.write(as_markdown(made))
    about = {
        "worlds": options.wanted if options.presets else "population",
        "runs_of_each": options.runs,
        "updates": options.updates,
        "inflight_updates": options.inflight_updates,
        "first_seed": first,
        "final": options.final,
    }
    content = as_json(made, scores, about)
    if options.page:
        # Presets differ from seed to seed by noise alone: fewer runs tell as much.
        few = max(options.runs // PRESET_SHARE, 1)
        calibrated = _scores(options, list(ALIASES), few, first)
        own = rows(calibrated, by_world=True)
        content["presets"] = as_json(own, calibrated, {"runs_of_each": few})
        options.page.write_text(page(board, played(few, own)))
    if options.readme:
        options.readme.write_text(with_short_table(options.readme.read_text(), board))
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(content, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
