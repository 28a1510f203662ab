"""What became of a job: scontrol's words turned into a value."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ENDED = {
    "BOOT_FAIL",
    "CANCELLED",
    "COMPLETED",
    "DEADLINE",
    "FAILED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "PREEMPTED",
    "TIMEOUT",
}


@dataclass(frozen=True, slots=True)
class Job:
    """A job as slurmctld tells it; ``output`` and ``errors`` are what its script wrote so far."""

    job_id: int
    state: str
    exit_code: int
    signal: int
    restarts: int
    reason: str
    nodes: str
    fields: dict[str, str]
    output_path: Path
    errors_path: Path

    @property
    def ended(self) -> bool:
        """True when the job is over and its epilogs are."""
        return self.state in ENDED

    @property
    def output(self) -> str:
        """Standard output of the batch script."""
        return self.output_bytes.decode(errors="replace")

    @property
    def output_bytes(self) -> bytes:
        """Standard output as it is on disk."""
        return self.output_path.read_bytes() if self.output_path.exists() else b""

    @property
    def errors(self) -> str:
        """Standard error of the batch script."""
        return self.errors_path.read_text(errors="replace") if self.errors_path.exists() else ""


def parse_job(text: str, job_id: int) -> Job:
    """Read the job's line of ``scontrol -o show job``; a heterogeneous job has one per component."""
    line = next(line for line in text.splitlines() if line.startswith(f"JobId={job_id} "))
    fields = dict(re.findall(r"(\S+?)=(\S*)", line))
    code, _, number = fields["ExitCode"].partition(":")
    return Job(
        job_id=int(fields["JobId"]),
        state=fields["JobState"],
        exit_code=int(code),
        signal=int(number),
        restarts=int(fields.get("Restarts", 0)),
        reason=fields["Reason"],
        nodes=fields.get("NodeList", ""),
        fields=fields,
        output_path=Path(fields.get("StdOut", "/nonexistent")),
        errors_path=Path(fields.get("StdErr", "/nonexistent")),
    )
