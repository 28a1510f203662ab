"""What works on one node: checks that ``eerl doctor`` runs on every node of the job.

Run as ``python -I -m eerl_launch.doctor_node``: one JSON object a line on stdout, below the 900 bytes that srun
passes on whole.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from eerl_launch.devices import broker
from eerl_launch.devices.base import DeviceError
from eerl_launch.sockets import NoPlaceError, private_folder

_MAX_TEXT = 300
_MAX_LINE_BYTES = 900
_MODULES = ("yaml", "click", "numpy", "scipy", "jinja2", "pandas", "rich", "pynvml")


@dataclass(frozen=True, slots=True)
class Check:
    """One finding; ``state`` is ``ok``, ``warn`` (works, with less) or ``fail``; ``cure`` is empty when ok."""

    name: str
    state: str
    seen: str
    cure: str = ""
    node: str = ""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the checks run: Slurm's name of the node, the job if any, and the environment."""

    node: str
    job_id: str
    env: Mapping[str, str]


def check_python(place: Place) -> Iterator[Check]:
    """The interpreter of the agents has all that eerl needs."""
    missing = []
    for name in _MODULES:
        try:
            importlib.import_module(name)
        except Exception as error:  # a broken package raises anything
            missing.append(f"{name} ({error})")
    version = ".".join(map(str, sys.version_info[:3]))
    if missing:
        yield Check(
            "python",
            "fail",
            f"{sys.executable} {version} lacks {', '.join(missing)}",
            "install eerl again there",
        )
    else:
        yield Check("python", "ok", f"{sys.executable} {version}, all packages import")


def check_hooks(place: Place) -> Iterator[Check]:
    """The plugin's prolog ran on this node for this job, and granted its GPUs."""
    if not place.job_id:
        return
    folder = broker.RUN_FOLDER / place.node / place.job_id
    refusal = broker.refusal(place.node, place.job_id)
    if refusal:
        yield Check(
            "plugin",
            "fail",
            f"no grant: {refusal}",
            "mend what it names, or ask the site",
        )
    elif folder.exists():
        yield Check("plugin", "ok", f"its prolog ran for job {place.job_id}")
    else:
        yield Check(
            "plugin",
            "fail",
            f"{folder} is missing: the plugin's prolog did not run here for this job",
            "submit with --eerl; else the site installs the plugin, restarts slurmd, and has no PrologFlags=RunInJob",
        )


def check_broker(place: Place) -> Iterator[Check]:
    """The broker answers and can set clocks."""
    if not place.job_id or not broker.socket_path(place.node, place.job_id).exists():
        return
    try:
        source = broker.BrokerSource(place.node, place.job_id)
    except (DeviceError, ValueError, KeyError) as error:
        yield Check("broker", "fail", str(error), "ask the site for syslog lines of eerl-clockd")
        return
    try:
        gpus = source.gpus()
        clocks = sorted({mhz for gpu in gpus for mhz in gpu.supported_mhz})
        span = f", {clocks[0]} to {clocks[-1]} MHz" if clocks else ""
        seen = f"{len(gpus)} GPUs, {source.backend}{span}, driver {source.driver}"
        if source.backend == "none":
            yield Check("broker", "warn", f"{seen}: {source.backend_reason}", "the job is measured only")
        else:
            yield Check("broker", "ok", seen)
        listed = ", ".join(f"{gpu.index}={gpu.uuid[:12]}…" for gpu in gpus)
        if gpus:
            yield Check("GPU map", "ok", listed)
        else:
            yield Check("GPU map", "fail", "the job has no GPU here", "submit with --gres=gpu:N")
        if len({gpu.name for gpu in gpus}) > 1:
            yield Check(
                "GPU models",
                "warn",
                ", ".join(sorted({gpu.name for gpu in gpus})),
                "only clocks that all models have are used; ask for one model",
            )
        yield from _mig([gpu.uuid for gpu in gpus if gpu.mig])
    finally:
        source.close()


def _mig(uuids: list[str]) -> Iterator[Check]:
    if uuids:
        yield Check(
            "MIG", "fail", f"on for {', '.join(uuids)}", "ask for whole GPUs: a clock is the whole card's"
        )


def check_nvml(place: Place) -> Iterator[Check]:
    """NVML can be read here without the broker (outside a job, and where the plugin is missing)."""
    from eerl_launch.devices.nvml import NvmlSource, visible_gpus

    in_broker = bool(place.job_id) and broker.socket_path(place.node, place.job_id).exists()
    if in_broker:
        return  # agents of a job ask the broker; their step need not see a device
    try:
        source: NvmlSource = visible_gpus(place.env)
    except DeviceError as error:
        state = "fail" if place.job_id else "warn"  # a login node has no GPU, and needs none
        yield Check("NVML", state, str(error), "without broker and NVML nothing is measured on this machine")
        return
    try:
        samples = source.sample()
        counted = sum(sample.energy_mj is not None for sample in samples.values())
        seen = f"{len(source.gpus())} GPUs, driver {source.driver}, {counted} with an energy counter"
        notes = "; ".join(source.notes)
        whole = counted == len(samples) and not notes
        yield Check(
            "NVML",
            "ok" if whole else "warn",
            f"{seen}; {notes}" if notes else seen,
            ""
            if whole
            else "GPUs without a counter are estimated from power, GPUs not opened are not counted",
        )
        yield from _mig([gpu.uuid for gpu in source.gpus() if gpu.mig])
    finally:
        source.close()


def check_socket(place: Place) -> Iterator[Check]:
    """Markers can arrive: a private folder in node-local memory holds sockets."""
    try:
        folder = private_folder(f"doctor{os.getpid()}")
    except NoPlaceError as error:
        yield Check("marker socket", "fail", str(error), "make /dev/shm writable for users")
        return
    shutil.rmtree(folder, ignore_errors=True)
    if folder.parent == Path("/dev/shm"):
        yield Check("marker socket", "ok", "/dev/shm holds sockets, visible in enroot and pyxis containers")
    else:
        yield Check(
            "marker socket",
            "warn",
            f"/dev/shm cannot be used, {folder.parent} is",
            f"containers need {folder.parent} mounted, else their markers do not arrive",
        )


def check_markers(place: Place) -> Iterator[Check]:
    """Under eerl-run: the socket that the trainer was told is there."""
    path = place.env.get("EERL_SOCKET")
    if not path:
        return
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(2.0)
            connection.connect(path)
    except OSError as error:
        yield Check(
            "markers", "fail", f"{path}: {error.strerror or error}", "mount its folder into the container"
        )
    else:
        yield Check("markers", "ok", f"{path} listens")


def check_shared(place: Place) -> Iterator[Check]:
    """GPUs that are shared with other jobs cannot be clocked."""
    shards = place.env.get("SLURM_SHARDS_ON_NODE")
    if shards:
        yield Check(
            "shards", "fail", f"{shards} shards of a GPU", "ask for whole GPUs: a clock is the whole card's"
        )
    if "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" in place.env:
        yield Check("MPS", "warn", "the job has a share of a GPU (MPS)", "ask for whole GPUs")


CHECKS: tuple[Callable[[Place], Iterator[Check]], ...] = (
    check_python,
    check_hooks,
    check_broker,
    check_nvml,
    check_shared,
    check_socket,
    check_markers,
)


def examine(place: Place) -> Iterator[Check]:
    """All findings of this node; a check that fails itself is a finding too."""
    for check in CHECKS:
        try:
            for found in check(place):
                yield Check(
                    found.name, found.state, found.seen[:_MAX_TEXT], found.cure[:_MAX_TEXT], node=place.node
                )
        except Exception as error:
            name = check.__name__.removeprefix("check_")
            yield Check(
                name, "fail", f"the check itself failed: {error!r}"[:_MAX_TEXT], "report this", place.node
            )


def to_line(found: Check) -> str:
    """A finding as one line that srun passes on whole."""
    line = json.dumps(asdict(found))
    while len(line) > _MAX_LINE_BYTES:  # escapes make several bytes of a character
        found = replace(found, seen=found.seen[: len(found.seen) // 2] + "…", cure=found.cure[:80])
        line = json.dumps(asdict(found))
    return line


def main() -> int:
    """Entry point on a node."""
    node = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    for found in examine(Place(node, os.environ.get("SLURM_JOB_ID", ""), os.environ)):
        sys.stdout.write(to_line(found) + "\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
