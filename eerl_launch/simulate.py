"""``--simulate``: what is simulated, and the side of the training program, which works on the simulated GPUs."""

from __future__ import annotations

import difflib
import math
import os
import re
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

from eerl_launch.devices.base import DeviceError
from eerl_launch.devices.sim import SimGpu, SimGpus, SimSpec, gpu_uuid
from eerl_launch.devices.sim_model import IDLE, KINDS, MODELS
from eerl_launch.errors import OptionError

#: Where the training program finds the simulated GPUs.
DIRECTORY_VARIABLE = "EERL_SIM_DIR"

MAX_NODES, MAX_GPUS_PER_NODE = 64, 16
#: Clocks can change while work runs, so it looks up at least this often (seconds, real).
_LOOK_S = 0.005
#: A sleep ends late by about this much; the rest is waited out awake (seconds, real).
_AWAKE_S = 0.0004


def parse_spec(text: str) -> SimSpec:
    """``MODEL:NODESxGPUS`` such as ``h100:2x8``; :class:`OptionError` names what is allowed."""
    allowed = f"MODEL:NODESxGPUS such as h100:2x8 (models: {', '.join(MODELS)})"
    match = re.fullmatch(r"([A-Za-z0-9]+):(\d{1,4})x(\d{1,4})", text.strip())
    if match is None:
        raise OptionError(f"--simulate {text}: allowed is {allowed}")
    model, nodes, gpus = match[1].lower(), int(match[2]), int(match[3])
    if model not in MODELS:
        near = difflib.get_close_matches(model, MODELS, 1)
        hint = f"; nearest: {near[0]}" if near else ""
        raise OptionError(f"--simulate {text}: unknown GPU model {match[1]!r}{hint}; allowed is {allowed}")
    if not 1 <= nodes <= MAX_NODES or not 1 <= gpus <= MAX_GPUS_PER_NODE:
        raise OptionError(
            f"--simulate {text}: allowed are 1 to {MAX_NODES} nodes with 1 to {MAX_GPUS_PER_NODE} GPUs each"
        )
    return SimSpec(model, nodes, gpus)


class SimWorkload:
    """Work on simulated GPUs of the run; how long it takes follows the clocks they really have.

    Two workloads on different GPUs may work at the same time, in threads or processes.
    """

    def __init__(
        self, directory: Path | str | None = None, gpus: Iterable[tuple[int, int]] | None = None
    ) -> None:
        """``gpus``: pairs of node and GPU index (None: all). Raises :class:`DeviceError` when there is no simulation
        (default: of ``EERL_SIM_DIR``), or no such GPU in it."""
        chosen = directory or os.environ.get(DIRECTORY_VARIABLE)
        if not chosen:
            raise DeviceError(
                f"{DIRECTORY_VARIABLE} is not set: start this program with `eerl-run --simulate h100:2x8 -- …`"
            )
        self.simulation = SimGpus(Path(chosen))
        self.clock = self.simulation.clock
        spec = self.simulation.spec
        everyone = [(node, gpu) for node in range(spec.nodes) for gpu in range(spec.gpus_per_node)]
        self.members = everyone if gpus is None else sorted(set(gpus))
        if not self.members or not set(self.members) <= set(everyone):
            raise DeviceError(f"no such GPUs in {spec}: {sorted(set(self.members) - set(everyone))[:4]}")
        self._nodes = [
            (self.simulation.node(index), [gpu for node, gpu in self.members if node == index])
            for index in sorted({node for node, _ in self.members})
        ]
        self._each(lambda gpu: setattr(gpu, "context", 1))

    @property
    def uuids(self) -> list[str]:
        """The UUIDs of its GPUs, as ``mark.pool`` wants them."""
        return [gpu_uuid(node, gpu) for node, gpu in self.members]

    def _each(self, change: Callable[[SimGpu], None]) -> None:
        """Change every GPU of the workload, node after node."""
        for node, members in self._nodes:
            with node.gpus() as gpus:
                for index in members:
                    change(gpus[index])
                    gpus[index].settle(node.model)

    def _left_s(self, work_s: float) -> float:
        """Virtual seconds until the slowest GPU has done ``work_s`` at the clocks of now; negative once it has."""
        left_s = -math.inf
        for node, members in self._nodes:
            with node.gpus() as gpus:
                left_s = max(
                    left_s, *((work_s - gpus[index].progress_s) / gpus[index].speed for index in members)
                )
        return left_s

    def run_phase(self, kind: str, work_s: float, load: float = 1.0) -> float:
        """Do ``work_s`` of work on all its GPUs and return the virtual seconds it took.

        ``work_s`` is what it takes at the highest clock without a power cap; ``kind`` is ``generation``
        (bound by memory), ``training`` (bound by the clock) or ``idle`` (GPUs wait); ``load`` (0..1) scales
        the power it adds.
        """
        return self.run_pieces(kind, [(work_s, load)])

    def run_pieces(self, kind: str, pieces: Sequence[tuple[float, float]]) -> float:
        """As :meth:`run_phase`, for work whose load changes: ``(work_s, load)`` one after the other."""
        if kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(KINDS)}, not {kind!r}")

        def begin(load: float, ahead_s: float, gpu: SimGpu) -> None:
            gpu.kind, gpu.load, gpu.progress_s = KINDS[kind], load, ahead_s * gpu.speed

        start_s = self.clock.now_s()
        ahead_s = 0.0
        for work_s, load in pieces:
            self._each(partial(begin, load, ahead_s))
            while (left_s := self._left_s(work_s)) > 0:
                self._wait(left_s)
            ahead_s = -left_s  # what was done beyond this piece while we woke up belongs to the next one
        self.idle()
        return self.clock.now_s() - start_s

    def idle(self) -> None:
        """Let the GPUs wait, with the program still on them."""

        def finish(gpu: SimGpu) -> None:
            gpu.kind, gpu.load = IDLE, 0.0

        self._each(finish)

    def _wait(self, virtual_s: float) -> None:
        """Let virtual time pass, at most until the next look at the clocks, and not much more."""
        real_s = min(self.clock.real_s(virtual_s), _LOOK_S)
        deadline_s = time.monotonic() + real_s
        if real_s > _AWAKE_S:
            time.sleep(real_s - _AWAKE_S)
        while time.monotonic() < deadline_s:
            pass

    def close(self) -> None:
        """Let the GPUs go: without a process holding them they drop to their lowest clock."""
        self._each(lambda gpu: setattr(gpu, "context", 0))
        for node, _ in self._nodes:
            node.close()

    def __enter__(self) -> SimWorkload:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
