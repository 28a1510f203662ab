"""``eerl profile``: what phases, responses and rewards of runs take, as text, JSON, CSV and one offline page."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from eerl_launch.errors import OptionError
from eerl_launch.whole_file import write_asked

_CLOCKS = ("all", "governor", "lowered")


@click.command()
@click.argument("folders", metavar="DIR...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--label",
    "labels",
    multiple=True,
    metavar="[RUN:]AXIS=VALUE",
    help="What a run is along an axis (model, algorithm, reward, task, …) where its trainer does not say; RUN is "
    "the folder's name or its place.",
)
@click.option(
    "--clocks", type=click.Choice(_CLOCKS), default="all", show_default=True, help="Which updates count."
)
@click.option(
    "--skip", type=click.IntRange(0), default=0, metavar="N", help="Leave out each run's first N updates."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--csv", "csv_folder", type=click.Path(path_type=Path), help="Write the tables as CSV there.")
@click.option("--html", "page", type=click.Path(path_type=Path), help="Write one page that opens offline.")
def profile(
    folders: tuple[Path, ...],
    labels: tuple[str, ...],
    clocks: str,
    skip: int,
    as_json: bool,
    csv_folder: Path | None,
    page: Path | None,
) -> None:
    """Profiles of the runs in DIR…: phase signatures, response lengths and who waits for them, reward cost.

    With several runs also side by side, with the axes in which they differ. Exit 1 when a ledger could not be used.
    """
    from eerl_launch.profiles.document import profile as make

    found = make(folders, labels, clocks, skip)
    if as_json:
        click.echo(json.dumps(found.document, indent=1, ensure_ascii=False, allow_nan=False))
    else:
        from eerl_launch.profiles.text import render_text

        click.echo(render_text(found.document), nl=False)
    if csv_folder is not None:
        from eerl_launch.profiles.spreadsheets import write_tables

        try:
            write_tables(found.document, csv_folder)
        except OSError as error:
            raise OptionError(f"--csv {error.filename}: cannot be written ({error.strerror})") from error
    if page is not None:
        from eerl_launch.profiles.page import render_page

        write_asked("--html", page, render_page(found))
    for row in found.document["copies"]:
        click.echo(f"eerl: counted once: {row['reason']}", err=True)
    for row in found.document["unreadable"]:
        click.echo(f"eerl: not shown: {row['reason']}", err=True)
    if found.document["unreadable"]:
        sys.exit(1)
