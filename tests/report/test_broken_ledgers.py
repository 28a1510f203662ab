"""Whatever a ledger looks like, there is a report, and it says what is missing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from report.ledgers import RunSpec, run_events, write_ledger, write_run
from report.reading import strict, table

from eerl_launch.errors import LedgerError
from eerl_launch.ledger import FILE_NAME
from eerl_launch.report import write_report

SMALL = RunSpec(nodes=1, gpus_per_node=2, updates=12, calibration=5, lock_from=9, warm_up=0)


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The bytes of a small whole ledger."""
    return (write_run(tmp_path_factory.mktemp("whole"), SMALL) / FILE_NAME).read_bytes()


def test_a_ledger_cut_at_any_line_gives_a_report_marked_incomplete(ledger: bytes, tmp_path: Path) -> None:
    """Killed after any line: every file is there, strict, and says incomplete; energies only grow with the lines."""
    lines = ledger.splitlines(keepends=True)
    last_j = 0.0
    for count in range(0, len(lines), 5):
        folder = tmp_path / str(count)
        folder.mkdir()
        (folder / FILE_NAME).write_bytes(b"".join(lines[:count]))

        paths = write_report(folder)

        document = strict(paths.json)
        assert not document["complete"]
        assert not paths.complete
        assert "incomplete" in paths.summary
        assert "INCOMPLETE" in paths.txt.read_text()
        assert "Incomplete." in paths.html.read_text()
        table(paths.updates_csv)
        energy_j = document["allocation"]["energy_j"] or 0.0
        assert energy_j >= last_j
        assert all(check["ok"] for check in document["checks"])
        last_j = energy_j


def test_a_ledger_cut_at_any_byte_gives_a_report(ledger: bytes, tmp_path: Path) -> None:
    """Killed in the middle of a line, which the system may tear anywhere, the lines before it count."""
    path = tmp_path / FILE_NAME
    for size in range(0, len(ledger), 1009):
        path.write_bytes(ledger[:size])

        document = strict(write_report(tmp_path, ["json", "txt"]).json)

        assert not document["complete"]
        assert document["incomplete_reason"]


def test_damage_in_the_middle_is_said_and_what_came_before_counts(ledger: bytes, tmp_path: Path) -> None:
    """A torn line with more after it (a full disk) ends the reading: the report has what was before, and the line."""
    lines = ledger.splitlines(keepends=True)
    lines[40] = lines[40][:30] + b"\n"
    (tmp_path / FILE_NAME).write_bytes(b"".join(lines))

    document = strict(write_report(tmp_path, ["json"]).json)

    assert not document["complete"]
    assert f"{FILE_NAME}:41" in document["incomplete_reason"]
    assert document["updates"]["updates"] > 0


def test_of_two_runs_in_one_file_the_first_counts(ledger: bytes, tmp_path: Path) -> None:
    """Ledgers that were put one behind the other are not added up, and it is said where the second begins."""
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / FILE_NAME).write_bytes(ledger)
    (tmp_path / FILE_NAME).write_bytes(ledger + ledger)

    alone = strict(write_report(tmp_path / "one", ["json"]).json)
    both = strict(write_report(tmp_path, ["json"]).json)

    assert both["result"]["whole"] == alone["result"]["whole"] and both["updates"] == alone["updates"]
    assert "another run begins here" in both["incomplete_reason"]


def test_no_ledger_is_an_error_that_says_what_to_give(tmp_path: Path) -> None:
    """A folder without a ledger, or a file that is none, is a LedgerError naming the file."""
    with pytest.raises(LedgerError, match="give the run folder"):
        write_report(tmp_path)

    (tmp_path / FILE_NAME).write_text("hello\nworld\n")
    with pytest.raises(LedgerError, match="not JSON"):
        write_report(tmp_path)


def test_energy_after_the_last_tick_of_a_killed_run_is_not_lost(tmp_path: Path) -> None:
    """Phases that ended after the last cumulative reading count when no end line came."""
    events = list(run_events(SMALL))
    last_tick = max(place for place, event in enumerate(events) if event["ev"] == "tick")
    kept = [event for place, event in enumerate(events[:last_tick]) if event["ev"] != "tick" or place < 30]

    document = strict(write_report(write_ledger(tmp_path, iter(kept)), ["json"]).json)

    updates_j = sum(event["record"]["energy_j"] for event in kept if event["ev"] == "update")
    assert document["allocation"]["energy_j"] == pytest.approx(updates_j)
    assert all(check["ok"] for check in document["checks"])


def test_lost_gpu_and_lost_node_are_partial_with_their_time(tmp_path: Path) -> None:
    """Field cases N03 and S22: what was lost is named with its time, coverage and the rest is complete."""
    spec = RunSpec(updates=5)

    def lose(event: dict) -> Iterator[dict] | None:
        if event["ev"] != "end":
            return None
        coverage = {**event["gpu_coverage"], spec.uuids[1]: 0.4, spec.uuids[2]: 0.7, spec.uuids[3]: 0.7}
        gpu = {"kind": "gpu_lost", "node": "node01", "uuid": spec.uuids[1], "text": "code 15, GPU is lost"}
        node = {"node": "node02", "state": "lost", "reason": "silent for 15 s"}
        return iter(
            [
                {"ev": "event", "t_s": 8.0, **gpu},
                {"ev": "node", "t_s": 40.0, **node},
                {**event, "gpu_coverage": coverage},
            ]
        )

    spec.edit = lose
    paths = write_report(write_run(tmp_path, spec), ["json", "txt", "csv"])

    document = strict(paths.json)
    lost = document["gpus"][1]
    assert lost["coverage_fraction"] == 0.4
    assert lost["notes"] == ["gpu lost at 8 s"]
    assert lost["energy_j"] > 0
    assert document["gpus"][0]["notes"] == []
    bad = [entry["text"] for entry in document["trust"] if entry["level"] == "bad"]
    assert any("77.5 %" in text or "52.5 %" in text or "3 GPUs below 99 %" in text for text in bad)
    assert any("node02 was lost (silent for 15 s)" in text for text in bad)
    assert document["events"][0]["text"] == "code 15, GPU is lost"


def test_missing_node_is_in_the_first_lines(tmp_path: Path) -> None:
    """Field cases N04 and E04: one of two nodes not measured is stated at the head, and the total is partial."""
    spec = RunSpec(updates=4)

    def deaf(event: dict) -> Iterator[dict] | None:
        if event["ev"] == "node" and event["node"] == "node02":
            reason = "nvmlInit: code 18, driver and library do not match"
            return iter([{**event, "state": "not_measured", "reason": reason, "gpus": []}])
        if "gpu_energy_j" in event:
            mine = {uuid: value for uuid, value in event["gpu_energy_j"].items() if uuid in spec.uuids[:2]}
            return iter([{**event, "gpu_energy_j": mine}])
        return None

    spec.edit = deaf
    paths = write_report(write_run(tmp_path, spec), ["json", "txt"])

    document = strict(paths.json)
    assert (document["allocation"]["nodes_seen"], document["allocation"]["nodes_expected"]) == (1, 2)
    assert "1 of 2 nodes" in " ".join(paths.txt.read_text().splitlines()[:4])
    assert "code 18" in document["trust"][0]["text"]
    assert document["allocation"]["energy_j"] == pytest.approx(
        sum(gpu["energy_j"] for gpu in document["gpus"])
    )


def test_estimated_energy_and_scopes_are_labelled(tmp_path: Path) -> None:
    """Field cases N07, N12, N13: energy from power samples is called estimated; module and GPU scopes are mixed."""
    spec = RunSpec(updates=4)

    def relabel(event: dict) -> Iterator[dict] | None:
        if event["ev"] == "node" and event["node"] == "node02":
            gpus = [{**gpu, "energy_scope": "module", "name": "NVIDIA GH200 480GB"} for gpu in event["gpus"]]
            note = {"kind": "energy_estimated", "node": "node01", "text": "no energy counter (code 3)"}
            return iter([{**event, "gpus": gpus}, {"ev": "event", "t_s": 1.0, **note}])
        return None

    spec.edit = relabel
    document = strict(write_report(write_run(tmp_path, spec), ["json"]).json)

    assert [gpu["energy_method"] for gpu in document["gpus"]] == ["power samples"] * 2 + ["counter"] * 2
    assert [gpu["energy_scope"] for gpu in document["gpus"]] == ["gpu"] * 2 + ["module"] * 2
    texts = " ".join(entry["text"] for entry in document["trust"])
    assert "Estimated: energy of 2 of 4 GPUs" in texts
    assert "Mixed scopes" in texts


def test_crash_in_mid_phase_is_incomplete_with_the_open_phase(tmp_path: Path) -> None:
    """Field case R14: the command's own failure and the phase it died in are in the report."""

    def leave_open(event: dict) -> Iterator[dict] | None:
        if event["ev"] == "phase" and event["update"] == 8 and event["phase"] == "training":
            return iter([{**event, "complete": False}])
        return None

    spec = RunSpec(updates=8, exit_code=1, edit=leave_open)
    document = strict(write_report(write_run(tmp_path, spec), ["json"]).json)

    assert not document["complete"]
    assert "exit code 1" in document["incomplete_reason"]
    assert any("training of update 8" in entry["text"] for entry in document["trust"])


def test_no_gpus_no_updates_no_tokens(tmp_path: Path) -> None:
    """Field cases S07 and E07: a job without a GPU has a valid report that says so, in every format."""

    def strip(event: dict) -> Iterator[dict] | None:
        if event["ev"] == "node":
            return iter([{**event, "state": "not_measured", "reason": "no GPU allocated", "gpus": []}])
        return iter([{**event, "gpu_energy_j": {}, "gpu_coverage": {}}]) if event["ev"] == "end" else None

    paths = write_report(write_run(tmp_path, RunSpec(updates=0, edit=strip)))

    document = strict(paths.json)
    assert document["allocation"]["energy_j"] is None
    assert document["allocation"]["gpus_seen"] == 0
    assert document["cost"] is None
    assert "no GPU energy was measured" in paths.summary
    assert "no GPU allocated" in paths.txt.read_text()
    assert table(paths.gpus_csv) == table(paths.updates_csv) == table(paths.phases_csv) == []


def test_zero_length_phase(tmp_path: Path) -> None:
    """Field case E07: a phase of no length has no mean power, and nothing becomes NaN."""

    def shrink(event: dict) -> Iterator[dict] | None:
        if event["ev"] == "phase" and event["phase"] == "refit":
            nothing = dict.fromkeys(event["gpu_energy_j"], 0.0)
            short = {"end_s": event["begin_s"], "elapsed_s": 0.0, "energy_j": 0.0, "gpu_energy_j": nothing}
            return iter([{**event, **short}])
        return None

    paths = write_report(write_run(tmp_path, RunSpec(updates=4, edit=shrink)))

    refit = next(row for row in strict(paths.json)["phases"] if row["phase"] == "refit")
    assert refit["mean_power_w"] is None
    assert refit["energy_j"] == 0


@pytest.mark.parametrize(
    ("scope", "share", "words"),
    [
        ("module", 0.7, "the rest is of the modules' other parts"),
        ("unknown", 0.7, "the rest is of the modules' other parts"),
        ("unknown", 0.98, "they seem to count the GPUs only"),
        ("gpu", 0.7, None),
    ],
)
def test_a_counter_beside_its_gpus_own_power(
    tmp_path: Path, scope: str, share: float, words: str | None
) -> None:
    """Field case N12: where a counter may be a module's, what the GPUs alone drew says whether it is."""
    events: list[dict[str, Any]] = list(run_events(SMALL))
    end = next(event for event in events if event["ev"] == "end")
    end["gpu_power_w"] = {uuid: share * joules / end["t_s"] for uuid, joules in end["gpu_energy_j"].items()}
    for event in events:
        if event["ev"] == "node":
            event["gpus"] = [{**gpu, "energy_scope": scope} for gpu in event["gpus"]]
    write_ledger(tmp_path, iter(events))

    document = strict(write_report(tmp_path, ["json"]).json)
    text = " ".join(entry["text"] for entry in document["trust"])

    assert ("GPUs alone" in text) == (words is not None)
    assert words is None or words in text


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_any_value_in_any_field_gives_a_report(data: st.DataObject, tmp_path: Path) -> None:
    """A ledger of another version, with fields of the wrong kind, still gives strict files."""
    events: list[dict[str, Any]] = list(run_events(SMALL))
    for _ in range(data.draw(st.integers(1, 6))):
        place = data.draw(st.integers(0, len(events) - 1))
        event = dict(events[place])
        key = data.draw(st.sampled_from(sorted(set(event) - {"ev", "schema_version"})))
        if isinstance(event[key], dict) and event[key] and data.draw(st.booleans()):
            inner = data.draw(st.sampled_from(sorted(event[key])))
            event[key] = {**event[key], inner: data.draw(values)}
        else:
            event[key] = data.draw(values)
        events[place] = event
    (tmp_path / FILE_NAME).unlink(missing_ok=True)
    write_ledger(tmp_path, iter(events))

    paths = write_report(tmp_path)

    strict(paths.json)
    for path in (paths.updates_csv, paths.phases_csv, paths.gpus_csv):
        table(path)
    assert "</html>" in paths.html.read_text()
