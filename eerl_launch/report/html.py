"""One self-contained page from the document and the figures: autoescaped, no script, no network."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from eerl_launch.report import units, words
from eerl_launch.report.document import Report
from eerl_launch.report.plots import figures

TEMPLATES = Path(__file__).parent / "templates"

#: Rows of the update and event tables in the page; the CSV files and report.json have them all.
SHOWN_ROWS = 400


def render_html(report: Report) -> str:
    """The page as text."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(units=units, words=words)
    drawn = [(figure.title, Markup(figure.svg), figure.caption) for figure in figures(report)]
    return environment.get_template("report.html.j2").render(
        document=report.document,
        run=report.document["run"],
        total=report.document["allocation"],
        result=report.document["result"],
        figures=drawn,
        most_gpu_j=max((gpu["energy_j"] or 0.0 for gpu in report.document["gpus"]), default=0.0),
        updates=report.run.updates[:SHOWN_ROWS],
        predictions=report.estimate.predictions,
        style=Markup((TEMPLATES / "report.css").read_text(encoding="utf-8")),
    )
