"""Self-contained pages from the document and the figures: autoescaped, nothing from the network, no script but ours.

The script is let in by its hash (Content Security Policy level 2), so that nothing else on the page can run.
"""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from eerl_launch.report import plots, standout_words, units, words
from eerl_launch.report.document import Report
from eerl_launch.report.figure import Figure
from eerl_launch.report.gpu_map import gpu_map
from eerl_launch.report.page_data import page_data
from eerl_launch.report.phase_power import power
from eerl_launch.report.shown import plain

TEMPLATES = Path(__file__).parent / "templates"
_SCRIPTS = ("zoom.js", "reading.js")

#: Rows of the update and event tables in the page; the CSV files and report.json have them all.
SHOWN_ROWS = 400
#: Statements on the measurement in the summary, worst first; more would not leave it one page.
SUMMARY_STATEMENTS = 5


def page_environment(templates: Path) -> Environment:
    """What renders templates of this folder: all they show is escaped and plain, and what is missing raises."""
    return Environment(
        loader=FileSystemLoader(templates),
        autoescape=True,
        finalize=plain,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def figures(report: Report) -> list[Figure]:
    """The figures that this run has data for."""
    drawn = (plots.clocks, plots.energy, plots.throughput, power, gpu_map)
    return [figure for draw in drawn if (figure := draw(report)) is not None]


def render_html(report: Report) -> str:
    """The report as one page."""
    drawn = figures(report)
    data = page_data(report.run, drawn)
    script = _script() if data is not None else ""
    return _render(
        "report.html.j2",
        report,
        figures=drawn,
        data=Markup(data or ""),
        script=Markup(script),
        script_hash=b64encode(sha256(script.encode()).digest()).decode(),
        most_gpu_j=max((gpu["energy_j"] or 0.0 for gpu in report.document["gpus"]), default=0.0),
        updates=report.run.updates[:SHOWN_ROWS],
        predictions=report.estimate.predictions,
    )


def render_summary_page(report: Report) -> str:
    """The run on one printed page, to hand on."""
    drawn = [figure for draw in (plots.energy, power) if (figure := draw(report)) is not None]
    return _render("summary.html.j2", report, figures=drawn, shown_statements=SUMMARY_STATEMENTS)


def _render(template: str, report: Report, **values: Any) -> str:
    environment = page_environment(TEMPLATES)
    environment.globals.update(units=units, words=words, standout_words=standout_words, drawing=Markup)
    return environment.get_template(template).render(
        document=report.document,
        run=report.document["run"],
        total=report.document["allocation"],
        result=report.document["result"],
        style=Markup((TEMPLATES / "report.css").read_text(encoding="utf-8")),
        **values,
    )


def _script() -> str:
    parts = [(TEMPLATES / name).read_text(encoding="utf-8") for name in _SCRIPTS]
    return '(() => {\n"use strict";\n' + "\n".join(parts) + "})();\n"
