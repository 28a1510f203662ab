"""Sums, units and counts of the report against runs whose truth is known."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from report.ledgers import (
    RunSpec,
    constant_power_events,
    end_event,
    is_governor,
    start_events,
    write_ledger,
    write_run,
)
from report.reading import strict, table

from eerl_launch.report import write_report


@pytest.fixture
def constant(tmp_path: Path) -> Path:
    """Field case E01: 2 nodes of 2 GPUs at 100, 200, 300 and 400 W for 120 s."""
    spec = RunSpec()
    return write_ledger(tmp_path, constant_power_events(spec, [100.0, 200.0, 300.0, 400.0], 120.0, 10.0))


def test_total_and_gpus_are_power_times_time(constant: Path) -> None:
    """Four GPUs at constant power for 120 s used 120 kJ, each its own part of it."""
    document = strict(write_report(constant, ["json"]).json)

    total = document["allocation"]
    assert total["energy_j"] == pytest.approx(120_000)
    assert total["energy_kwh"] == pytest.approx(120_000 / 3.6e6)
    assert total["mean_power_w"] == pytest.approx(1000)
    assert [gpu["energy_j"] for gpu in document["gpus"]] == pytest.approx([12_000, 24_000, 36_000, 48_000])
    assert [node["energy_j"] for node in document["nodes"]] == pytest.approx([36_000, 84_000])


def test_phases_and_unattributed_make_up_the_total(constant: Path) -> None:
    """The exclusive rows of the phase table, unattributed among them, add up to the total in time and energy."""
    document = strict(write_report(constant, ["json"]).json)

    parts = [row for row in document["phases"] if row["exclusive"]]
    assert parts[-1]["phase"] == "unattributed"
    assert sum(row["energy_j"] for row in parts) == pytest.approx(120_000, rel=1e-3)
    assert sum(row["elapsed_s"] for row in parts) == pytest.approx(120, rel=1e-3)
    assert all(check["ok"] for check in document["checks"])


def test_csv_files_add_up_like_the_document(tmp_path: Path) -> None:
    """A script that sums the CSV files gets the totals of report.json."""
    paths = write_report(write_run(tmp_path), ["json", "csv"])

    document = strict(paths.json)
    gpus, phases, updates = table(paths.gpus_csv), table(paths.phases_csv), table(paths.updates_csv)
    assert sum(float(row["energy_j"]) for row in gpus) == pytest.approx(document["allocation"]["energy_j"])
    parts = sum(float(row["energy_j"]) for row in phases if row["exclusive"] == "true")
    rest = next(row for row in document["phases"] if row["phase"] == "unattributed")
    assert parts + rest["energy_j"] == pytest.approx(document["allocation"]["energy_j"], rel=1e-3)
    assert len(updates) == 60
    assert set(updates[0]) >= {
        "update",
        "elapsed_s",
        "energy_j",
        "generated_tokens",
        "valid_tokens",
        "longest_response_tokens",
    }
    one = gpus[0]
    own = sum(float(value) for key, value in one.items() if key.startswith("phase:"))
    assert own + float(one["unattributed_energy_j"]) == pytest.approx(float(one["energy_j"]))


def drop_counts(event: dict) -> Iterator[dict] | None:
    """Update 10 without counts, update 20 with none of its tokens valid."""
    if event["ev"] != "update" or event["index"] not in (9, 19):
        return None
    record = dict(event["record"])
    if event["index"] == 9:
        record |= {"generated_tokens": None, "valid_tokens": None}
    else:
        record |= {"valid_tokens": 0}
    return iter([{**event, "record": record}])


def test_per_token_values_use_only_updates_with_counts(tmp_path: Path) -> None:
    """Field cases E02 and R06: an update without counts, or with zero, is in the totals and in no quotient."""
    spec = RunSpec(edit=drop_counts)
    paths = write_report(write_run(tmp_path, spec), ["json", "csv"])

    found = strict(paths.json)["updates"]
    rows = table(paths.updates_csv)
    used = [row for row in rows if row["valid_tokens"] not in ("", "0")]
    assert found["updates"] == 60
    assert found["energy_j_per_valid_token_updates_used"] == len(used) == 58
    expected = sum(float(row["energy_j"]) for row in used) / sum(int(row["valid_tokens"]) for row in used)
    assert found["energy_j_per_valid_token"] == pytest.approx(expected)
    assert rows[9]["energy_j_per_valid_token"] == rows[19]["energy_j_per_valid_token"] == ""


def test_subphases_lie_inside_their_phase(tmp_path: Path) -> None:
    """A subphase has its own row, is marked as no part of the partition, and follows its phase."""
    document = strict(write_report(write_run(tmp_path), ["json"]).json)

    names = [row["phase"] for row in document["phases"]]
    prefill = document["phases"][names.index("generation") + 1]
    assert prefill["phase"] == "generation/prefill"
    assert not prefill["exclusive"]
    assert prefill["energy_j"] == pytest.approx(
        0.3 * document["phases"][names.index("generation")]["energy_j"]
    )


def test_separate_pools_show_what_waiting_costs(tmp_path: Path) -> None:
    """Field case E12: with a pool for each role, the energy of a pool during the others' phases is its waiting."""
    spec = RunSpec(nodes=1, gpus_per_node=4, updates=0, end=False)
    generation, training = spec.uuids[:2], spec.uuids[2:]
    events = list(start_events(spec))
    for role, members in (("generation", generation), ("training", training)):
        events.append({"ev": "pool", "t_s": 1.0, "role": role, "gpus": members})
    for begin_s, phase, busy in ((0.0, "generation", generation), (60.0, "training", training)):
        energy_j = {uuid: 60.0 * (400.0 if uuid in busy else 90.0) for uuid in spec.uuids}
        events.append(
            {
                "ev": "phase",
                "t_s": begin_s + 60.0,
                "update": 1,
                "phase": phase,
                "begin_s": begin_s,
                "end_s": begin_s + 60.0,
                "elapsed_s": 60.0,
                "energy_j": sum(energy_j.values()),
                "gpu_energy_j": energy_j,
                "exclusive": True,
                "complete": True,
                "busy_fraction": 0.5,
            }
        )
    events.append(end_event(spec, 120.0, dict.fromkeys(spec.uuids, 60.0 * 490.0)))

    pools = {
        row["pool"]: row
        for row in strict(write_report(write_ledger(tmp_path, iter(events)), ["json"]).json)["pools"]
    }

    for row in pools.values():
        assert row["separate"]
        assert row["gpus"] == 2
        assert row["own_phase_energy_j"] == pytest.approx(2 * 60 * 400)
        assert row["other_phase_energy_j"] == pytest.approx(2 * 60 * 90)
        assert row["waiting_energy_j"] == pytest.approx(2 * 60 * 90)
        assert row["idle_fraction"] == pytest.approx(0.5)


def test_pools_that_work_at_once(tmp_path: Path) -> None:
    """Asynchronous: waits come from the updates, the unattributed time is that in which nothing ran."""
    spec = RunSpec(nodes=1, gpus_per_node=4, updates=0, end=False)
    generation, training = spec.uuids[:2], spec.uuids[2:]
    events = list(start_events(spec))
    events.append({"ev": "controller", "t_s": 0.5, "mode": "async_drained"})
    for role, members in (("generation", generation), ("training", training)):
        events.append({"ev": "pool", "t_s": 1.0, "role": role, "gpus": members})
    for phase, end_s, members in (("generation", 40.0, generation), ("training", 100.0, training)):
        joules = dict.fromkeys(members, 400.0 * end_s)
        events.append(
            {
                "ev": "phase",
                "t_s": end_s,
                "update": 1,
                "phase": phase,
                "pool": phase,
                "begin_s": 0.0,
                "end_s": end_s,
                "elapsed_s": end_s,
                "energy_j": sum(joules.values()),
                "gpu_energy_j": joules,
                "exclusive": True,
                "complete": True,
            }
        )
    waits = {
        "generation": {"wait_s": 80.0, "energy_j": 2 * 90.0 * 80.0},
        "training": {"wait_s": 20.0, "energy_j": 2 * 90.0 * 20.0},
    }
    record = {"update": 1, "elapsed_s": 120.0}
    events.append({"ev": "update", "t_s": 120.0, "index": 0, "record": record, "pool_waits": waits})
    by_gpu = dict.fromkeys(generation, 400.0 * 40 + 90.0 * 80)
    by_gpu |= dict.fromkeys(training, 400.0 * 100 + 90.0 * 20)
    events.append(end_event(spec, 120.0, by_gpu))

    document = strict(write_report(write_ledger(tmp_path, iter(events)), ["json"]).json)

    pools = {row["pool"]: row for row in document["pools"]}
    assert pools["generation"]["waiting_energy_j"] == pytest.approx(2 * 90 * 80)
    assert pools["training"]["waiting_energy_j"] == pytest.approx(2 * 90 * 20)
    rest = next(row for row in document["phases"] if row["phase"] == "unattributed")
    assert rest["elapsed_s"] == pytest.approx(20.0)
    assert rest["energy_j"] == pytest.approx(2 * 90 * 80 + 2 * 90 * 20)
    assert all(check["ok"] is not False for check in document["checks"])


def test_requested_and_achieved_clocks_are_kept_apart(tmp_path: Path) -> None:
    """Field case C01: clock asked for, clock achieved and the share of time under a cap stand side by side."""
    spec = RunSpec()
    document = strict(write_report(write_run(tmp_path, spec), ["json"]).json)

    training = next(row for row in document["phases"] if row["phase"] == "training")
    lowered = [index for index in range(spec.updates) if not is_governor(spec, index)]
    assert training["requested_mhz"] == pytest.approx(spec.training_mhz)
    assert spec.training_mhz - 3 < training["achieved_mhz"] < 1755
    assert 0 < training["capped_fraction"] < 0.6
    assert 0 < training["governor_time_fraction"] < 1
    assert document["updates"]["governor_updates"] == spec.updates - len(lowered)


def test_energy_of_a_phase_that_is_not_known_is_said(tmp_path: Path) -> None:
    """A phase run without energy is null with its reason, and its joules show as unattributed, never as 0 W."""

    def blind(event: dict) -> Iterator[dict] | None:
        if event["ev"] == "phase" and event["update"] == 3 and event["phase"] == "training":
            unknown = dict.fromkeys(event["gpu_energy_j"])
            return iter(
                [
                    {
                        **event,
                        "energy_j": None,
                        "energy_reason": "4 of 4 GPUs not covered",
                        "gpu_energy_j": unknown,
                    }
                ]
            )
        return None

    paths = write_report(write_run(tmp_path, RunSpec(edit=blind)), ["json", "txt", "csv"])

    document = strict(paths.json)
    training = next(row for row in document["phases"] if row["phase"] == "training")
    rest = next(row for row in document["phases"] if row["phase"] == "unattributed")
    assert training["runs_without_energy"] == 1
    assert rest["mean_power_w"] is None
    assert "4 of 4 GPUs not covered" in paths.txt.read_text()
    row = next(row for row in table(paths.phases_csv) if row["update"] == "3" and row["phase"] == "training")
    assert (row["energy_j"], row["mean_power_w"]) == ("", "")


def test_sums_that_do_not_agree_are_shown_as_wrong(tmp_path: Path) -> None:
    """A ledger whose update lost a tenth of its energy fails the check and the trust section says so."""

    def cut(event: dict) -> Iterator[dict] | None:
        if event["ev"] == "update" and event["index"] == 4:
            return iter(
                [{**event, "record": {**event["record"], "energy_j": 0.9 * event["record"]["energy_j"]}}]
            )
        return None

    document = strict(write_report(write_run(tmp_path, RunSpec(edit=cut)), ["json"]).json)

    wrong = [check for check in document["checks"] if not check["ok"]]
    assert {check["check"] for check in wrong} == {
        "phases plus unattributed equal each update",
        "GPUs add up to each update",
    }
    assert all("not: 5" in check["seen"] for check in wrong)
    assert document["trust"][0]["level"] == "bad"


def test_labels_that_repeat_do_not_mix_updates(tmp_path: Path) -> None:
    """Field case R04: a trainer that counts from 0 again in mid-run keeps its updates apart."""

    def relabel(event: dict) -> Iterator[dict] | None:
        if event["ev"] == "update":
            return iter([{**event, "label": event["index"] % 30}])
        return iter([{**event, "update": (event["update"] - 1) % 30}]) if event["ev"] == "phase" else None

    paths = write_report(write_run(tmp_path, RunSpec(edit=relabel)), ["json", "csv", "html"])

    document = strict(paths.json)
    assert all(check["ok"] for check in document["checks"])
    assert [int(row["update"]) for row in table(paths.updates_csv)] == [*range(30), *range(30)]


def test_cost_and_carbon_only_with_factors(tmp_path: Path) -> None:
    """Field case E06: no factor, no field; with price, intensity and PUE the exact products and their origin."""
    plain, priced = RunSpec(), RunSpec()
    priced.policy["report"] |= {"price_per_kwh": 0.25, "currency": "EUR", "carbon_g_per_kwh": 300, "pue": 1.3}

    without = strict(write_report(write_run(tmp_path / "a", plain), ["json"]).json)
    paths = write_report(write_run(tmp_path / "b", priced), ["json", "txt", "html"])

    assert without["cost"] is None
    document = strict(paths.json)
    kwh, cost = document["allocation"]["energy_kwh"], document["cost"]
    assert cost["price"] == pytest.approx(kwh * 1.3 * 0.25)
    assert cost["carbon_g"] == pytest.approx(kwh * 1.3 * 300)
    assert "policy.yaml" in cost["origin"]
    for path in (paths.txt, paths.html):
        text = " ".join(path.read_text().split())
        assert "at 300 g/kWh × PUE 1.3" in text
        assert "at 0.25 EUR/kWh × PUE 1.3" in text


def test_what_came_of_the_clocks(tmp_path: Path) -> None:
    """Resets that failed or are unknown are named by node with GPU and code."""

    def end(event: dict) -> Iterator[dict] | None:
        if event["ev"] != "end":
            return None
        failure = {"uuid": "GPU-1", "code": 15, "text": "GPU is lost"}
        return iter(
            [
                {
                    **event,
                    "resets": {
                        "node01": {"ok": False, "failures": [failure], "unknown": False},
                        "node02": {"ok": None, "failures": [], "unknown": True},
                    },
                }
            ]
        )

    paths = write_report(write_run(tmp_path, RunSpec(edit=end)), ["json", "txt"])

    first, second = strict(paths.json)["clocks_at_end"]
    assert (first["state"], second["state"]) == ("failures", "unknown")
    assert "GPU-1 15 GPU is lost" in first["text"]
    assert "node02: not known" in paths.txt.read_text()


def test_load_by_gpu_is_that_of_the_end_line(tmp_path: Path) -> None:
    """Clock, idle, capped and slowed share of a GPU are those of the end line, of a node their mean; else null."""
    spec = RunSpec(updates=3)
    first, second = spec.uuids[:2]

    def loaded(event: dict) -> Iterator[dict] | None:
        if event["ev"] != "end":
            return None
        whole = {
            "achieved_mhz": 1500.0,
            "busy_fraction": 0.75,
            "capped_fraction": 0.5,
            "slowed_fraction": 0.0,
        }
        partly = {"achieved_mhz": 1400.0, "busy_fraction": None, "capped_fraction": "NaN"}
        return iter([{**event, "gpu_load": {first: whole, second: partly, "GPU-of-nobody": whole}}])

    spec.edit = loaded
    paths = write_report(write_run(tmp_path, spec), ["json", "csv"])

    document = strict(paths.json)
    assert [gpu["achieved_mhz"] for gpu in document["gpus"]] == [1500.0, 1400.0, None, None]
    assert [gpu["idle_fraction"] for gpu in document["gpus"]] == [0.25, None, None, None]
    assert [gpu["capped_fraction"] for gpu in document["gpus"]] == [0.5, None, None, None]
    assert [node["achieved_mhz"] for node in document["nodes"]] == [1450.0, None]
    assert [row["slowed_fraction"] for row in table(paths.gpus_csv)] == ["0", "", "", ""]


def test_total_row_has_the_clocks_of_the_allocation(tmp_path: Path) -> None:
    """The total row carries requested and achieved clock and idle share over all phases of the partition."""
    paths = write_report(write_run(tmp_path), ["json", "csv"])

    total = strict(paths.json)["phases"][-1]
    rows = [row for row in table(paths.phases_csv) if row["exclusive"] == "true"]
    seconds = sum(float(row["elapsed_s"]) for row in rows)
    achieved = sum(float(row["achieved_mhz"]) * float(row["elapsed_s"]) for row in rows) / seconds
    assert total["phase"] == "total"
    assert total["achieved_mhz"] == pytest.approx(achieved)
    assert 1200 < total["requested_mhz"] < 1500
