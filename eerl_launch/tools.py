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


@eerl.command()
@_FOLDER
@click.option(
    "--policy",
    "policy_file",
    type=click.Path(path_type=Path),
    help="Try this policy instead of the recorded one.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def replay(folder: Path, policy_file: Path | None, as_json: bool) -> None:
    """Feed the records of DIR to the controller again; exit 1 at the first plan that differs.

    With --policy: the plans that policy would have made of these records, which were measured under the
    recorded clocks.
    """
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")  # sums in one order, so that plans are the same bit for bit
    from eerl_launch.ledger import read_events
    from eerl_launch.policy import load_policy
    from eerl_launch.replay import replay as replay_events

    changes = load_policy(policy_file).controller_settings() if policy_file is not None else None
    result = replay_events(read_events(folder), changes)
    if as_json:
        plans = [{"after_update": after, **plan} for after, plan in result.plans]
        document = {
            "updates": result.updates,
            "passed_over": result.passed_over,
            "difference": result.difference,
            "plans": plans,
        }
        click.echo(json.dumps(document, indent=1))
    elif changes is not None:
        for after, plan in result.plans:
            clocks = [f"{plan[key] or 'governor'}" for key in ("generation_mhz", "training_mhz")]
            when = "at the start" if after is None else f"after update {after}"
            click.echo(
                f"{when:<18} {plan['state'].lower():<13} generation {clocks[0]:>8}, training {clocks[1]:>8}"
                f"  {plan['reason'].lower()}"
            )
        click.echo(
            f"{result.updates} updates replayed under {policy_file}; measured under the recorded clocks"
        )
    elif result.difference is None:
        click.echo(f"{result.updates} updates replayed, {len(result.plans)} plans, all as recorded")
    if result.difference is not None:
        click.echo(f"eerl: the plans differ: {result.difference}", err=True)
        click.echo("eerl: equal plans need the library versions in the ledger's first line", err=True)
        sys.exit(1)


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
