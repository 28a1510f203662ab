"""How fast the twin runs (processor time), and a tiny scoreboard: that it works, and roughly what it says."""

from __future__ import annotations

import time

from bench.measured import Number

from eerl_controller import ExecutionMode
from eerl_twin import FixedPlan, population, simulate
from eerl_twin.score import RunScore, rows, score

UPDATES, RUNS, BOARD_UPDATES = 2000, 2, 150
#: Wanted: updates a second without a controller.
RATE = 5000.0


def measure() -> list[Number]:
    """Milliseconds of a simulated update by mode, and policies' share of the oracle over a few runs."""
    numbers = []
    for mode in ExecutionMode:
        world = population(1, mode, horizon=UPDATES)
        begin = time.process_time()
        simulate(world, FixedPlan(1500, 1200, 345), UPDATES, 1)
        spent_s = time.process_time() - begin
        numbers.append(
            Number(f"twin, {mode.value}: an update", "ms", 1000 * spent_s / UPDATES, target=1000 / RATE)
        )
    return [*numbers, *_board()]


def _board() -> list[Number]:
    begin = time.process_time()
    scores: list[RunScore] = []
    for mode in ExecutionMode:
        for seed in range(RUNS):
            world = population(seed, mode, horizon=BOARD_UPDATES)
            scores += score(world, seed, BOARD_UPDATES, ["paper", "eerl", "oracle"])
    spent_s = time.process_time() - begin
    note = f"scoreboard: {RUNS} runs of each mode, {BOARD_UPDATES} updates; `make scoreboard` is the real one"
    shares = [
        Number(f"scoreboard, {row.policy}: share of the best fixed clocks", "ratio", row.oracle_share or 0.0)
        for row in rows(scores)
        if row.group == "all" and row.policy != "oracle"
    ]
    return [Number("scoreboard, tiny: all of it", "s", spent_s, note=note), *shares]
