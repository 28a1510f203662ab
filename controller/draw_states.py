"""Draws ``states.svg`` from the transition table and writes the tables in DECIDING.md; ``--check`` only compares.

Boxes stand where ``PLACES`` puts them; every arrow comes from ``TRANSITIONS``. What every state in the frame may do
is one arrow from the frame. Each arrow's number is its row in the page's table. No state and no change can lack
words: the tables' words are checked against ``TRANSITIONS`` when this runs.
"""

from __future__ import annotations

import math
import sys
from html import escape
from pathlib import Path

from eerl_controller import TRANSITIONS, Settings, State
from eerl_controller.stateful import HOLDING

HERE = Path(__file__).resolve().parent
PICTURE, PAGE = HERE / "states.svg", HERE / "DECIDING.md"
WIDTH, HEIGHT, BOX = 900, 500, (136, 44)
#: The middle of each box.
PLACES = {
    State.CALIBRATION: (110, 150),
    State.SEARCH: (330, 150),
    State.CONFIRMATION: (560, 150),
    State.LOCKED: (780, 150),
    State.REMEASURE: (445, 290),
    State.SUSPENDED: (180, 430),
    State.FAILED: (445, 430),
    State.MEASURE_ONLY: (650, 430),
    State.FIXED: (810, 430),
}
#: Left, top, right, bottom of the frame around the states between which a controlled run moves.
FRAME = (20, 30, 880, 350)
FRAMED = (State.CALIBRATION, State.SEARCH, State.CONFIRMATION, State.LOCKED, State.REMEASURE)
#: How far an arrow bends away from the straight line, in pixels; others bend only beside their way back.
BENDS = {
    (State.CALIBRATION, State.CONFIRMATION): -150,
    (State.SEARCH, State.LOCKED): -150,
    (State.REMEASURE, State.CALIBRATION): 40,
    (State.SUSPENDED, State.CALIBRATION): -60,
}
BESIDE = 20
#: Where the frame's arrow meets a box, beside its middle.
FROM_FRAME = 36
COLOURS = {"governor": "#e4e9f0", "lowered": "#d5ecd9", "whole": "#f3eee2"}

#: Where the page's numbers come from.
_TABLE3 = Settings()
#: What happens in a state under either policy.
LIVES = {
    State.CALIBRATION: (
        f"{_TABLE3.calibration_updates} usable updates (in-flight {_TABLE3.async_inflight_calibration_updates}) "
        "under the governor; equation 2 is fitted to them",
        "a few usable updates under the governor; they begin the model of each phase",
    ),
    State.SEARCH: (
        f"trials of {_TABLE3.trial_updates} updates (in-flight blocks of 3, 6 or 12) between governor updates",
        "short blocks of lowered updates and of the governor, until a few such contrasts are known",
    ),
    State.CONFIRMATION: (
        f"the best passing setting again, on {_TABLE3.confirmation_updates} fresh updates (in-flight 1 or 2 blocks)",
        "a setting that may be better is held for a block",
    ),
    State.LOCKED: (
        f"held; every {_TABLE3.monitor_every} updates the last {_TABLE3.monitor_window} are judged",
        "the best setting known is held; decided anew after every block",
    ),
    State.REMEASURE: (
        f"{_TABLE3.remeasure_updates} updates of the governor, to see whether the reference still holds",
        "a governor block, when what it teaches is worth more than it costs",
    ),
    State.SUSPENDED: (
        f"governor for now: {_TABLE3.suspend_updates} updates at first, twice as long each time",
        "the same",
    ),
    State.FAILED: ("governor for ever", "the same"),
    State.MEASURE_ONLY: ("policy `governor` only: never sets a clock", ""),
    State.FIXED: ("policy `fixed` only: holds the clocks of the policy file", ""),
}
#: When a change of state happens.
WHEN = {
    (State.CALIBRATION, State.SEARCH): "the reference is known and enough of the run is left",
    (State.CALIBRATION, State.CONFIRMATION): "a lock is tried again after the governor was learnt anew",
    (
        State.CALIBRATION,
        State.SUSPENDED,
    ): "what a search needs is missing (no clock to choose, no arrivals, no loads)",
    (State.CALIBRATION, State.FAILED): "no clock can be chosen at all, or trouble came back too often",
    (State.SEARCH, State.CONFIRMATION): "nothing untried promises more, and a setting passed",
    (
        State.SEARCH,
        State.LOCKED,
    ): "asynchronous: the second pool's search found nothing on top of the first's",
    (
        State.SEARCH,
        State.REMEASURE,
    ): "trials lie outside the work that the reference covers, or the governor has moved",
    (State.SEARCH, State.SUSPENDED): "nothing pays, or updates give no evidence",
    (State.SEARCH, State.FAILED): "clocks are overruled again and again",
    (State.CONFIRMATION, State.LOCKED): "it passed again",
    (
        State.CONFIRMATION,
        State.SEARCH,
    ): "it did not; the next one is looked for (or the second pool's turn has come)",
    (
        State.CONFIRMATION,
        State.REMEASURE,
    ): "its work lies outside what the reference covers, or what it shows needs the governor beside it",
    (State.CONFIRMATION, State.SUSPENDED): "it does not pay and the end is near, or updates give no evidence",
    (State.CONFIRMATION, State.FAILED): "clocks are overruled again and again",
    (State.LOCKED, State.CONFIRMATION): "monitoring finds a margin: a lower clock is tried",
    (
        State.LOCKED,
        State.REMEASURE,
    ): "drift, uncovered work or an old reference (`eerl`: the governor's turn)",
    (State.LOCKED, State.SUSPENDED): "the lock no longer pays, or updates give no evidence",
    (State.LOCKED, State.FAILED): "clocks are overruled again and again",
    (State.REMEASURE, State.CALIBRATION): "the governor has changed",
    (State.REMEASURE, State.SEARCH): "it was interrupted in its search",
    (State.REMEASURE, State.CONFIRMATION): "the work had moved: the lock is confirmed on fresh updates",
    (
        State.REMEASURE,
        State.LOCKED,
    ): "the lock holds against the fresh reference (`eerl`: the best setting now)",
    (State.REMEASURE, State.SUSPENDED): "nothing pays any more",
    (State.REMEASURE, State.FAILED): "clocks are overruled again and again",
    (State.SUSPENDED, State.CALIBRATION): "the wait is over and updates can be used",
    (State.SUSPENDED, State.FAILED): "the cause turns out to be permanent",
}

Edge = tuple[State, State]
Point = tuple[float, float]


def edges() -> list[Edge]:
    """Every legal change in a fixed order, their numbers being one more than their place."""
    order = list(State)
    return [(a, b) for a in order for b in sorted(TRANSITIONS[a], key=order.index)]


def common_ends() -> list[State]:
    """The states outside the frame that every state in it may go to."""
    return [end for end in State if end not in FRAMED and all(end in TRANSITIONS[a] for a in FRAMED)]


def _border(middle: Point, outside: Point, inside: Point) -> Point:
    """Where a line from outside to a point in the box around ``middle`` meets its border."""
    shares = [0.0]
    for at, half in ((0, BOX[0] / 2), (1, BOX[1] / 2)):
        step = inside[at] - outside[at]
        if step:
            shares.append((middle[at] - math.copysign(half, step) - outside[at]) / step)
    share = min(max(shares), 1.0)
    return outside[0] + share * (inside[0] - outside[0]), outside[1] + share * (inside[1] - outside[1])


def _arrow(edge: Edge, number: int) -> str:
    """A curve from box to box, its number in its middle."""
    (ax, ay), (bx, by) = PLACES[edge[0]], PLACES[edge[1]]
    length = math.hypot(bx - ax, by - ay)
    bend = BENDS.get(edge, BESIDE if edge[::-1] in WHEN else 0)
    # Perpendicular to the line, to its right: the way back lies on the other side.
    px, py = -(by - ay) / length * bend, (bx - ax) / length * bend
    x, y = (ax + bx) / 2 + px, (ay + by) / 2 + py
    beside = 0.6 if edge not in BENDS else 0.0
    source, target = (ax + beside * px, ay + beside * py), (bx + beside * px, by + beside * py)
    begin, end = _border((ax, ay), (x, y), source), _border((bx, by), (x, y), target)
    at = [0.25 * a + 0.5 * c + 0.25 * b for a, c, b in zip(begin, (x, y), end, strict=True)]
    path = f"M{begin[0]:.1f},{begin[1]:.1f} Q{x:.1f},{y:.1f} {end[0]:.1f},{end[1]:.1f}"
    return f'<path class="arrow" d="{path}"/>\n' + _badge(at[0], at[1], str(number))


def _badge(x: float, y: float, text: str) -> str:
    wide = 18 + 7 * max(len(text) - 2, 0)
    return (
        f'<rect class="badge" x="{x - wide / 2:.1f}" y="{y - 9:.1f}" width="{wide}" height="18" rx="9"/>'
        f'<text class="number" x="{x:.1f}" y="{y + 4:.1f}">{escape(text)}</text>\n'
    )


def _from_frame(end: State, numbers: list[int]) -> str:
    """One arrow for what every state in the frame may do."""
    x, y = PLACES[end][0] + FROM_FRAME, PLACES[end][1]
    bottom, top = FRAME[3], y - BOX[1] / 2
    path = f'<path class="arrow" d="M{x},{bottom} L{x},{top:.1f}"/>\n'
    return path + _badge(x, (bottom + top) / 2, ", ".join(map(str, numbers)))


def _box(state: State) -> str:
    x, y = PLACES[state]
    kind = "lowered" if state in HOLDING else "governor"
    if not TRANSITIONS[state] and state is not State.FAILED:
        kind = "whole"
    return (
        f'<rect class="box" x="{x - BOX[0] / 2:g}" y="{y - BOX[1] / 2:g}" width="{BOX[0]}" height="{BOX[1]}" '
        f'rx="8" fill="{COLOURS[kind]}"/><text class="name" x="{x}" y="{y + 5}">{state.name}</text>\n'
    )


def svg() -> str:
    """The picture."""
    numbered = {edge: number for number, edge in enumerate(edges(), 1)}
    ends = common_ends()
    left, top, right, bottom = FRAME
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
        f'height="{HEIGHT}" role="img" aria-label="States of the controller and the legal changes between them">\n',
        "<style>text{font:13px system-ui,sans-serif;fill:#1d2733;text-anchor:middle}.name{font-weight:600}"
        ".arrow{fill:none;stroke:#5b6b7d;stroke-width:1.5;marker-end:url(#tip)}.box{stroke:#5b6b7d}"
        ".badge{fill:#fff;stroke:#5b6b7d}.number{font-size:11px}.note{text-anchor:start;font-size:12px}"
        ".frame{fill:none;stroke:#9aa7b5;stroke-dasharray:6 4}</style>\n",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        'orient="auto"><path d="M0,0 L8,4 L0,8 z" fill="#5b6b7d"/></marker></defs>\n',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>\n',
        f'<rect class="frame" x="{left}" y="{top}" width="{right - left}" height="{bottom - top}" rx="12"/>\n',
    ]
    for end in ends:
        numbers = [number for (a, b), number in numbered.items() if b is end and a in FRAMED]
        parts += [_from_frame(end, numbers)]
    parts += [
        _arrow(edge, number)
        for edge, number in numbered.items()
        if not (edge[1] in ends and edge[0] in FRAMED)
    ]
    parts += [_box(state) for state in State]
    words = {
        "governor": "governor clocks",
        "lowered": "clocks may be lowered",
        "whole": "whole lives of their own",
    }
    for place, (kind, text) in enumerate(words.items()):
        x = 24 + 190 * place
        parts.append(
            f'<rect class="box" x="{x}" y="474" width="22" height="14" rx="3" fill="{COLOURS[kind]}"/>'
            f'<text class="note" x="{x + 30}" y="485">{text}</text>\n'
        )
    return "".join([*parts, "</svg>\n"])


def tables() -> dict[str, str]:
    """The page's made parts by name."""
    if set(LIVES) != set(State) or set(WHEN) != set(edges()):
        odd = [str(item) for item in set(WHEN) ^ set(edges())] + [
            str(item) for item in set(LIVES) ^ set(State)
        ]
        raise SystemExit(f"words and the transition table differ: {', '.join(sorted(odd))}")
    states = ["| state | clocks | policy `paper` | policy `eerl` |", "|---|---|---|---|"]
    for state in State:
        clocks = (
            "may be lowered" if state in HOLDING else ("the file's" if state is State.FIXED else "governor")
        )
        states.append(f"| `{state.name}` | {clocks} | {LIVES[state][0]} | {LIVES[state][1]} |")
    changes = ["| | from | to | when |", "|---|---|---|---|"]
    for number, edge in enumerate(edges(), 1):
        changes.append(f"| {number} | `{edge[0].name}` | `{edge[1].name}` | {WHEN[edge]} |")
    return {"states": "\n".join(states), "changes": "\n".join(changes)}


def page(text: str) -> str:
    """The page with its made parts replaced. Raises SystemExit when it lacks the marks of one."""
    for name, table in tables().items():
        begin, end = f"<!-- {name}: made by draw_states.py -->", f"<!-- /{name} -->"
        head, found, rest = text.partition(begin)
        _, closed, tail = rest.partition(end)
        if not found or not closed:
            raise SystemExit(f"{PAGE.name} needs the lines {begin} and {end}")
        text = f"{head}{begin}\n\n{table}\n\n{end}{tail}"
    return text


def main() -> int:
    """Write both, or with ``--check`` say which is not current; returns the exit code."""
    made = {PICTURE: svg(), PAGE: page(PAGE.read_text(encoding="utf-8"))}
    stale = [
        path for path, text in made.items() if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    if "--check" in sys.argv[1:]:
        for path in stale:
            print(f"{path.name} is not current: run controller/draw_states.py")
        return 1 if stale else 0
    for path in stale:
        path.write_text(made[path], encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
