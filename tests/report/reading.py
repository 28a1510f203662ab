"""How the tests read report files back: strictly."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any


def strict(path: Path) -> dict[str, Any]:
    """The JSON file, refusing NaN and infinities."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} in {path}")

    found = json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)
    assert isinstance(found, dict)
    return found


def table(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file, every row with as many cells as the header."""
    rows = list(csv.reader(path.open(encoding="utf-8", newline="")))
    assert {len(row) for row in rows} == {len(rows[0])}
    return [dict(zip(rows[0], row, strict=True)) for row in rows[1:]]
