"""A policy chosen on the command line: by name, with settings in the policy file's own words, or as a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eerl_launch.errors import OptionError

#: Keys of the policy file that change what a controller decides, and the settings they stand for.
SETTING_OF = {
    "max_throughput_loss": "max_throughput_loss",
    "clocks.min_mhz": "min_mhz",
    "clocks.max_mhz": "max_mhz",
    "clocks.idle_mhz": "idle_mhz",
    "fixed.generation_mhz": "fixed_generation_mhz",
    "fixed.training_mhz": "fixed_training_mhz",
}


def chosen_settings(policy: str | None, assignments: Sequence[str] = ()) -> dict[str, Any] | None:
    """Settings to change, by name; None when nothing was chosen.

    ``policy`` is a policy's name or a policy file; ``assignments`` are ``key=value`` as in the file, with dots for
    its sections. Raises OptionError or PolicyError naming what was seen and what is allowed.
    """
    from eerl_launch.policy import load_policy
    from eerl_launch.policy_file import parse_policy
    from eerl_launch.policy_values import POLICIES

    if policy is None and not assignments:
        return None
    if policy is not None and policy not in POLICIES:
        if not Path(policy).is_file():
            raise OptionError(f"--policy {policy}: neither a policy ({', '.join(POLICIES)}) nor a file")
        if assignments:
            raise OptionError("--set goes with a policy's name; in a policy file, change the file")
        return load_policy(policy).controller_settings()
    sections: dict[str, list[str]] = {}
    for text in assignments:
        key, equals, value = text.partition("=")
        if not equals or key not in SETTING_OF or not value.isprintable():
            raise OptionError(f"--set {text}: allowed is key=value with {', '.join(SETTING_OF)}")
        section, _, name = key.rpartition(".")
        sections.setdefault(section, []).append(f"{'  ' if section else ''}{name}: {value}")
    lines = [f"policy: {policy}"] if policy is not None else []
    lines += sections.pop("", [])
    for section, entries in sections.items():
        lines += [f"{section}:", *entries]
    values = parse_policy("\n".join(lines) + "\n", "--set").controller_settings()
    wanted = [SETTING_OF[text.partition("=")[0]] for text in assignments]
    return {name: values[name] for name in [*(["policy"] if policy is not None else []), *wanted]}
