"""``eerl replay``: a recorded run through a policy again, or a modelled workload."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import click

from eerl_launch.errors import OptionError


@click.command()
@click.argument("folder", metavar="[DIR]", type=click.Path(path_type=Path), required=False)
@click.option(
    "--policy", metavar="NAME|FILE", help="Another policy: paper, eerl, fixed, governor, or a policy file."
)
@click.option(
    "--set",
    "assignments",
    metavar="KEY=VALUE",
    multiple=True,
    help="A setting as in the policy file, e.g. max_throughput_loss=1% or fixed.training_mhz=1200.",
)
@click.option(
    "--twin", metavar="NAME", help="A modelled workload in virtual time instead of DIR; `list` names them."
)
@click.option(
    "--updates", type=click.IntRange(1, 100_000), default=300, show_default=True, help="With --twin."
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="With --twin.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def replay(
    folder: Path | None,
    policy: str | None,
    assignments: tuple[str, ...],
    twin: str | None,
    updates: int,
    seed: int,
    as_json: bool,
) -> None:
    """Feed the records of DIR to the controller again; exit 1 at the first plan that differs.

    With --policy or --set: the plans that policy would have made, and an estimate of the outcome. With --twin: a
    simulated run.
    """
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")  # sums in one order, so that plans are the same bit for bit
    from eerl_launch.policy_choice import chosen_settings

    if (folder is None) == (twin is None):
        raise OptionError("give a run folder or --twin NAME, one of them")
    changes = chosen_settings(policy, assignments)
    if twin is not None:
        _modelled(twin, changes or {}, updates, seed, as_json=as_json)
    elif folder is not None and changes is not None:
        _what_if(folder, policy or "as set", changes, as_json=as_json)
    elif folder is not None:
        _same(folder, as_json=as_json)


def _print(document: dict[str, Any], lines: list[str], *, as_json: bool) -> None:
    click.echo(json.dumps(document, indent=1) if as_json else "\n".join(lines))


def _modelled(name: str, changes: dict[str, Any], updates: int, seed: int, *, as_json: bool) -> None:
    from eerl_launch.modelled_run import modelled, names
    from eerl_launch.replay_words import modelled_document, modelled_lines

    if name == "list":
        _print({"twins": names()}, names(), as_json=as_json)
        return
    made = modelled(name, changes, updates, seed)
    _print(modelled_document(made), modelled_lines(made), as_json=as_json)


def _what_if(folder: Path, policy: str, changes: dict[str, Any], *, as_json: bool) -> None:
    from eerl_launch.ledger import read_events
    from eerl_launch.replay_words import what_if_document, what_if_lines
    from eerl_launch.what_if import what_if

    result = what_if(read_events(folder), changes)
    _print(what_if_document(result, policy), what_if_lines(result, policy), as_json=as_json)


def _same(folder: Path, *, as_json: bool) -> None:
    from eerl_launch.ledger import read_events
    from eerl_launch.replay import replay as replay_events

    result = replay_events(read_events(folder))
    document = {
        "updates": result.updates,
        "passed_over": result.passed_over,
        "difference": result.difference,
        "plans": [{"after_update": after, **plan} for after, plan in result.plans],
    }
    lines = [f"{result.updates} updates replayed, {len(result.plans)} plans, all as recorded"]
    if as_json or result.difference is None:
        _print(document, lines, as_json=as_json)
    if result.difference is not None:
        click.echo(f"eerl: the plans differ: {result.difference}", err=True)
        click.echo("eerl: equal plans need the library versions in the ledger's first line", err=True)
        sys.exit(1)
