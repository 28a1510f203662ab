"""Which GPUs have which role, and what is said when that cannot be known (field cases N18, N19, R08)."""

from __future__ import annotations

from typing import Any

import pytest

from eerl_launch.arrangement import Arrangement
from eerl_launch.energy import Allocation
from eerl_launch.markers import Marker
from eerl_launch.modes import Border, Mode
from eerl_launch.nodes import Node
from eerl_launch.policy import Policy
from eerl_launch.policy import Pools as PolicyPools
from eerl_launch.pools import Pools

INVENTORY = {
    "n1": {0: "GPU-10", 1: "GPU-11", 2: "GPU-12", 3: "GPU-13"},
    "n2": {2: "GPU-22", 3: "GPU-23"},
}


def settled(told: dict[str, list[Any]] | None = None, **policy: list[str]) -> Pools:
    pools = Pools(policy)
    for role, groups in (told or {}).items():
        for group in groups:
            pools.tell(role, group)
    pools.settle(INVENTORY)
    return pools


def test_events_of_a_role_add_up() -> None:
    """Each rank may name its own GPU; the pool is all of them."""
    pools = settled({"generation": [["GPU-10"], ["GPU-11"]], "training": [["GPU-22", "GPU-23"]]})

    assert pools.problem is None
    assert pools.members == {"generation": {"GPU-10", "GPU-11"}, "training": {"GPU-22", "GPU-23"}}
    assert [pools.of(uuid) for uuid in ("GPU-10", "GPU-23", "GPU-13")] == ["generation", "training", None]


@pytest.mark.parametrize(
    ("entries", "members"),
    [
        (["n1:0-1"], {"GPU-10", "GPU-11"}),
        (["n1:0,3"], {"GPU-10", "GPU-13"}),
        (["n1:*"], {"GPU-10", "GPU-11", "GPU-12", "GPU-13"}),
        (["n[1-2]:2"], {"GPU-12", "GPU-22"}),
        (["GPU-13", "n1:0"], {"GPU-13", "GPU-10"}),
    ],
)
def test_ranges_of_the_policy(entries: list[str], members: set[str]) -> None:
    """N19: an index in the policy is NVML's on that node, and lands on exactly those GPUs."""
    assert settled(generation=entries, training=["GPU-23"]).members["generation"] == members


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ({"generation": ["n1:0-4"], "training": ["n2:2"]}, "n1 has no GPU 4"),
        ({"generation": ["n3:0"], "training": ["n2:2"]}, "no node n3"),
        ({"generation": ["n1:0-1"], "training": ["n1:1-2"]}, "in both pools: GPU-11"),
        ({"generation": ["GPU-99"], "training": ["n1:1"]}, "not the job's or not measured: GPU-99"),
        ({"generation": ["n[1-:0"], "training": ["n1:1"]}, "n[1-"),
    ],
)
def test_pools_that_cannot_be(policy: dict[str, list[str]], words: str) -> None:
    """A contradiction is named with the GPUs at fault, and no GPU gets a role."""
    pools = settled(**policy)

    assert pools.problem is not None and words in pools.problem
    assert pools.contradiction
    assert pools.members == {}


def test_policy_and_trainer_must_agree() -> None:
    """Two sources that name different GPUs are no knowledge; that name the same are."""
    told = {"generation": [["GPU-10"]], "training": [["GPU-22"]]}

    assert settled(told, generation=["n1:0"], training=["n2:2"]).problem is None
    other = settled(told, generation=["n1:1"])
    assert other.problem is not None and "not in the policy's generation pool: GPU-10" in other.problem
    assert other.contradiction


def test_ranks_that_tell_one_after_another_agree_with_the_policy() -> None:
    """The policy's pool is known from the start; a rank whose GPU has not been told yet contradicts nothing."""
    pools = settled({"training": [["GPU-22"]]}, generation=["n1:0-1"], training=["n2:2-3"])

    assert pools.problem is None
    assert pools.members["training"] == {"GPU-22", "GPU-23"}
    pools.tell("training", ["GPU-23"])
    assert not pools.settle(INVENTORY), "nothing new"


def test_missing_pool_may_still_come() -> None:
    """Until both roles are known it says what is missing and how to tell; later events mend it."""
    pools = settled({"generation": [["GPU-10"]]})
    assert pools.problem is not None and "training" in pools.problem and "mark.pool" in pools.problem
    assert not pools.contradiction

    pools.tell("training", ["GPU-22"])

    assert pools.settle(INVENTORY)
    assert pools.problem is None
    assert not pools.settle(INVENTORY), "nothing new"


@pytest.mark.parametrize(("role", "gpus"), [(7, ["GPU-10"]), ("training", "GPU-10"), ("training", None)])
def test_malformed_pool_events_are_passed_over(role: object, gpus: object) -> None:
    """An event that is none changes nothing."""
    pools = settled({"generation": [["GPU-11"]]})

    pools.tell(role, gpus)
    pools.settle(INVENTORY)

    assert pools.told.get("training", set()) == set()


def run_marker(mode: object) -> Marker:
    return Marker("run", 0.0, "1", fields={"mode": mode})


def test_mode_from_the_trainer() -> None:
    """With `mode: auto` the trainer's word counts, until phases have begun."""
    arrangement = Arrangement(Policy())
    assert (arrangement.mode, arrangement.mode_source) == (Mode.COLOCATED_SYNC, "assumed")

    arrangement.tell_mode(run_marker("async_inflight"))

    assert (arrangement.mode, arrangement.mode_source) == (Mode.ASYNC_INFLIGHT, "trainer")
    assert arrangement.mode.border is Border.PAUSE
    assert arrangement.contradiction is None


@pytest.mark.parametrize(
    ("policy_mode", "settled_before", "told", "words"),
    [
        ("async_drained", False, "async_inflight", "the policy says async_drained"),
        ("auto", True, "async_drained", "only after its first update"),
        ("auto", False, "asynchronous", "unknown mode 'asynchronous'"),
        ("auto", False, ["x"], "unknown mode"),
    ],
)
def test_modes_that_contradict(policy_mode: str, settled_before: bool, told: object, words: str) -> None:
    """Markers that say one mode and a policy that says another, or a mode too late, end control with the reason."""
    arrangement = Arrangement(Policy(mode=policy_mode))
    if settled_before:
        arrangement.settle("its first update")
    before = arrangement.mode

    arrangement.tell_mode(run_marker(told))

    assert arrangement.mode is before
    assert arrangement.problem is not None and words in arrangement.problem
    assert arrangement.problem_is_final


def test_mode_that_changes_its_mind() -> None:
    """After its first phase a trainer's word stands; before, and where it was only assumed, the last word counts."""
    arrangement = Arrangement(Policy())
    arrangement.begin()
    assert arrangement.mode_known and arrangement.assumes

    arrangement.tell_mode(run_marker("async_drained"))
    arrangement.tell_mode(run_marker("async_drained"))
    assert (arrangement.mode, arrangement.contradiction) == (Mode.ASYNC_DRAINED, None)

    arrangement.tell_mode(run_marker("async_inflight"))
    assert arrangement.mode is Mode.ASYNC_DRAINED
    assert "only after its first phase" in str(arrangement.problem)


@pytest.mark.parametrize(
    ("policy_mode", "told"),
    [("async_drained", "async_drained"), ("auto", None), ("auto", "auto"), ("colocated_sync", None)],
)
def test_modes_that_agree(policy_mode: str, told: object) -> None:
    """Saying nothing, or the same, is no contradiction."""
    arrangement = Arrangement(Policy(mode=policy_mode))

    arrangement.tell_mode(run_marker(told))

    assert arrangement.contradiction is None


def node(name: str, gpus: dict[int, str]) -> Node:
    info = {"gpus": [{"uuid": uuid, "index": index} for index, uuid in gpus.items()]}
    return Node(name, state="joined", info=info)


def test_arrangement_of_separate_pools() -> None:
    """Separate modes need both pools; then a pool's members are known, in a colocated run they are all GPUs."""
    nodes = [node(name, gpus) for name, gpus in INVENTORY.items()]
    policy = Policy(mode="disaggregated_sync", pools=PolicyPools(("n1:*",), None))
    arrangement = Arrangement(policy)

    arrangement.settle_pools(nodes, Allocation())
    assert arrangement.problem is not None and not arrangement.problem_is_final
    assert not arrangement.separate and arrangement.members("generation") is None

    arrangement.tell_pool(Marker("pool", 0.0, "1", fields={"role": "training", "gpus": ["GPU-22"]}))
    assert arrangement.settle_pools(nodes, Allocation())
    assert arrangement.problem is None
    assert arrangement.members("training") == {"GPU-22"}

    colocated = Arrangement(Policy())
    colocated.settle_pools(nodes, Allocation())
    assert colocated.problem is None and colocated.members("training") is None
