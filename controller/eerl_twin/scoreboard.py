"""``python -m eerl_twin.scoreboard``: policies on many worlds, as a table and as JSON.

Worlds are the population's (default) or the calibrated presets. The seeds from ``FINAL_SEED`` on are for one last
score, at the end of a development; do not look at them before.
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
from eerl_twin.population import population
from eerl_twin.presets import preset, preset_names
from eerl_twin.score import CONTROLLED, HINDSIGHT, RunScore, as_json, as_markdown, rows, score

#: First seed of the worlds that are scored once.
FINAL_SEED = 1_000_000
_MODES = [mode.value for mode in ExecutionMode]


def _play(task: tuple[str, int], *, updates: int, policies: Sequence[str]) -> list[RunScore]:
    """Every policy on one run of a preset, or of the population's world of a mode."""
    name, seed = task
    known = name not in _MODES
    world = preset(name).world if known else population(seed, ExecutionMode(name), horizon=updates)
    return score(world, seed, updates, policies)


def main(argv: Sequence[str] | None = None) -> int:
    """Score, print the table, write the JSON; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m eerl_twin.scoreboard", description=__doc__)
    parser.add_argument("--runs", type=int, default=75, help="runs of each mode or preset (default 75)")
    parser.add_argument("--updates", type=int, default=300, help="updates of each run (default 300)")
    parser.add_argument("--modes", default=",".join(_MODES), help=f"of {', '.join(_MODES)} (default all)")
    parser.add_argument("--presets", help="calibrated presets instead of the population, as qwen-disagg,...")
    parser.add_argument("--policies", default=",".join(CONTROLLED + HINDSIGHT), help="default all")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first world (default 0)")
    parser.add_argument("--final", action="store_true", help="the seeds that are scored once, at the end")
    parser.add_argument("--json", type=Path, help="write everything here too")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default 1)")
    options = parser.parse_args(argv)
    wanted, policies = (options.presets or options.modes).split(","), options.policies.split(",")
    existing = preset_names() if options.presets else _MODES
    for given, known in ((wanted, existing), (policies, [*CONTROLLED, *HINDSIGHT])):
        unknown = sorted(set(given) - set(known))
        if unknown:
            parser.error(f"unknown {', '.join(unknown)}; known are {', '.join(known)}")
    if min(options.runs, options.updates, options.jobs) < 1:
        parser.error("--runs, --updates and --jobs must be at least 1")
    first = options.seed + (FINAL_SEED if options.final else 0)
    tasks = [(name, first + run) for name in wanted for run in range(options.runs)]
    work = partial(_play, updates=options.updates, policies=policies)
    if options.jobs == 1:
        done = [work(task) for task in tasks]
    else:
        with ProcessPoolExecutor(options.jobs) as pool:
            done = list(pool.map(work, tasks, chunksize=4))
    scores = [item for run in done for item in run]
    made = rows(scores, by_world=bool(options.presets))
    sys.stdout.write(as_markdown(made))
    if options.json:
        about = {
            "worlds": wanted if options.presets else "population",
            "runs_of_each": options.runs,
            "updates": options.updates,
            "first_seed": first,
            "final": options.final,
        }
        options.json.write_text(json.dumps(as_json(made, scores, about), indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
