"""The broker's conversation with an agent: contract 3.4, on stub GPUs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest
from spank.lone_node import OWNER, LoneNode, until


def test_hello_tells_all_an_agent_needs(node: LoneNode) -> None:
    """hello names the job's GPUs, how clocks are set, the clamp, the lease, the clock list and the driver."""
    said = node.serve(gpus="1,3", settings=["min_mhz=600", "max_mhz=1800", "idle_min_mhz=345", "lease_s=7"])

    fields = node.connect().hello()

    assert "granted to uid 4001" in said
    assert fields["gpus"].split(",") == [node.stub.uuid(1), node.stub.uuid(3)]
    assert fields["idx"] == "1,3"
    assert fields["backend"] == "locked-clocks"
    assert (fields["min_mhz"], fields["max_mhz"], fields["lease_s"]) == ("600", "1800", "7")
    assert fields["idle_min_mhz"] == "345"
    assert [int(mhz) for mhz in fields["clocks"].split(",")] == [
        mhz for mhz in node.stub.clocks_mhz() if 600 <= mhz <= 1800
    ]
    assert len(fields["names"].split(",")) == 2
    assert fields["scope"] == "gpu"
    assert fields["energy"] == "counter"
    assert fields["driver"]


def test_lock_and_reset_act_on_the_jobs_gpus_only(node: LoneNode) -> None:
    """lock * sets [lowest, MHz] on every GPU of the job, reset * undoes it, and no other GPU sees a call."""
    node.serve(gpus="1,2")
    agent = node.agent()

    assert agent.ask("lock * 1200") == "ok"

    assert [node.stub.locked_mhz(gpu) for gpu in range(4)] == [None, (345, 1200), (345, 1200), None]
    assert node.marks() == {node.stub.uuid(1), node.stub.uuid(2)}
    assert agent.ask("reset *") == "ok"
    assert node.stub.at_default()
    assert node.marks() == set()
    assert node.stub.setter_calls(gpu=0) == node.stub.setter_calls(gpu=3) == []


def test_lock_one_gpu_by_uuid(node: LoneNode) -> None:
    """A UUID names one GPU; one that is not the job's is refused with code 6 and nothing happens."""
    node.serve(gpus="0,1")
    agent = node.agent()

    assert agent.ask(f"lock {node.stub.uuid(1)} 900") == "ok"
    stranger = agent.ask(f"lock {node.stub.uuid(2)} 900")

    assert stranger.startswith("err 6 ")
    assert [node.stub.locked_mhz(gpu) for gpu in range(3)] == [None, (345, 900), None]


def test_unchanged_clock_is_not_set_again(node: LoneNode) -> None:
    """The same lock twice is one NVML call, as needless sets have hurt NCCL."""
    node.serve(gpus="0")
    agent = node.agent()

    answers = [agent.ask(f"lock * {mhz}") for mhz in (1200, 1200, 1203, 1200)]  # 1203 snaps to 1200

    assert answers == ["ok"] * 4
    assert len(node.stub.calls("nvmlDeviceSetGpuLockedClocks")) == 1


@pytest.mark.parametrize(
    ("asked", "set_mhz"), [(1003, 1005), (1, 345), (99999, 1980), (1200, 1200), (352, 345)]
)
def test_clock_is_snapped_to_a_supported_one(node: LoneNode, asked: int, set_mhz: int) -> None:
    """Any clock is answered with the nearest supported one; the lower of two as near."""
    node.serve(gpus="0")

    assert node.agent().ask(f"lock * {asked}") == "ok"

    assert node.stub.locked_mhz(0) == (345, set_mhz)


def test_clocks_outside_the_clamp_are_refused(node: LoneNode) -> None:
    """The admin's limits hold: an idle clock may go down to idle_min_mhz, nothing above max or site_max."""
    node.serve(gpus="0", settings=["min_mhz=900", "idle_min_mhz=400", "max_mhz=1700", "site_max_mhz=1500"])
    agent = node.agent()

    refused = [agent.ask(f"lock * {mhz}") for mhz in (399, 1501, 1980)]
    taken = [agent.ask(f"lock * {mhz}") for mhz in (400, 1500)]

    assert [answer.split()[:2] for answer in refused] == [["err", "2"]] * 3
    assert "400..1500" in refused[0]
    assert taken == ["ok", "ok"]
    assert node.stub.locked_mhz(0) == (345, 1500)


def test_reset_applies_the_sites_own_limit_again(node: LoneNode) -> None:
    """With site_max_mhz a reset leaves [lowest, site_max], not the vendor's default."""
    node.serve(gpus="0", settings=["site_max_mhz=1410"])
    agent = node.agent()

    agent.ask("lock * 1005")
    assert agent.ask("reset *") == "ok"

    assert node.stub.locked_mhz(0) == (345, 1410)
    assert node.marks() == set()


def test_sample_reads_every_gpu(node: LoneNode) -> None:
    """A sample has energy, SM clock, power, utilisation and event reasons of each GPU of the job."""
    node.serve(gpus="0,2")
    node.stub.set_load(0, training=1.0)
    agent = node.agent()

    reading = agent.sample()

    assert list(reading) == [node.stub.uuid(0), node.stub.uuid(2)]
    busy = reading[node.stub.uuid(0)]
    assert {"energy_mj", "sm_mhz", "power_mw", "util_pct", "reasons"} <= set(busy)
    assert busy["power_mw"] > 400_000
    assert busy["util_pct"] > reading[node.stub.uuid(2)]["util_pct"]


def test_sample_tells_the_enforced_power_limit(node: LoneNode) -> None:
    """The enforced limit comes with each sample, is asked for about once a second, and follows a change."""
    node.serve(gpus="0")
    agent = node.agent()
    node.stub.log_all()
    uuid = node.stub.uuid(0)

    before = [agent.sample()[uuid]["limit_mw"] for _ in range(5)]
    asked = len(node.stub.calls("nvmlDeviceGetEnforcedPowerLimit"))
    node.stub.set(0, power_limit_mw=400_000)

    assert before == [700_000] * 5
    assert asked < 5
    until(lambda: agent.sample()[uuid]["limit_mw"] == 400_000, "the new limit")


def test_sample_leaves_out_what_is_unknown(node: LoneNode) -> None:
    """A query that fails costs its own field; without the energy counter power is still told."""
    node.serve(gpus="0")
    for function in ("TotalEnergyConsumption", "UtilizationRates", "EnforcedPowerLimit"):
        node.stub.add_fault(f"nvmlDeviceGet{function}", code=3)
    node.stub.add_fault("nvmlDeviceGetFieldValues", code=3)

    reading = node.agent().sample()[node.stub.uuid(0)]

    assert set(reading) == {"sm_mhz", "power_mw", "reasons"}


def test_lost_gpu_is_told_and_the_others_go_on(node: LoneNode) -> None:
    """Code 15 for one GPU: its entry says so, the others are read and set."""
    node.serve(gpus="0,1,2")
    agent = node.agent()
    node.stub.add_fault("*", gpu=1, code=15)

    reading = agent.sample()
    answer = agent.ask("lock * 1200")

    assert reading[node.stub.uuid(1)] == {"err": 15}
    assert "energy_mj" in reading[node.stub.uuid(0)]
    assert answer.startswith(f"err 15 {node.stub.uuid(1)} ")
    assert ";" not in answer
    assert node.stub.locked_mhz(0) == node.stub.locked_mhz(2) == (345, 1200)


def test_no_permission_names_every_gpu_and_leaves_no_mark(node: LoneNode) -> None:
    """Code 4 on all: one entry per GPU, nothing is dirty, and the end resets nothing."""
    node.serve(gpus="0,1")
    node.stub.add_fault("nvmlDeviceSetGpuLockedClocks", code=4)
    agent = node.agent()

    answer = agent.ask("lock * 1200")
    agent.close()

    entries = [entry.split()[:2] for entry in answer.removeprefix("err ").split(" ; ")]
    assert entries == [["4", node.stub.uuid(0)], ["4", node.stub.uuid(1)]]
    assert node.marks() == set()
    until(lambda: not node.stub.clients(), "NVML is shut when the last client has gone")
    assert node.stub.calls("nvmlDeviceResetGpuLockedClocks") == []


@pytest.mark.parametrize("code", [3, 13])
def test_application_clocks_are_the_second_way(node: LoneNode, code: int) -> None:
    """Where locked clocks are refused as not supported, application clocks are set, and restored after."""
    node.serve(gpus="0")
    node.stub.add_fault("nvmlDeviceSetGpuLockedClocks", code=code)
    node.stub.set(0, application_mhz=1410)
    agent = node.agent()

    assert agent.ask("lock * 1200") == "ok"
    assert node.stub.get(0, "application_mhz") == 1200
    assert agent.hello()["backend"] == "application-clocks"
    assert agent.ask("reset *") == "ok"

    assert node.stub.get(0, "application_mhz") == 1410  # what was found, not the vendor's default
    assert node.marks() == set()


def test_application_clock_set_by_someone_else_is_left(node: LoneNode) -> None:
    """A change from outside during the job is the newer wish: the reset leaves it alone."""
    node.serve(gpus="0")
    node.stub.add_fault("nvmlDeviceSetGpuLockedClocks", code=3)
    agent = node.agent()
    agent.ask("lock * 1200")

    node.stub.set(0, application_mhz=1305)
    assert agent.ask("reset *") == "ok"

    assert node.stub.get(0, "application_mhz") == 1305
    assert node.marks() == set()


def test_no_way_to_set_clocks_is_measure_only(node: LoneNode) -> None:
    """Neither way works: code 3 for the lock, hello then says backend=none with a reason, samples go on."""
    node.serve(gpus="0")
    for function in ("nvmlDeviceSetGpuLockedClocks", "nvmlDeviceSetApplicationsClocks"):
        node.stub.add_fault(function, code=3)
    agent = node.agent()

    assert agent.ask("lock * 1200").startswith("err 3 ")
    fields = agent.hello()

    assert fields["backend"] == "none"
    assert fields["reason"]
    assert "energy_mj" in agent.sample()[node.stub.uuid(0)]
    assert node.marks() == set()


def test_closing_the_writer_resets(node: LoneNode) -> None:
    """The connection that locked closes: all its GPUs go back, and the role is free for another."""
    node.serve(gpus="0,1")
    reader, writer = node.agent(), node.agent()
    writer.ask("lock * 1200")

    assert reader.ask("lock * 900").startswith("err 19 ")
    assert reader.ask("reset *").startswith("err 19 ")
    assert reader.ask("ping") == "ok"
    writer.close()

    until(node.stub.at_default, "reset after the writer has gone")
    assert "energy_mj" in reader.sample()[node.stub.uuid(0)]
    until(lambda: not node.marks(), "no mark is left")
    assert reader.ask("lock * 900") == "ok"


def test_silent_writer_loses_its_lease(node: LoneNode) -> None:
    """lease_s without a line from the writer resets everything, though its connection stays open."""
    node.serve(gpus="0", settings=["lease_s=2"])
    reader, writer = node.agent(), node.agent()
    writer.ask("lock * 1200")

    until(node.stub.at_default, "reset after the lease")

    assert reader.ask("lock * 900") == "ok"
    assert writer.ask("lock * 1200").startswith("err 19 ")
    assert "silent for 2 s" in node.syslog()


def test_a_ping_keeps_the_lease(node: LoneNode) -> None:
    """Any line from the writer counts; a reader's does not."""
    node.serve(gpus="0", settings=["lease_s=2"])
    writer = node.agent()
    writer.ask("lock * 1200")
    begun = node.stub.calls("nvmlDeviceSetGpuLockedClocks")[0].t_ns
    rounds = 0

    while node.stub.calls("nvmlDeviceResetGpuLockedClocks") == [] and rounds < 40:
        assert writer.ask("ping") == "ok"
        rounds += 1
        with contextlib.suppress(AssertionError):
            until(lambda: False, "a tenth of a second is over", 0.1)

    assert rounds == 40, "the lease ended although the writer spoke"
    assert node.stub.locked_mhz(0) == (345, 1200)
    assert begun > 0


def test_only_the_owner_is_served(node: LoneNode) -> None:
    """The socket belongs to the job's user with mode 0600, and even root's connection is turned away."""
    node.serve(gpus="0")

    with pytest.raises(PermissionError):
        node.connect(uid=OWNER + 1)
    stranger = node.connect(uid=0)

    assert (stranger.line() or "").startswith("err 4 ")
    assert stranger.line() is None
    entry = (node.job_folder() / "clock").stat()
    assert (entry.st_uid, entry.st_mode & 0o777) == (OWNER, 0o600)


def test_nvml_is_open_only_while_someone_is_there(node: LoneNode) -> None:
    """NVML is opened by the first hello and shut when the last client has gone and all is reset."""
    node.serve(gpus="0")
    assert node.stub.clients() == ()

    agent = node.connect()
    agent.ask("ping")
    assert node.stub.clients() == ()
    agent.hello()
    assert len(node.stub.clients()) == 1
    agent.ask("lock * 1200")
    agent.close()

    until(lambda: node.stub.clients() == (), "NVML is shut")
    assert node.stub.at_default()
    assert node.agent().ask("lock * 1200") == "ok"  # and opened again for the next


def test_a_request_before_hello_is_refused(node: LoneNode) -> None:
    """sample and lock need a hello first: code 1, and no NVML call is made."""
    node.serve(gpus="0")
    client = node.connect()

    answers = [client.ask("sample"), client.ask("lock * 1200")]

    assert [answer.split()[:2] for answer in answers] == [["err", "1"]] * 2
    assert node.stub.clients() == ()


def test_a_hanging_gpu_costs_itself_only(node: LoneNode) -> None:
    """One GPU's set call hangs: the others are set, it is reported with code 10, and a reader samples on."""
    node.serve(gpus="0,1,2")
    writer, reader = node.agent(), node.agent()
    rule = node.stub.add_fault("nvmlDeviceSetGpuLockedClocks", gpu=1, delay_ms=20_000)

    writer.send(b"lock * 1200\n")
    until(lambda: node.stub.locked_mhz(2) == (345, 1200), "the other GPUs are set at once")
    during = reader.sample()
    answer = writer.line() or ""

    assert "energy_mj" in during[node.stub.uuid(0)]
    assert during[node.stub.uuid(1)] == {"err": 10}
    assert answer.startswith(f"err 10 {node.stub.uuid(1)} ")
    assert ";" not in answer
    assert node.stub.fault_fired(rule) <= 1
    assert writer.ask("lock * 1005").startswith(
        f"err 10 {node.stub.uuid(1)} "
    )  # known by now: no second wait
    assert node.stub.locked_mhz(0) == (345, 1005)


def test_a_late_lock_is_followed_by_the_reset(node: LoneNode) -> None:
    """A set that hangs, is given up and then still happens does not stay: the writer's end resets it."""
    node.serve(gpus="0,1")
    writer = node.agent()
    node.stub.add_fault("nvmlDeviceSetGpuLockedClocks", gpu=1, delay_ms=5_000, times=1)

    assert writer.ask("lock * 1200").startswith("err 10 ")
    writer.close()

    until(lambda: len(node.stub.calls("nvmlDeviceSetGpuLockedClocks", gpu=1)) == 1, "the late call has come")
    until(lambda: node.stub.at_default() and not node.marks(), "everything is back")


def test_a_late_lock_is_not_begun(node: LoneNode) -> None:
    """A lock that waited behind a hanging call until its deadline is told as failed, and does not happen after."""
    node.serve(gpus="0,1")
    reader, writer = node.agent(), node.agent()
    node.stub.add_fault("nvmlDeviceGetTotalEnergyConsumption", gpu=1, delay_ms=5_000, times=1)

    reader.send(b"sample\n")
    answer = writer.ask("lock * 1200")
    reader.line()
    until(lambda: "energy_mj" in reader.sample()[node.stub.uuid(1)], "the GPU answers again")

    assert answer.startswith(f"err 10 {node.stub.uuid(1)} ")
    assert node.stub.locked_mhz(0) == (345, 1200)
    assert node.stub.setter_calls(gpu=1) == []


def test_a_late_reset_is_done_all_the_same(node: LoneNode) -> None:
    """A reset that its GPU was too slow for is told as failed, and still happens once the GPU answers."""
    node.serve(gpus="0,1")
    reader, writer = node.agent(), node.agent()
    assert writer.ask("lock * 1200") == "ok"
    node.stub.add_fault("nvmlDeviceGetTotalEnergyConsumption", gpu=1, delay_ms=5_000, times=1)

    assert reader.sample()[node.stub.uuid(1)] == {"err": 10}
    assert writer.ask("reset *").startswith(f"err 10 {node.stub.uuid(1)} ")
    assert node.stub.locked_mhz(1) == (345, 1200)

    until(lambda: writer.ask("ping") == "ok" and node.stub.at_default(), "the reset has happened")


def test_nvml_that_does_not_start_leaves_the_broker_answering(node: LoneNode) -> None:
    """nvmlInit hangs: ping is answered meanwhile, hello gets code 10 at its deadline, and works once init does."""
    node.serve(gpus="0")
    for function in ("nvmlInit_v2", "nvmlInitWithFlags"):
        node.stub.add_fault(function, delay_ms=10_000, times=1)
    waiting, other = node.connect(), node.connect()

    waiting.send(b"hello 1\n")
    assert other.ask("ping") == "ok"

    assert (waiting.line() or "").startswith("err 10 ")
    until(lambda: other.ask("hello 1").startswith("ok gpus=GPU-"), "hello works once NVML does")


@pytest.mark.parametrize("code", [18, 9, 999])
def test_nvml_init_failure_is_the_reason(node: LoneNode, code: int) -> None:
    """nvmlInit fails: hello and the reason file tell the code, one log line does; later hellos try again."""
    node.serve(gpus="0")
    for function in ("nvmlInit_v2", "nvmlInitWithFlags"):
        node.stub.add_fault(function, code=code)
    agent = node.connect()

    fields = agent.hello()
    agent.hello()

    assert (fields["gpus"], fields["backend"]) == ("", "none")
    assert f"code_{code}" in fields["reason"]
    assert f"code {code}" in node.reason()
    until(lambda: "no clock control" in node.syslog(), "it is logged")
    assert node.syslog().count("no clock control") == 1
    assert agent.ask("lock * 1200").startswith("err 1 ")
    node.stub.clear_faults()
    assert agent.hello()["backend"] == "locked-clocks"


def test_parallel_sets(node: LoneNode) -> None:
    """The calls for different GPUs overlap in time: the first has not ended when the last begins."""
    node.serve(gpus="0,1,2,3")
    node.stub.add_fault("nvmlDeviceSetGpuLockedClocks", delay_ms=300)

    assert node.agent().ask("lock * 1200") == "ok"

    calls = node.stub.calls("nvmlDeviceSetGpuLockedClocks")
    assert len(calls) == 4
    assert max(call.t_ns for call in calls) < min(call.end_ns for call in calls)


def test_many_connections_are_turned_away(node: LoneNode) -> None:
    """Sixteen clients are served, the next is told code 23, and a place is free again when one leaves."""
    node.serve(gpus="0")
    clients = [node.agent() for _ in range(16)]

    assert (node.connect().line() or "").startswith("err 23 ")
    clients[0].close()

    until(lambda: node.connect().ask("ping") == "ok", "a place is free again")
    assert clients[1].ask("ping") == "ok"


def test_the_worker_has_one_right_left(node: LoneNode) -> None:
    """Supervisor and worker hold CAP_SYS_ADMIN only, can gain nothing by exec, and hold no foreign descriptor."""
    node.serve(gpus="0")

    until(node.workers, "the worker")
    for pid in [node.supervisor.pid, *node.workers()]:
        status = dict(
            line.split(":\t", 1)
            for line in Path(f"/proc/{pid}/status").read_text().splitlines()
            if ":\t" in line
        )
        assert {int(status[key], 16) for key in ("CapPrm", "CapEff", "CapBnd")} == {1 << 21}
        assert int(status["CapInh"], 16) == 0
        assert status["NoNewPrivs"].strip() == "1"
        assert Path(f"/proc/{pid}/environ").read_bytes() == b""
        targets = [entry.readlink().name for entry in Path(f"/proc/{pid}/fd").iterdir()]
        assert all("pipe:" not in target for target in targets)


def test_a_step_with_a_share_of_a_gpu_ends_clock_control(node: LoneNode) -> None:
    """Once the plugin has seen a shard step, locks are refused and hello says why."""
    node.serve(gpus="0")
    agent = node.agent()
    (node.job_folder() / "shared").touch()

    answer = agent.ask("lock * 1200")
    fields = agent.hello()

    assert answer.startswith("err 3 ")
    assert fields["backend"] == "none"
    assert "share" in fields["reason"]
    assert node.stub.setter_calls() == []


def test_gpus_of_other_step_widths(make_node: Callable[..., LoneNode]) -> None:
    """GB200's clock list, in steps told as 8 and 7 MHz, is told and snapped to as it is."""
    node = make_node(model="gb200")
    node.serve(gpus="0")
    agent = node.agent()

    fields = agent.hello()
    agent.ask("lock * 1201")

    clocks = [int(mhz) for mhz in fields["clocks"].split(",")]
    assert clocks == list(node.stub.clocks_mhz())
    low, high = node.stub.locked_mhz(0) or (0, 0)
    assert low == clocks[0]
    assert high == min(clocks, key=lambda mhz: (abs(mhz - 1201), mhz))
    assert fields["scope"] == "unknown"


def test_audit_lines(node: LoneNode) -> None:
    """syslog has the grant, the first lock and the result of the reset, each once."""
    node.serve(gpus="0")
    agent = node.agent()
    agent.ask("lock * 1200")
    agent.ask("lock * 900")
    agent.close()

    until(lambda: "reset of" in node.syslog(), "the reset is logged")

    log = node.syslog()
    assert log.count("clock control granted to uid 4001") == 1
    assert log.count("first clock lock, 1200 MHz") == 1
    assert log.count(f"reset of {node.stub.uuid(0)}: done") == 1
