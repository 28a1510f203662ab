"""A picture of the evidence with the table of its numbers, as one page that opens without a network."""

from __future__ import annotations

from pathlib import Path

from eerl_launch.evidence.figures import Picture, draw

TEMPLATES = Path(__file__).parent / "templates"


def render_page(picture: Picture) -> str:
    """The page as text: a row of the table for each row of bars, a column for each of theirs."""
    from markupsafe import Markup

    from eerl_launch.report import units
    from eerl_launch.report.html import TEMPLATES as REPORT_TEMPLATES
    from eerl_launch.report.html import page_environment

    groups = [
        (
            head,
            [
                [
                    row.name,
                    *(
                        units.UNKNOWN if bar is None else column.whole_words(bar)
                        for column, bar in zip(picture.columns, row.bars, strict=True)
                    ),
                ]
                for row in rows
            ],
        )
        for head, rows in picture.groups
    ]
    template = page_environment(TEMPLATES).get_template("picture.html.j2")
    return template.render(
        picture=picture,
        drawing=Markup(draw(picture)),
        groups=groups,
        style=Markup((REPORT_TEMPLATES / "report.css").read_text(encoding="utf-8")),
    )
