"""Whole runs of eerl-run outside Slurm for the field cases: GPUs of the NVML stub, or simulated ones."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nvml_stub.stub import Stub, install_library

TESTS = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent
EERL_RUN = BIN / "eerl-run"
HANG_S = 90.0

#: The head of every trainer of these tests: marks phases, and loads the stub's GPUs when there are some.
PRELUDE = f"""
import os, signal, socket, subprocess, sys, time
sys.path[:0] = [{str(TESTS)!r}, {str(TESTS.parent)!r}]
from pathlib import Path
from nvml_stub.stub import Stub
from eerl_launch import mark

stub = Stub(os.environ["STUB_DIR"]) if "STUB_DIR" in os.environ else None

def phase(name, seconds, update=None, load=None):
    with mark.phase(name, update=update):
        if stub is not None:
            for gpu in load or range(len(stub)):
                stub.set_load(gpu, **{{("generation" if name == "generation" else "training"): 1.0}})
        time.sleep(seconds)
        if stub is not None:
            stub.set_load()
"""


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not strict JSON")


@dataclass(frozen=True, slots=True)
class Done:
    """What a run has left."""

    code: int
    output: bytes
    errors: str
    folder: Path
    took_s: float

    @property
    def report(self) -> dict[str, Any]:
        """report.json, strictly read."""
        text = (self.folder / "report.json").read_text(encoding="utf-8")
        found: dict[str, Any] = json.loads(text, parse_constant=_no_constant)
        return found

    @property
    def text(self) -> str:
        """report.txt without its line breaks."""
        return " ".join((self.folder / "report.txt").read_text(encoding="utf-8").split())

    @property
    def ledger(self) -> list[dict[str, Any]]:
        """Every line of the ledger."""
        lines = (self.folder / "ledger.jsonl").read_text(encoding="utf-8").splitlines()
        return [json.loads(line, parse_constant=_no_constant) for line in lines]

    def events(self, kind: str) -> list[dict[str, Any]]:
        """The ledger's lines of one kind."""
        return [line for line in self.ledger if line["ev"] == kind]

    @property
    def ours(self) -> list[str]:
        """Our own lines on standard error."""
        return [line for line in self.errors.splitlines() if line.startswith("eerl: ")]

    def rows(self, name: str) -> list[dict[str, str]]:
        """A CSV file of the report; every row is as long as its header."""
        rows = list(csv.reader((self.folder / name).open(encoding="utf-8", newline="")))
        assert {len(row) for row in rows} == {len(rows[0])}
        return [dict(zip(rows[0], row, strict=True)) for row in rows[1:]]


class Field:
    """A folder in which runs happen."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.out = folder / "out"
        self.environment: dict[str, str] = {k: v for k, v in os.environ.items() if not k.startswith("SLURM")}
        self.options: list[str] = []
        self.running: Running | None = None

    def stub(self, *, without: Sequence[str] = (), **wishes: Any) -> Stub:
        """Give the node GPUs of its own; ``wishes`` are those of ``Stub.create``."""
        state = self.folder / "state"
        stub = Stub.create(state, **wishes)
        install_library(self.folder / "lib", state, without)
        self.environment |= {"LD_LIBRARY_PATH": str(self.folder / "lib"), "STUB_DIR": str(state)}
        return stub

    def simulate(self, spec: str = "h100:1x2") -> None:
        """Let the runs have simulated GPUs, whose clocks can be set."""
        self.options += ["--simulate", spec]

    def policy(self, text: str) -> None:
        """Give the runs a policy file."""
        path = self.folder / "policy.yaml"
        path.write_text(text)
        self.options += ["--policy", str(path)]

    def check_policy(self) -> subprocess.CompletedProcess[str]:
        """``eerl policy-check`` of the last policy file."""
        argv = [str(BIN / "eerl"), "policy-check", self.options[-1]]
        return subprocess.run(argv, capture_output=True, text=True, timeout=HANG_S, env=self.environment)

    def trainer(self, text: str) -> list[str]:
        """The command line of a trainer with this program."""
        path = self.folder / "trainer.py"
        path.write_text(PRELUDE + textwrap.dedent(text))
        return [sys.executable, str(path)]

    def shim(self, text: str) -> str:
        """Compile a library to be preloaded; its path."""
        source, library = self.folder / "shim.c", self.folder / "shim.so"
        source.write_text(textwrap.dedent(text))
        command = [
            "gcc",
            "-shared",
            "-fPIC",
            "-O1",
            "-Wall",
            "-Werror",
            str(source),
            "-o",
            str(library),
            "-ldl",
        ]
        subprocess.run(command, check=True)
        return str(library)

    def start(self, command: Sequence[str], *, wrap: Sequence[str] = (), **options: Any) -> Running:
        """Start eerl-run before a command; ``wrap`` goes before eerl-run, options to Popen."""
        self.out.mkdir(exist_ok=True)
        argv = [*wrap, str(EERL_RUN), *self.options, "--out", str(self.out), "--", *command]
        self.running = Running(self, argv, options)
        return self.running

    def run(self, command: Sequence[str], **options: Any) -> Done:
        """Run a command under eerl-run to its end."""
        return self.start(command, **options).wait()


class Running:
    """A run that goes on."""

    def __init__(self, field: Field, argv: Sequence[str], options: Mapping[str, Any]) -> None:
        self.field = field
        self.began_s = time.monotonic()
        self.earlier = set(field.out.glob("eerl-*"))
        self._outputs = [(field.folder / name).open("w+b") for name in ("stdout", "stderr")]
        given = {
            "env": field.environment,
            "stdin": subprocess.DEVNULL,
            "stdout": self._outputs[0],
            "stderr": self._outputs[1],
            "start_new_session": True,
            **options,
        }
        self.process = subprocess.Popen(argv, **given)

    @property
    def folder(self) -> Path:
        """The run folder."""
        (folder,) = set(self.field.out.glob("eerl-*")) - self.earlier
        return folder

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        """Return the condition's value once it is true; a hang fails the test."""
        deadline = time.monotonic() + HANG_S
        while True:
            if found := condition():
                return found
            assert time.monotonic() < deadline, f"{what} did not happen; {self._outputs[1].name}"
            assert self.process.poll() is None, f"the run ended before {what}"
            time.sleep(0.05)

    def until_update(self, number: int) -> None:
        """Return once this many updates are in the ledger."""

        def there() -> bool:
            try:
                return (self.folder / "ledger.jsonl").read_text().count('"ev":"update"') >= number
            except (OSError, ValueError):
                return False

        self.until(there, f"update {number}")

    def processes(self, word: str) -> list[int]:
        """Pids below eerl-run whose command line has this word; eerl-run itself left out."""
        found, todo = [], [self.process.pid]
        for pid in todo:
            try:
                for task in Path(f"/proc/{pid}/task").iterdir():
                    todo += [int(child) for child in (task / "children").read_text().split()]
                if pid != self.process.pid and word.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append(pid)
            except OSError:
                continue
        return found

    def kill(self, word: str, number: int = signal.SIGKILL) -> list[int]:
        """Signal processes of ours by a word of their command line."""
        pids = self.processes(word)
        for pid in pids:
            os.kill(pid, number)
        return pids

    def wait(self) -> Done:
        """What came of it."""
        try:
            code = self.process.wait(HANG_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        took_s = time.monotonic() - self.began_s
        texts = []
        for output in self._outputs:
            output.seek(0)
            texts.append(output.read())
            output.close()
        folders = set(self.field.out.glob("eerl-*")) - self.earlier
        folder = folders.pop() if len(folders) == 1 else self.field.out
        return Done(code, texts[0], texts[1].decode("utf-8", "replace"), folder, took_s)


def private_folders() -> set[str]:
    """The private folders of this user's runs outside Slurm."""
    return {path.name for path in Path("/dev/shm").glob(f"eerl-{os.getuid()}-local*")}


def remove(folder: Path) -> None:
    """Take a folder away, whatever is in it."""
    shutil.rmtree(folder, ignore_errors=True)
