"""The policy file: YAML in; one frozen Policy out, or one error listing every fault with its line."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from eerl_launch import policy_values as values
from eerl_launch.errors import PolicyError
from eerl_launch.policy import SECTIONS, Fixed, Policy
from eerl_launch.policy_values import MODES, NULLS, POLICIES, BadValueError, Parser, seen

MAX_FILE_BYTES = 65_536  # the commented reference is below 4 kB; more than this is another file
MAX_DEPTH = 8


class _Loader(yaml.SafeLoader):
    """Composes nodes, which know their lines; refuses aliases and deep nesting before they cost memory."""

    _depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise yaml.MarkedYAMLError(
                None, None, "anchors and aliases (& and *) are not used in policy files", event.start_mark
            )
        if self._depth >= MAX_DEPTH:
            raise yaml.MarkedYAMLError(None, None, "nested too deeply", event.start_mark)
        self._depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1


_SCHEMA: Mapping[str, Parser | Mapping[str, Parser]] = {
    "policy": values.choice(*POLICIES),
    "mode": values.choice(*MODES),
    "max_throughput_loss": values.loss,
    "total_updates": values.whole("auto, or a whole number of updates above 0", 1, 10**9, ("auto",)),
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
        "formats": values.formats,
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


def _read(path: Path) -> str:
    """The text of the file; bounded, so that a wrong path such as a checkpoint is noticed at once."""
    try:
        with path.open("rb") as handle:
            data = handle.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise PolicyError(f"{path}: cannot read the policy file ({error.strerror})") from error
    if len(data) > MAX_FILE_BYTES:
        raise PolicyError(f"{path}: larger than {MAX_FILE_BYTES} bytes; this is not a policy file")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise PolicyError(
            f"{path}:{line}: not UTF-8 (byte 0x{data[error.start]:02x}); save the file as UTF-8"
        ) from error


def _compose(text: str, name: str) -> yaml.Node | None:
    """The one document of the file as nodes; PolicyError with the line where YAML ends."""
    try:
        loader = _Loader(text)
        try:
            node: yaml.Node | None = loader.get_single_node()
            return node
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        what = error.problem or "not YAML"
        if what == "but found another document":
            what = "a second document (---); a policy file holds one"
        raise PolicyError(f"{name}:{mark.line + 1 if mark else 1}: not valid YAML: {what}") from error
    except yaml.reader.ReaderError as error:
        line = text[: error.position].count("\n") + 1
        raise PolicyError(
            f"{name}:{line}: a control character that YAML does not allow; remove it"
        ) from error


def read_policy(path: Path) -> Policy:
    """The policy in ``path``, :class:`PolicyError` lists every fault, one a line."""
    return parse_policy(_read(path), str(path))


def parse_policy(text: str, name: str) -> Policy:
    """The policy that ``text`` says; faults are told with ``name`` for the file's."""
    node = _compose(text, name)
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
