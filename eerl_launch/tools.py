"""``eerl``: what is done beside a run. Each command loads only what it needs."""

from __future__ import annotations

from eerl_launch import own_modules  # noqa: F401 - before anything that a PYTHONPATH could replace

# isort: split
import errno
import json
import os
import sys
from pathlib import Path
from typing import Any

import click

from eerl_launch import __version__
from eerl_launch.errors import EerlError, OptionError
from eerl_launch.outlets import OUTLETS
from eerl_launch.profile_command import profile
from eerl_launch.replay_command import replay

_FOLDER = click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))


class _Group(click.Group):
    """An error of ours ends in one message and its exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except EerlError as error:
            click.echo(f"eerl: {error}", err=True)
            sys.exit(error.exit_code)
        except OSError as error:
            if error.filename is None and error.errno != errno.ENOSPC:
                raise  # a pipe that nobody reads any more is click's affair
            click.echo(
                f"eerl: {error.filename or 'standard output'}: {error.strerror}; what was asked is not there",
                err=True,
            )
            sys.exit(1)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="eerl")
def eerl() -> None:
    """Energy-efficient RL post-training: reports, replays, running jobs, and what works on this cluster."""


@eerl.command()
@_FOLDER
@click.option("--out", type=click.Path(path_type=Path), help="Where the files are written [default: DIR].")
@click.option(
    "--format",
    "formats",
    multiple=True,
    metavar="FORMAT",
    help="html, json, csv, txt, or, by an installed Chromium or Chrome, pdf or png; may be repeated.",
)
@click.option(
    "--to",
    "outlets",
    multiple=True,
    type=click.Choice(OUTLETS),
    help="Send the numbers on as well; may be repeated.",
)
@click.option(
    "--openmetrics-folder",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Where `--to openmetrics` writes eerl-RUN.prom [default: metrics.prom with the report].",
)
@click.option("--quiet", is_flag=True, help="Print the files' names only.")
def report(
    folder: Path,
    out: Path | None,
    formats: tuple[str, ...],
    outlets: tuple[str, ...],
    openmetrics_folder: Path | None,
    quiet: bool,
) -> None:
    """(Re)make the report from the ledger of the run in DIR."""
    from eerl_launch.report import write_report

    paths = write_report(folder, formats or None, out)
    for note in paths.notes:
        click.echo(f"eerl: {note}", err=True)
    if not quiet:
        click.echo(paths.summary)
    for path in paths.written():
        click.echo(str(path))
    if outlets and paths.report is not None:
        from eerl_launch.outlets.delivery import PATIENCE_S, deliver
        from eerl_launch.outlets.parcel import pack

        metrics = str(openmetrics_folder.absolute()) if openmetrics_folder else None
        where = (out or (folder.parent if folder.is_file() else folder)).absolute()
        sent = deliver(list(dict.fromkeys(outlets)), pack(paths.report, where, metrics), PATIENCE_S)
        for item in sent:
            click.echo(
                f"{item.name}: {item.text}" if item.delivered else f"eerl: {item.name}: {item.text}",
                err=not item.delivered,
            )
        sys.exit(0 if all(item.delivered for item in sent) else 1)


eerl.add_command(replay)
eerl.add_command(profile)


@eerl.command()
@click.argument("folders", metavar="DIR DIR...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--format", "form", type=click.Choice(("text", "json", "csv")), default="text", show_default=True
)
@click.option(
    "--picture",
    type=click.Path(path_type=Path),
    help="Write the predictor's errors there, as SVG, or with their table where it ends in .html.",
)
def compare(folders: tuple[Path, ...], form: str, picture: Path | None) -> None:
    """Compare controller runs with governor runs of the same job.

    A controller run is paired with the first governor run named after it; two or more governor runs also give
    the comparison at equal work. With governor runs only: how well token counts foretell them.
    """
    from eerl_launch.compare import compare as compare_runs
    from eerl_launch.compare_text import render_csv, render_text

    document = compare_runs(folders)
    if form == "json":
        click.echo(json.dumps(document, indent=1, allow_nan=False))
    else:
        click.echo(render_csv(document) if form == "csv" else render_text(document), nl=False)
    if picture is not None:
        from eerl_launch.compare_text import write_picture

        write_picture(document, picture)


@eerl.command()
@click.argument("study", type=click.Path(path_type=Path))
@click.option(
    "--out", type=click.Path(path_type=Path), help="Where the runs are kept [default: sweep-NAME here]."
)
@click.option(
    "--dry-run", is_flag=True, help="Print every run, its policy and the job script; start nothing."
)
@click.option("--local", is_flag=True, help="Run on this machine, or in this job, instead of submitting.")
@click.option("--simulate", metavar="SPEC", help="Simulated GPUs, e.g. h100:2x8; implies --local.")
@click.option("--time-scale", type=click.FloatRange(1.0, 1000.0), help="Virtual seconds per second.")
@click.option("--collect", "collecting", is_flag=True, help="Make the tables of the runs that are there.")
@click.option("--task", type=int, hidden=True, help="Run one allocation's share, inside the job array.")
def sweep(
    study: Path,
    out: Path | None,
    dry_run: bool,
    local: bool,
    simulate: str | None,
    time_scale: float | None,
    collecting: bool,
    task: int | None,
) -> None:
    """A headroom study: fixed clock pairs against the governor over matched seeds, as a Slurm job array.

    Given again, it runs what is missing or failed.
    """
    from eerl_launch.sweep import Sweep

    found = Sweep(study, out, simulate, time_scale)
    if dry_run:
        found.describe(click.echo)
    elif collecting:
        sys.exit(found.collect(click.echo))
    elif task is not None:
        sys.exit(found.run_task(task))
    elif local or simulate:
        sys.exit(found.run_here())
    else:
        found.submit(click.echo)


def _operate(folder: Path, operation: str, as_json: bool) -> None:
    from eerl_launch.control import ask, describe

    reply = ask(folder, operation)
    click.echo(json.dumps(reply, indent=1) if as_json else describe(reply))


@eerl.command()
@_FOLDER
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def status(folder: Path, as_json: bool) -> None:
    """What the controller of the running job in DIR does."""
    _operate(folder, "status", as_json)


@eerl.command()
@_FOLDER
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def hold(folder: Path, as_json: bool) -> None:
    """Hand the clocks of the running job in DIR to the governor until `eerl resume`."""
    _operate(folder, "hold", as_json)


@eerl.command()
@_FOLDER
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def resume(folder: Path, as_json: bool) -> None:
    """Let the controller of the running job in DIR set clocks again."""
    _operate(folder, "resume", as_json)


@eerl.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--adapter",
    metavar="auto|NAME",
    help="Look at the trainer's Python instead: which of its frameworks' names the adapters would hook.",
)
@click.option("--python", help="The trainer's interpreter [default: the first on the path].")
def doctor(as_json: bool, adapter: str | None, python: str | None) -> None:
    """What works on this allocation (or this machine), and what would mend the rest; exit 1 when something fails."""
    from eerl_launch.doctor import examine_all, to_json, to_text, worst

    if adapter is None:
        found = examine_all(os.environ)
    else:
        from eerl_launch.adapter_folder import CHOICES
        from eerl_launch.doctor_adapter import check_adapter

        allowed = [choice for choice in CHOICES if choice != "none"]
        if adapter not in allowed:
            raise OptionError(f"--adapter {adapter}: no such adapter; allowed are {', '.join(allowed)}")
        found = list(check_adapter(adapter, python, os.environ))
    click.echo(json.dumps(to_json(found), indent=1) if as_json else to_text(found))
    sys.exit(1 if worst(found) == "fail" else 0)


@eerl.command("policy-check")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the policy as resolved.")
def policy_check(file: Path, as_json: bool) -> None:
    """Check a policy file as eerl-run would; exit 2 with every fault when it cannot be used."""
    from eerl_launch.policy import load_policy

    policy = load_policy(file)
    click.echo(
        json.dumps(policy.to_dict(), indent=1)
        if as_json
        else f"{file}: fine ({policy.policy}, {policy.mode})"
    )


def main() -> None:
    """Entry point of ``eerl``."""
    eerl(prog_name="eerl")
