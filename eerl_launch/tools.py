"""``eerl``: what is done beside a run. Each command loads only what it needs."""

from __future__ import annotations

from eerl_launch import own_modules  # noqa: F401 - before anything that a PYTHONPATH could replace

# isort: split
import json
import os
import sys
from pathlib import Path
from typing import Any

import click

from eerl_launch import __version__
from eerl_launch.errors import EerlError, OptionError
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


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="eerl")
def eerl() -> None:
    """Energy-efficient RL post-training: reports, replays, running jobs, and what works on this cluster."""


@eerl.command()
@_FOLDER
@click.option("--out", type=click.Path(path_type=Path), help="Where the files are written [default: DIR].")
@click.option(
    "--format", "formats", multiple=True, metavar="FORMAT", help="html, json, csv or txt; may be repeated."
)
@click.option("--quiet", is_flag=True, help="Print the files' names only.")
def report(folder: Path, out: Path | None, formats: tuple[str, ...], quiet: bool) -> None:
    """(Re)make the report from the ledger of the run in DIR."""
    from eerl_launch.report import write_report

    paths = write_report(folder, formats or None, out)
    for note in paths.notes:
        click.echo(f"eerl: {note}", err=True)
    if not quiet:
        click.echo(paths.summary)
    files = (paths.html, paths.json, paths.txt, paths.updates_csv, paths.phases_csv, paths.gpus_csv)
    for path in files:
        if path is not None:
            click.echo(str(path))


eerl.add_command(replay)


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
