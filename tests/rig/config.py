"""What a test cluster is asked to be, and the Slurm configuration that follows from it. Text only."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Spec:
    """The wishes of a test; every field has a default that suits most."""

    nodes: int | tuple[str, ...] = 2
    gpus: int = 4
    model: str = "h100"
    models: dict[str, str] = field(default_factory=dict)  # node name -> model, where it differs
    minors: tuple[int, ...] | None = None  # NVML index -> /dev/nvidia minor; None: equal
    plugin: bool = True
    plugstack: str = ""  # more key=value of the plugin's line
    required: bool = False  # "required" instead of "optional"
    plugin_missing_on: tuple[str, ...] = ()  # nodes whose view lacks the .so
    stub_missing_on: tuple[str, ...] = ()  # nodes without an NVML library in the loader's path
    prolog_flags: str = "Alloc"  # empty: none
    prolog: str = ""  # text of a site's own Prolog script
    epilog: str = ""
    shards: int = 0  # per node; 0: no shard gres
    cpus: int = 16
    kill_wait_s: int = 5
    cred_expire_s: int = 10  # a requeued job waits so long; Slurm's default is 120
    conf: str = ""  # more lines for slurm.conf

    @property
    def node_names(self) -> tuple[str, ...]:
        """The nodes in the controller's order."""
        if isinstance(self.nodes, int):
            return tuple(f"n{i + 1}" for i in range(self.nodes))
        return self.nodes


def slurm_conf(spec: Spec, base: Path, host: str, ports: list[int]) -> str:
    """slurm.conf; the first port is slurmctld's, the others the nodes' in order."""
    scripts = "".join(
        f"{key}={base}/etc/{key.lower()}.sh\n"
        for key, text in (("Prolog", spec.prolog), ("Epilog", spec.epilog))
        if text
    )
    gres = f"gpu:{spec.gpus}" + (f",shard:{spec.shards}" if spec.shards else "")
    nodes = "".join(
        f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={spec.cpus}"
        f" RealMemory=16000 State=UNKNOWN{f' Gres={gres}' if spec.gpus else ''}\n"
        for name, port in zip(spec.node_names, ports[1:], strict=True)
    )
    return f"""\
ClusterName=eerl-rig
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={base}/munge/socket,cred_expire={spec.cred_expire_s}
CredType=cred/munge
StateSaveLocation={base}/state
SlurmdSpoolDir=/run/slurmd
SlurmctldPidFile={base}/run/slurmctld.pid
SlurmdPidFile={base}/run/%n.pid
SlurmctldLogFile={base}/log/slurmctld.log
SlurmdLogFile={base}/log/%n.log
SlurmdDebug=verbose
PlugStackConfig={base}/etc/plugstack.conf
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
JobCompType=jobcomp/filetxt
JobCompLoc={base}/log/jobcomp.txt
MpiDefault=none
MailProg=/bin/true
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=100
GresTypes=gpu{",shard" if spec.shards else ""}
ReturnToService=2
SchedulerParameters=batch_sched_delay=0,bf_interval=1,sched_min_interval=0
SlurmdParameters=config_overrides
{f"PrologFlags={spec.prolog_flags}" if spec.prolog_flags else "# no PrologFlags"}
KillWait={spec.kill_wait_s}
MinJobAge=3600
JobRequeue=1
PriorityType=priority/basic
{scripts}{spec.conf}
{nodes}PartitionName=main Nodes={",".join(spec.node_names)} Default=YES MaxTime=INFINITE State=UP
PartitionName=other Nodes={",".join(spec.node_names)} MaxTime=INFINITE State=UP
"""


def gres_conf(spec: Spec) -> str:
    """gres.conf, the same on all nodes: device files in /dev of each node's own namespace."""
    if not spec.gpus:
        return ""
    last = f"[0-{spec.gpus - 1}]" if spec.gpus > 1 else "0"
    lines = [f"AutoDetect=off\nName=gpu File=/dev/nvidia{last}"]
    if spec.shards:
        lines.append(f"Name=shard Count={spec.shards}")
    return "\n".join(lines) + "\n"


def plugstack_conf(spec: Spec, base: Path) -> str:
    """plugstack.conf with the plugin, pointed at the stub and at the broker of this cluster."""
    if not spec.plugin:
        return "# no plugin in this cluster\n"
    return (
        f"{'required' if spec.required else 'optional'} {base}/eerl/eerl_spank.so "
        f"nvml={base}/lib/libnvidia-ml.so.1 clockd={base}/eerl/eerl-clockd {spec.plugstack}".rstrip()
        + "\n"
    )
