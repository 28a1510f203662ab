"""A YAML file of ours as nodes, which know their lines; whatever is wrong ends in one error with file and line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from eerl_launch.errors import EerlError

MAX_FILE_BYTES = 65_536  # the commented policy reference is below 4 kB; more than this is another file
MAX_DEPTH = 8


class _Loader(yaml.SafeLoader):
    """Composes nodes; refuses aliases and deep nesting before they cost memory."""

    _depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise yaml.MarkedYAMLError(
                None, None, "anchors and aliases (& and *) are not used in eerl's files", event.start_mark
            )
        if self._depth >= MAX_DEPTH:
            raise yaml.MarkedYAMLError(None, None, "nested too deeply", event.start_mark)
        self._depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1


def read_text(path: Path, what: str, error_type: type[EerlError]) -> str:
    """The text of the file; bounded, so that a wrong path such as a checkpoint is noticed at once."""
    try:
        with path.open("rb") as handle:
            data = handle.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise error_type(f"{path}: cannot read the {what} ({error.strerror})") from error
    if len(data) > MAX_FILE_BYTES:
        raise error_type(f"{path}: larger than {MAX_FILE_BYTES} bytes; this is not a {what}")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise error_type(
            f"{path}:{line}: not UTF-8 (byte 0x{data[error.start]:02x}); save the file as UTF-8"
        ) from error


def compose(text: str, name: str, what: str, error_type: type[EerlError]) -> yaml.Node | None:
    """The one document of the text (None when it is empty); ``error_type`` names file and line where YAML ends."""
    try:
        loader = _Loader(text)
        try:
            node: yaml.Node | None = loader.get_single_node()
            return node
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        problem = error.problem or "not YAML"
        if problem == "but found another document":
            problem = f"a second document (---); a {what} holds one"
        raise error_type(f"{name}:{mark.line + 1 if mark else 1}: not valid YAML: {problem}") from error
    except yaml.reader.ReaderError as error:
        line = text[: error.position].count("\n") + 1
        raise error_type(f"{name}:{line}: a control character that YAML does not allow; remove it") from error
