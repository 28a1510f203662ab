"""Reports to send on, made of small ledgers."""

from __future__ import annotations

import os
from pathlib import Path

from report.ledgers import RunSpec, write_run

from eerl_launch.outlets.parcel import Parcel, pack
from eerl_launch.report.document import Report, make_report
from eerl_launch.report.tables import read_run


def report_of(folder: Path, spec: RunSpec | None = None) -> Report:
    """The report of a run like ``spec``, whose ledger is in ``folder``."""
    return make_report(read_run(write_run(folder, spec or RunSpec())))


def parcel_of(folder: Path, spec: RunSpec | None = None) -> Parcel:
    """The same, ready to be sent."""
    return pack(report_of(folder, spec), folder)


def fake_scontrol(folder: Path, script: str) -> str:
    """A PATH on which ``scontrol`` is this shell script."""
    folder.mkdir(exist_ok=True)
    program = folder / "scontrol"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"
