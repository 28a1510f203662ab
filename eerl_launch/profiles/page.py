"""The profiles as one page that opens without a network: every picture with its table below it."""

from __future__ import annotations

from pathlib import Path

from markupsafe import Markup

from eerl_launch.profiles import pictures
from eerl_launch.profiles.document import Profiles
from eerl_launch.profiles.side_by_side import comparison_tables, reward_table
from eerl_launch.profiles.tables import lengths_table, signature_table, waiting_tables
from eerl_launch.report.html import TEMPLATES as REPORT_TEMPLATES
from eerl_launch.report.html import page_environment

TEMPLATES = Path(__file__).parent / "templates"
#: GPUs of a run shown on the page; JSON and CSV have them all.
SHOWN_GPUS = 64


def render_page(found: Profiles) -> str:
    """The page as text."""
    document = found.document
    environment = page_environment(TEMPLATES)
    drawn = pictures.signatures(document["runs"])
    runs = [
        {
            "profile": profile,
            "signature": signature_table(profile),
            "picture": Markup(drawn[place]) if drawn else None,
            "lengths": lengths_table(profile),
            "lengths_picture": _markup(pictures.lengths(found.runs[place])),
            "waiting": waiting_tables(profile, SHOWN_GPUS),
            "waiting_picture": _markup(pictures.waiting(profile)),
        }
        for place, profile in enumerate(document["runs"])
    ]
    style = (REPORT_TEMPLATES / "report.css").read_text(encoding="utf-8")
    style += (TEMPLATES / "profile.css").read_text(encoding="utf-8")
    return environment.get_template("profile.html.j2").render(
        document=document,
        runs=runs,
        reward=reward_table(document["runs"]),
        comparison=comparison_tables(document["comparison"]) if document["comparison"] else [],
        stacks=_stacks(found) if document["comparison"] else [],
        legend=pictures.legend(document["runs"]),
        style=Markup(style),
    )


def _markup(svg: str | None) -> Markup | None:
    return None if svg is None else Markup(svg)


def _stacks(found: Profiles) -> list[Markup]:
    runs = found.document["runs"]
    drawn = (
        pictures.stacks(runs, "energy_j_per_valid_token", "J per valid training token, by phase"),
        pictures.stacks(
            runs, "gpu_s_per_million_valid_tokens", "GPU seconds per million valid tokens, by phase"
        ),
    )
    return [Markup(svg) for svg in drawn if svg is not None]
