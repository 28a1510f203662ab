"""What a policy says (contract 3.8), as frozen values; :mod:`eerl_launch.policy_file` reads it from YAML."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

FORMATS = ("html", "json", "csv", "txt")


@dataclass(frozen=True, slots=True)
class Clocks:
    """Limits on what may be locked, MHz; None leaves a limit to the GPU (``idle_mhz``: no idle clock)."""

    min_mhz: int | None = None
    max_mhz: int | None = None
    idle_mhz: int | None = 345


@dataclass(frozen=True, slots=True)
class Pools:
    """GPUs by role, ``node:gpu`` ranges or UUIDs; None is what the trainer says or the allocation shows."""

    generation: tuple[str, ...] | None = None
    training: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Fixed:
    """Clocks of ``policy: fixed``, MHz; None leaves that phase to the governor."""

    generation_mhz: int | None = None
    training_mhz: int | None = None


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """What the report adds: money and CO2 when prices are given, the file formats, and where else numbers go.

    ``to`` names outlets (:mod:`eerl_launch.outlets`); ``openmetrics_folder`` None is the run folder.
    """

    price_per_kwh: float | None = None
    currency: str = "USD"
    carbon_g_per_kwh: float | None = None
    pue: float = 1.0
    formats: tuple[str, ...] = FORMATS
    to: tuple[str, ...] = ()
    openmetrics_folder: str | None = None


#: The nested parts of a policy by name.
SECTIONS: Mapping[str, type[Any]] = {
    "clocks": Clocks,
    "pools": Pools,
    "fixed": Fixed,
    "report": ReportOptions,
}


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy as resolved; ``max_throughput_loss`` is a fraction of governor throughput."""

    policy: str = "eerl"
    mode: str = "auto"
    max_throughput_loss: float = 0.02
    total_updates: int | None = None
    warm_start: str = "off"
    clocks: Clocks = field(default_factory=Clocks)
    pools: Pools = field(default_factory=Pools)
    fixed: Fixed = field(default_factory=Fixed)
    report: ReportOptions = field(default_factory=ReportOptions)

    def to_dict(self) -> dict[str, Any]:
        """The policy as plain JSON values, for the ledger."""
        return asdict(self)

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Policy:
        """The policy that :meth:`to_dict` made plain, through JSON or not."""
        built: dict[str, Any] = dict(plain)
        for name, section in SECTIONS.items():
            values_by_key = {
                key: tuple(value) if isinstance(value, list) else value for key, value in built[name].items()
            }
            built[name] = section(**values_by_key)
        return cls(**built)

    def controller_settings(self) -> dict[str, Any]:
        """Keyword arguments for ``eerl_controller.Settings``."""
        return {
            "policy": self.policy,
            "max_throughput_loss": self.max_throughput_loss,
            "idle_mhz": self.clocks.idle_mhz,
            "min_mhz": self.clocks.min_mhz,
            "max_mhz": self.clocks.max_mhz,
            "fixed_generation_mhz": self.fixed.generation_mhz,
            "fixed_training_mhz": self.fixed.training_mhz,
        }


def load_policy(path: Path | str | None) -> Policy:
    """The policy in ``path``, the defaults for None; PolicyError lists every fault, one a line."""
    if path is None:
        return Policy()
    # Loaded only where there is a file: the session gets its policy from the launcher.
    from eerl_launch.policy_file import read_policy

    return read_policy(Path(path))
