"""Errors that end in one message and an exit code."""

from __future__ import annotations


class EerlError(Exception):
    """Something the user can mend; the text names what was seen and the cure."""

    exit_code = 1


class PolicyError(EerlError):
    """The policy file cannot be used; the RL command is not started (exit 2)."""

    exit_code = 2


class OptionError(EerlError):
    """An option of eerl-run cannot be used; the RL command is not started (exit 2)."""

    exit_code = 2


class LedgerError(EerlError):
    """A ledger that cannot be read; the text names file and line."""
