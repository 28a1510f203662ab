"""Writes the report files of a run folder, each whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from eerl_launch.errors import EerlError, OptionError
from eerl_launch.report.document import SCHEMA, Report, make_report
from eerl_launch.report.heap import collections_paused
from eerl_launch.report.pages import REPORT, SUMMARY, Pages
from eerl_launch.report.spreadsheets import (
    GPU_COLUMNS,
    PHASE_COLUMNS,
    UPDATE_COLUMNS,
    gpus_csv,
    phases_csv,
    updates_csv,
)
from eerl_launch.report.tables import read_run
from eerl_launch.report.text import SIGNATURE, render_summary, render_text
from eerl_launch.whole_file import write_whole

FORMATS = ("html", "json", "csv", "txt")
#: Formats that need a browser: only when asked for by name, never at the end of a job.
PRINTED_FORMATS = ("pdf", "png")


#: Bytes at both ends of a file in which it says whose it is.
_LOOKED_AT = 4096


class ReportError(EerlError):
    """No report file could be written; the text names file and cause."""


@dataclass(slots=True)
class ReportPaths:
    """Where the files are (None: not asked for, or see ``notes``), the report in a few lines, and all of it."""

    html: Path | None = None
    json: Path | None = None
    txt: Path | None = None
    updates_csv: Path | None = None
    phases_csv: Path | None = None
    gpus_csv: Path | None = None
    summary_html: Path | None = None
    pdf: Path | None = None
    summary_pdf: Path | None = None
    png: Path | None = None
    summary_png: Path | None = None
    summary: str = ""
    complete: bool = False
    notes: list[str] = field(default_factory=list)
    report: Report | None = None

    def written(self) -> list[Path]:
        """Every file that was written, the pages first."""
        pages = [self.html, self.summary_html, self.pdf, self.summary_pdf, self.png, self.summary_png]
        found = [*pages, self.json, self.txt, self.updates_csv, self.phases_csv, self.gpus_csv]
        return [path for path in found if path is not None]


@dataclass(frozen=True, slots=True)
class _File:
    """One file: its field in :class:`ReportPaths`, its name, how it is made, how ours is recognised."""

    key: str
    name: str
    format: str
    make: Callable[[Pages], str | bytes]
    signature: str


def _json(pages: Pages) -> str:
    return json.dumps(pages.report.document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


_PAGE_MARK = '<meta name="generator" content="eerl">'
_PDF_MARK, _PNG_MARK = "%%EOF\n%eerl", "tEXtSoftware\0eerl"
_FILES = (
    _File("json", "report.json", "json", _json, f'"schema": "{SCHEMA}"'),
    _File("txt", "report.txt", "txt", lambda pages: render_text(pages.report.document), SIGNATURE),
    _File(
        "updates_csv",
        "updates.csv",
        "csv",
        lambda pages: updates_csv(pages.report),
        ",".join(UPDATE_COLUMNS[:6]),
    ),
    _File(
        "phases_csv", "phases.csv", "csv", lambda pages: phases_csv(pages.report), ",".join(PHASE_COLUMNS[:6])
    ),
    _File("gpus_csv", "gpus.csv", "csv", lambda pages: gpus_csv(pages.report), ",".join(GPU_COLUMNS[:6])),
    _File("html", "report.html", "html", lambda pages: pages.html(REPORT), _PAGE_MARK),
    _File("summary_html", "summary.html", "html", lambda pages: pages.html(SUMMARY), _PAGE_MARK),
    _File("pdf", "report.pdf", "pdf", lambda pages: pages.pdf(REPORT), _PDF_MARK),
    _File("summary_pdf", "summary.pdf", "pdf", lambda pages: pages.pdf(SUMMARY), _PDF_MARK),
    _File("png", "report.png", "png", lambda pages: pages.png(REPORT), _PNG_MARK),
    _File("summary_png", "summary.png", "png", lambda pages: pages.png(SUMMARY), _PNG_MARK),
)


def write_report(folder: Path, formats: Sequence[str] | None = None, out: Path | None = None) -> ReportPaths:
    """The report of the ledger in ``folder`` is in ``out`` (default: ``folder``; made if need be), in ``formats``
    (default: those of the run's policy, else all).

    A file of the same name that eerl did not write is left alone; ours goes beside it and ``notes`` says so.
    Raises :class:`LedgerError` without a ledger, :class:`OptionError` for an unknown format and
    :class:`ReportError` when not one file could be written.
    """
    with collections_paused():
        return _write_report(folder, formats, out)


def _write_report(folder: Path, formats: Sequence[str] | None, out: Path | None) -> ReportPaths:
    report = make_report(read_run(folder))
    wanted = _formats(formats, report)
    target = out or (folder.parent if folder.is_file() else folder)
    paths = ReportPaths(
        summary=render_summary(report.document), complete=report.document["complete"], report=report
    )
    failures = []
    if out is not None:
        with suppress(OSError):  # the files say it
            out.mkdir(parents=True, exist_ok=True)
    with Pages(report) as pages:
        for file in _FILES:
            if file.format not in wanted:
                continue
            try:
                setattr(paths, file.key, _write(target, file, file.make(pages), paths.notes))
            except OSError as error:
                failures.append(f"{target / file.name}: {error.strerror or error}")
            except EerlError as error:
                failures.append(f"{file.name}: {error}")
    if failures and len(failures) == sum(file.format in wanted for file in _FILES):
        cure = "" if set(wanted) <= set(PRINTED_FORMATS) else "; choose another folder for it"
        raise ReportError(f"no report file could be written ({failures[0]}){cure}")
    paths.notes += [f"not written: {failure}" for failure in failures]
    return paths


def _formats(formats: Sequence[str] | None, report: Report) -> Sequence[str]:
    if formats is not None:
        possible = (*FORMATS, *PRINTED_FORMATS)
        unknown = [name for name in formats if name not in possible]
        if unknown:
            raise OptionError(f"unknown report format {unknown[0]!r}; known are {', '.join(possible)}")
        return formats
    asked = report.run.policy.get("report")
    listed = asked.get("formats") if isinstance(asked, dict) else None
    known = [str(name) for name in listed if name in FORMATS] if isinstance(listed, (list, tuple)) else []
    return known or FORMATS


def _write(target: Path, file: _File, content: str | bytes, notes: list[str]) -> Path:
    path = _free_or_ours(target, file)
    if path.name != file.name:
        notes.append(f"{target / file.name} is not eerl's and was left alone; the report is in {path.name}")
    write_whole(path, content)
    return path


def _free_or_ours(target: Path, file: _File) -> Path:
    stem, dot, suffix = file.name.partition(".")
    for attempt in range(100):
        path = target / (file.name if attempt == 0 else f"{stem}-{attempt}{dot}{suffix}")
        if not os.path.lexists(path):
            return path
        # A link may lead anywhere, so it is never taken for ours.
        if path.is_file() and not path.is_symlink():
            with path.open("rb") as handle:
                head = handle.read(_LOOKED_AT)
                handle.seek(max(0, path.stat().st_size - _LOOKED_AT))
                if file.signature.encode() in head + handle.read():
                    return path
    raise OSError(f"{target} holds a hundred files named like {file.name}")
