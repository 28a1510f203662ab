"""``eerl-run [options] [--] CMD ARG…``: options → a prepared run; an error of ours → exit 2 before CMD starts."""

from __future__ import annotations

from eerl_launch import own_modules  # noqa: F401 - before anything that a PYTHONPATH could replace

# isort: split
import os
import sys
from dataclasses import replace
from pathlib import Path

import click

from eerl_launch import __version__, launch
from eerl_launch.adapter_folder import CHOICES
from eerl_launch.errors import EerlError, OptionError
from eerl_launch.policy import load_policy
from eerl_launch.preparation import Options, RefusedError, describe, prepare
from eerl_launch.telling import say

MODES = ("auto", "colocated_sync", "disaggregated_sync", "async_drained", "async_inflight")


@click.command(
    context_settings={"allow_interspersed_args": False, "ignore_unknown_options": False},
    options_metavar="[OPTIONS] [--]",
)
@click.option("--policy", "policy_file", type=click.Path(path_type=Path), help="Policy file (YAML).")
@click.option("--mode", type=click.Choice(MODES), help="How generation and training share the GPUs.")
@click.option("--simulate", metavar="SPEC", help="Simulated GPUs instead of real ones, e.g. h100:2x8.")
@click.option(
    "--time-scale",
    type=click.FloatRange(1.0, 1000.0),
    default=1.0,
    show_default=True,
    help="Virtual seconds per second; with --simulate only.",
)
@click.option("--dry-run", is_flag=True, help="Print what would be done; start nothing.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Where the run folder is made [default: the submit directory].",
)
@click.option(
    "--adapter",
    default="auto",
    show_default=True,
    metavar="auto|none|NAME",
    help=f"Framework adapter: {', '.join(CHOICES)}. auto: whichever framework the command imports.",
)
@click.version_option(__version__, prog_name="eerl-run")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, required=True, metavar="CMD [ARG]...")
def eerl_run(
    policy_file: Path | None,
    mode: str | None,
    simulate: str | None,
    time_scale: float,
    dry_run: bool,
    out: Path | None,
    adapter: str,
    command: tuple[str, ...],
) -> None:
    """Run CMD, an RL post-training job, with less GPU energy per valid training token.

    CMD's exit code is eerl-run's exit code; its output, input, arguments and signals are untouched.
    """
    try:
        if adapter not in CHOICES:
            raise OptionError(f"--adapter {adapter}: no such adapter; allowed are {', '.join(CHOICES)}")
        if time_scale != 1.0 and not simulate:
            raise OptionError("--time-scale works with --simulate only: real GPUs keep their own time")
        policy = load_policy(policy_file)
        if mode is not None:
            policy = replace(policy, mode=mode)
        options = Options(
            command=command,
            policy=policy,
            policy_file=policy_file,
            simulate=simulate,
            time_scale=time_scale,
            out=out,
            adapter=adapter,
        )
        if dry_run:
            click.echo(describe(options, os.environ))
            sys.exit(0)
    except EerlError as error:
        say(str(error))
        sys.exit(error.exit_code)
    sys.exit(_run(options))


def _run(options: Options) -> int:
    """Prepare and run; whatever fails from here on, the command runs."""
    launch.reserve_standard_descriptors()
    try:
        prepared = prepare(options, os.environ)
    except OptionError as error:
        say(str(error))
        return error.exit_code
    except RefusedError as refusal:
        if str(refusal):
            say(str(refusal))
        return launch.run(options.command, os.environ, None)
    except Exception as error:
        say(f"cannot prepare the measurement ({error!r}); the command runs without eerl")
        return launch.run(options.command, os.environ, None)
    return launch.run(options.command, prepared.environment, prepared.config, prepared.pass_fds)


def main() -> None:
    """Entry point of ``eerl-run``."""
    eerl_run(prog_name="eerl-run")
