"""The policy file: YAML in; one frozen Policy out, or one error listing every fault with its line."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from eerl_launch import policy_values as values
from eerl_launch.errors import PolicyError
from eerl_launch.outlets import OUTLETS
from eerl_launch.policy import FORMATS, SECTIONS, Fixed, Policy
from eerl_launch.policy_values import MODES, NULLS, POLICIES, BadValueError, Parser, seen
from eerl_launch.yaml_file import compose, read_text

_WHAT = "policy file"

_SCHEMA: Mapping[str, Parser | Mapping[str, Parser]] = {
    "policy": values.choice(*POLICIES),
    "mode": values.choice(*MODES),
    "max_throughput_loss": values.loss,
    "total_updates": values.whole("auto, or a whole number of updates above 0", 1, 10**9, ("auto",)),
    "warm_start": values.choice("off", "auto"),
    "clocks": {
        "min_mhz": values.clock("auto"),
        "max_mhz": values.clock("auto"),
        "idle_mhz": values.clock(*NULLS),
    },
    "pools": {"generation": values.gpus, "training": values.gpus},
    "fixed": {
        "generation_mhz": values.clock("governor", "auto", *NULLS),
        "training_mhz": values.clock("governor", "auto", *NULLS),
    },
    "report": {
        "price_per_kwh": values.real("a price of 0 or more, such as 0.12, or null", 0.0, NULLS),
        "currency": values.currency,
        "carbon_g_per_kwh": values.real("grams of CO2 of 0 or more, such as 380, or null", 0.0, NULLS),
        "pue": values.real("power usage effectiveness of 1 or more, such as 1.2", 1.0),
        "formats": values.several(FORMATS, least=1),
        "to": values.several(OUTLETS, least=0),
        "openmetrics_folder": values.folder,
    },
}


class _Reader:
    """Walks the nodes once and keeps every fault with its line."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.faults: list[str] = []

    def fault(self, line: int, text: str) -> None:
        self.faults.append(f"{self.name}:{line}: {text}")

    def entries(
        self, node: yaml.MappingNode, valid: Mapping[str, Any], prefix: str
    ) -> Iterator[tuple[str, yaml.Node]]:
        """Known keys once each; unknown and repeated ones become faults."""
        first: dict[str, int] = {}
        for key_node, value in node.value:
            line = key_node.start_mark.line + 1
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) else seen(key_node)
            key = key if len(key) <= 40 and key.isprintable() else repr(key[:40])
            if key in first:
                self.fault(line, f"{prefix}{key}: given twice (first at line {first[key]}); keep one")
                continue
            first[key] = line
            if key not in valid:
                self.fault(line, self._unknown(key, valid, prefix))
                continue
            yield key, value

    @staticmethod
    def _unknown(key: str, valid: Mapping[str, Any], prefix: str) -> str:
        elsewhere = [
            *_SCHEMA,
            *(
                f"{name}.{inner}"
                for name, keys in _SCHEMA.items()
                if isinstance(keys, dict)
                for inner in keys
            ),
        ]
        # A good match here, else a good one elsewhere in the file, else the best that can be offered here.
        near = (
            difflib.get_close_matches(key, valid, 1)
            or difflib.get_close_matches(key, elsewhere, 1)
            or difflib.get_close_matches(key, valid, 1, 0.3)
        )
        hint = f"; nearest valid key: {near[0]}" if near else ""
        return f"{prefix}{key}: unknown key{hint}; allowed here: {', '.join(valid)}"

    def section(
        self, node: yaml.MappingNode, valid: Mapping[str, Any], lines: dict[str, int], prefix: str = ""
    ) -> dict[str, Any]:
        """The values of one mapping; ``lines`` receives the line of each key by dotted name."""
        result: dict[str, Any] = {}
        for key, value in self.entries(node, valid, prefix):
            name, line = f"{prefix}{key}", value.start_mark.line + 1
            lines[name] = line
            rule = valid[key]
            if isinstance(rule, Mapping):
                if isinstance(value, yaml.MappingNode):
                    result[key] = SECTIONS[key](**self.section(value, rule, lines, f"{name}."))
                else:
                    self.fault(line, f"{name}: saw {seen(value)}; allowed: a mapping with {', '.join(rule)}")
                continue
            try:
                result[key] = rule(value)
            except BadValueError as error:
                at = error.node or value
                self.fault(at.start_mark.line + 1, f"{name}: saw {seen(at)}; allowed: {error.allowed}")
        return result

    def check_together(self, policy: Policy, lines: Mapping[str, int]) -> None:
        """Faults of values that are fine alone and impossible together."""
        low, high = policy.clocks.min_mhz, policy.clocks.max_mhz
        if low is not None and high is not None and low > high:
            self.fault(
                lines["clocks.min_mhz"],
                f"clocks.min_mhz: saw {low}, above clocks.max_mhz {high}; allowed: at most {high}",
            )
        if policy.policy == "fixed" and policy.fixed == Fixed() and not self.faults:
            self.fault(
                lines["policy"],
                "policy: saw fixed without a clock; give fixed.generation_mhz, fixed.training_mhz or both "
                "in MHz, or say policy: governor",
            )


def read_policy(path: Path) -> Policy:
    """The policy in ``path``, :class:`PolicyError` lists every fault, one a line."""
    return parse_policy(read_text(path, _WHAT, PolicyError), str(path))


def parse_policy(text: str, name: str) -> Policy:
    """The policy that ``text`` says; faults are told with ``name`` for the file's."""
    node = compose(text, name, _WHAT, PolicyError)
    if node is None or (isinstance(node, yaml.ScalarNode) and node.value in NULLS):
        return Policy()
    if not isinstance(node, yaml.MappingNode):
        raise PolicyError(f"{name}:1: saw {seen(node)}; allowed: `key: value` lines ({', '.join(_SCHEMA)})")
    reader, lines = _Reader(name), dict[str, int]()
    policy = Policy(**reader.section(node, _SCHEMA, lines))
    reader.check_together(policy, lines)
    if reader.faults:
        raise PolicyError("\n".join(reader.faults))
    return policy
