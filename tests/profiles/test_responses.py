"""Response lengths, who waits for the longest, and what rewards cost: known answers, and null with its reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from profiles.small_ledgers import GPUS, end, lengths, phase, start, update
from report.ledgers import write_ledger

from eerl_launch.ledger import Event
from eerl_launch.profiles.document import profile

COUNTS = {"generated_tokens": 8000, "valid_tokens": 8000, "longest_generated_tokens": 400}


def shown(folder: Path) -> dict[str, Any]:
    """The profile of the only run."""
    (run,) = profile([folder]).document["runs"]
    return run


def generations(tails: list[dict[str, float] | None], watts: list[list[float]]) -> list[Event]:
    """An update of 10 s of generation for each, with idle seconds at its end by GPU."""
    found = []
    for index, (tail, power) in enumerate(zip(tails, watts, strict=True)):
        more = {} if tail is None else {"gpu_idle_tail_s": tail}
        found += [
            phase("generation", 10 * index, 10, power, **more),
            update(index, 10 * index, 10, 10 * sum(power), COUNTS, responses=40),
        ]
    return found


# -- lengths ------------------------------------------------------------------------------------------------


def test_mean_and_longest_come_from_the_markers_counts(tmp_path: Path) -> None:
    """8000 tokens in 40 responses are 200 each; the longest has 400, so half of the places stand empty at most."""
    found = shown(write_ledger(tmp_path, [*start(), *generations([None], [[400] * 4]), end(10)]))["responses"]

    assert found["mean_tokens"]["mean"] == 200.0
    assert found["longest_over_mean"]["mean"] == 2.0
    assert found["empty_places_fraction"]["mean"] == 0.5
    assert (found["quantiles_tokens"], found["tail_fraction"]) == (None, None)
    assert "mark.response_lengths" in found["reasons"]["tail_fraction"]


def test_a_told_distribution_gives_quantiles_and_the_tail(tmp_path: Path) -> None:
    """Nine of ten responses have ended at 100 of 400 steps: three quarters of decoding is their tail."""
    events = [
        *start(),
        lengths(0, 200.0, 40, p50=90, p90=100, max=400),
        *generations([None], [[400] * 4]),
        end(10),
    ]

    found = shown(write_ledger(tmp_path, events))["responses"]

    assert found["quantiles_tokens"]["p50"]["mean"] == 90.0
    assert found["tail_fraction"]["mean"] == 0.75
    assert "tail_fraction" not in found["reasons"]


def test_of_several_senders_the_one_that_saw_most_responses_counts(tmp_path: Path) -> None:
    """A rank that tells its own responses only does not replace the job's."""
    told = [lengths(0, 200.0, 40, p50=90), lengths(0, 300.0, 10, p50=200)]

    found = shown(write_ledger(tmp_path, [*start(), *told, *generations([None], [[400] * 4]), end(10)]))[
        "responses"
    ]

    assert found["mean_tokens"]["mean"] == 200.0


def test_told_lengths_are_held_against_the_longest_of_their_own_batch(tmp_path: Path) -> None:
    """In flight the longest that was generated meanwhile (400) is of another batch than the lengths (at most 250)."""
    told = [lengths(0, 125.0, 40, p90=200, max=250)]
    events = [*start(mode="async_inflight"), *told, *generations([None], [[400] * 4]), end(10)]

    found = shown(write_ledger(tmp_path, events))["responses"]

    assert found["longest_over_mean"]["mean"] == 2.0
    assert found["tail_fraction"]["mean"] == pytest.approx(0.2)


def test_without_responses_the_reason_is_told(tmp_path: Path) -> None:
    """The longest alone: it is shown, everything that needs the mean is null and says what to send."""
    events = [*start(), phase("generation", 0, 10, [400] * 4), update(0, 0, 10, 16_000, COUNTS), end(10)]

    found = shown(write_ledger(tmp_path, events))["responses"]

    assert found["longest_tokens"]["mean"] == 400.0
    assert found["mean_tokens"] is None
    assert "how many responses" in found["reasons"]["mean_tokens"]
    assert "how many responses" in found["reasons"]["empty_places_fraction"]


def test_an_asynchronous_update_s_tokens_are_not_divided_by_another_batch_s_responses(tmp_path: Path) -> None:
    """In flight the mean of an update is null; valid tokens and responses are of one batch."""
    events = [*start(mode="async_inflight"), *generations([None], [[400] * 4]), end(10)]

    found = shown(write_ledger(tmp_path, events))["responses"]

    assert found["mean_tokens"] is None
    assert found["valid_tokens_per_response"]["mean"] == 200.0
    assert "different batches" in found["reasons"]["mean_tokens"]


# -- who waits ----------------------------------------------------------------------------------------------


def test_idle_ends_of_generation_by_gpu_and_node(tmp_path: Path) -> None:
    """The second node waits 4 of 20 s, GPU c 6 of them, and GPU a is the last in both updates."""
    tails = [
        {"GPU-a": 0.0, "GPU-b": 1.0, "GPU-c": 2.0, "GPU-d": 1.0},
        {"GPU-a": 0.0, "GPU-b": 1.0, "GPU-c": 4.0, "GPU-d": 1.0},
    ]

    found = shown(write_ledger(tmp_path, [*start(), *generations(tails, [[400] * 4] * 2), end(20)]))[
        "imbalance"
    ]

    assert found["waiting_fraction"] == pytest.approx(10 / 80)
    by_gpu = {row["uuid"]: row for row in found["by_gpu"]}
    assert [by_gpu[uuid]["waiting_fraction"] for uuid in GPUS] == pytest.approx([0.0, 0.1, 0.3, 0.1])
    assert by_gpu["GPU-c"]["mean_waiting_s"] == 3.0
    assert [by_gpu[uuid]["last_updates"] for uuid in GPUS] == [2, 0, 0, 0]
    assert {row["node"]: row["waiting_fraction"] for row in found["by_node"]} == pytest.approx(
        {"n1": 0.05, "n2": 0.2}
    )
    assert found["waiting_reason"] is None


def test_a_gpu_whose_idleness_is_not_told_is_null_and_not_zero(tmp_path: Path) -> None:
    """One GPU without utilisation: it is unknown, the others are known."""
    tails = [{"GPU-a": 0.0, "GPU-b": 2.0, "GPU-c": None, "GPU-d": 2.0}]

    found = shown(write_ledger(tmp_path, [*start(), *generations(tails, [[400] * 4]), end(10)]))["imbalance"]

    rows = {row["uuid"]: row for row in found["by_gpu"]}
    assert (rows["GPU-c"]["waiting_fraction"], rows["GPU-a"]["last_updates"]) == (None, None)
    assert found["waiting_fraction"] == pytest.approx(4 / 30)


def test_a_ledger_that_does_not_tell_idle_ends_says_so(tmp_path: Path) -> None:
    """An older ledger: power by GPU is there, waiting is null with the reason."""
    found = shown(write_ledger(tmp_path, [*start(), *generations([None], [[300, 300, 500, 500]]), end(10)]))[
        "imbalance"
    ]

    assert found["waiting_fraction"] is None
    assert "does not tell when each GPU ran out of work" in found["waiting_reason"]
    assert found["by_gpu"][0]["relative_power"] == pytest.approx(0.75)


def test_unevenness_is_what_changes_between_gpus_and_not_what_they_differ_in_for_good(tmp_path: Path) -> None:
    """GPUs of other draw under work that changes evenly are even; work that wanders between them is not."""
    rng = np.random.default_rng(0)
    own, levels = np.array([300.0, 400.0, 450.0, 500.0]), np.exp(rng.normal(0, 0.2, 40))
    even = (levels[:, None] * own).tolist()
    uneven = (levels[:, None] * own * np.exp(rng.normal(0, 0.05, (40, 4)))).tolist()

    found = [
        shown(write_ledger(tmp_path / name, [*start(), *generations([None] * 40, watts), end(400)]))[
            "imbalance"
        ]
        for name, watts in (("even", even), ("uneven", uneven))
    ]

    assert found[0]["power_unevenness_fraction"] == pytest.approx(0.0, abs=1e-9)
    assert found[1]["power_unevenness_fraction"] == pytest.approx(0.05, rel=0.15)


def test_in_flight_nobody_waits_for_the_end_of_generation(tmp_path: Path) -> None:
    """Generation that never stops has no end to wait for."""
    tails = [dict.fromkeys(GPUS, 1.0)]

    found = shown(
        write_ledger(tmp_path, [*start(mode="async_inflight"), *generations(tails, [[400] * 4]), end(10)])
    )

    assert found["imbalance"]["waiting_fraction"] is None
    assert "never stops" in found["imbalance"]["waiting_reason"]


def test_pools_that_wait_for_each_other(tmp_path: Path) -> None:
    """Drained: what each pool waited and drew meanwhile; what no phase claims has a power that GPUs can have."""
    waits = {
        "generation": {"wait_s": 6.0, "energy_j": 1200.0},
        "training": {"wait_s": 2.0, "energy_j": 400.0},
    }
    own = [
        phase("generation", 0, 4, [400] * 2),
        phase("training", 0, 8, [600] * 2),
        {**update(0, 0, 10, 14_400, COUNTS, responses=40, rest=(2, 1600)), "pool_waits": waits},
    ]
    pools = [{"ev": "pool", "t_s": 0.3, "role": "generation", "gpus": ["GPU-a", "GPU-b"]}]

    found = shown(write_ledger(tmp_path, [*start(mode="async_drained"), *pools, *own, end(10)]))

    rows = {row["pool"]: row for row in found["imbalance"]["by_pool"]}
    assert (rows["generation"]["mean_wait_s"], rows["generation"]["wait_fraction"]) == (6.0, 0.6)
    assert (rows["training"]["mean_wait_energy_j"], rows["training"]["gpus"]) == (400.0, None)
    by_phase = {row["phase"]: row for row in found["signature"]}
    assert by_phase["generation"]["gpus"] == 2
    assert by_phase["unattributed"]["mean_power_w_per_gpu"] == pytest.approx(1600 / (4 * 10 - 2 * 4 - 2 * 8))
    parts = [row for row in found["signature"] if row["exclusive"]]
    gpu_s = sum(row["gpu_s_per_million_valid_tokens"] for row in parts)
    assert gpu_s == pytest.approx(by_phase["update"]["gpu_s_per_million_valid_tokens"])


# -- rewards ------------------------------------------------------------------------------------------------


def test_the_cost_of_a_reward_model(tmp_path: Path) -> None:
    """Time, energy, energy by response, bytes moved and the parts of a reward; its subphase tells the paradigm."""
    events = [
        *start(),
        phase("training", 0, 6, [500] * 4),
        phase("reward", 6, 4, [250] * 4, busy_fraction=0.6),
        phase("reward/model", 6, 3, [300] * 4),
        {"ev": "metric", "t_s": 9.0, "name": "reward_transfer_bytes", "value": 3e9, "update": 0},
        {"ev": "metric", "t_s": 9.0, "name": "reward_transfer_bytes", "value": 1e9, "update": 0},
        {"ev": "metric", "t_s": 9.0, "name": "checkpoint_bytes", "value": 9e9, "update": 0},
        update(0, 0, 10, 16_000, COUNTS, responses=40),
        end(10),
    ]

    found = shown(write_ledger(tmp_path, events))["reward"]

    assert found["paradigm"] == "model"
    assert (found["mean_elapsed_s"], found["mean_energy_j"], found["busy_fraction"]) == (4.0, 4_000.0, 0.6)
    assert (found["elapsed_fraction"], found["energy_fraction"]) == (0.4, 0.25)
    assert found["energy_j_per_response"] == 100.0
    assert [(part["phase"], part["mean_energy_j"]) for part in found["parts"]] == [("reward/model", 3_600.0)]
    assert {name: item["mean"] for name, item in found["moved_bytes_per_update"].items()} == {
        "reward_transfer_bytes": 4e9
    }


def test_a_run_without_reward_phase_says_where_its_cost_is(tmp_path: Path) -> None:
    """No reward phase: nulls, and the reasons."""
    found = shown(write_ledger(tmp_path, [*start(), *generations([None], [[400] * 4]), end(10)]))["reward"]

    assert (found["paradigm"], found["mean_energy_j"], found["moved_bytes_per_update"]) == (None, None, None)
    assert "no phase named reward" in found["reason"]
    assert "does not tell bytes" in found["moved_bytes_reason"]
