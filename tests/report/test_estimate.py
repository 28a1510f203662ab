"""The saving and the throughput change against runs whose truth is known."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from report.ledgers import RunSpec, is_governor, run_events, true_saving_percent, write_ledger, write_run
from report.reading import strict, table

from eerl_launch.report import estimate, write_report
from eerl_launch.report.intervals import Interval
from eerl_launch.report.tables import read_run


def result(folder: Path, spec: RunSpec) -> dict:
    """The result part of the report of a run like ``spec``."""
    found = strict(write_report(write_run(folder, spec), ["json"]).json)["result"]
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_true_saving_is_found_though_responses_double(tmp_path: Path, seed: int) -> None:
    """Field case E10: 12 % less energy at the same speed, while response lengths double, is claimed as 12 ± 4 %."""
    found = result(tmp_path, RunSpec(updates=100, saving=0.12, growth=2.0, seed=seed))

    assert found["lowered"]["saving_percent"] == pytest.approx(12, abs=4)
    assert found["after_lock"]["saving_percent"] == pytest.approx(12, abs=4)
    assert found["lowered"]["throughput_change_percent"] == pytest.approx(0, abs=4)


#: Updates, where the lock begins, and every how many-th update of the search is the governor's.
LONG_RUNS = [
    (450, 40, 4),
    (600, 550, 3),
    (600, 300, 10),
    (800, 750, 0),
    (800, 2000, 25),
    (1000, 300, 4),
    (1000, 500, 4),
    (1000, 900, 5),
]


@dataclass(frozen=True)
class LongRun:
    """What the report finds, of updates one by one or of like ones put together, and the true saving in percent."""

    entries: int
    whole: Interval
    lowered: Interval
    truth: float


@pytest.fixture(scope="module")
def long_runs(tmp_path_factory: pytest.TempPathFactory) -> list[LongRun]:
    """All of them, as they are and as if they were many times as long as what is reckoned with one by one."""
    found = []
    for number, (updates, lock_from, every) in enumerate(LONG_RUNS):
        spec = RunSpec(
            nodes=1,
            updates=updates,
            lock_from=lock_from,
            governor_every=every,
            subphases=False,
            seed=number,
        )
        events = list(run_events(spec))
        run = read_run(write_ledger(tmp_path_factory.mktemp("run"), iter(events)))
        for most in (estimate.MOST_ENTRIES, 150):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(estimate, "MOST_ENTRIES", most)
                parts = estimate.estimate_saving(run).intervals
            found.append(LongRun(most, parts["whole"], parts["lowered"], true_saving_percent(spec, events)))
    return found


def test_however_long_the_search_the_saving_is_found(long_runs: list[LongRun]) -> None:
    """Wherever the lock begins and however few updates are the governor's: near the truth, in intervals of use."""
    for run in long_runs:
        low, high = run.whole.saving_low_percent, run.whole.saving_high_percent

        assert run.whole.saving_percent == pytest.approx(run.truth, abs=0.6)
        assert low is not None and high is not None and high - low < 1.5
        assert run.lowered.saving_percent == pytest.approx(12 * 0.997, abs=0.8)
        assert run.lowered.throughput_percent == pytest.approx(0, abs=1.0)


def test_however_long_the_search_intervals_hold_the_truth(long_runs: list[LongRun]) -> None:
    """Of eight runs all but one, by chance, whether put together or not."""
    for most in {run.entries for run in long_runs}:
        held = [
            (run.whole.saving_low_percent or 0.0) <= run.truth <= (run.whole.saving_high_percent or 0.0)
            for run in long_runs
            if run.entries == most
        ]

        assert sum(held) >= len(LONG_RUNS) - 1


def test_slowdown_is_found(tmp_path: Path) -> None:
    """Updates 3 % slower under lowered clocks show as about 2.9 % less throughput."""
    found = result(tmp_path, RunSpec(updates=100, saving=0.10, slowdown=0.03, growth=1.2))

    assert found["after_lock"]["throughput_change_percent"] == pytest.approx(-2.9, abs=1.5)
    assert found["after_lock"]["saving_percent"] == pytest.approx(10, abs=1.5)


def test_no_saving_is_claimed_where_there_is_none(tmp_path: Path) -> None:
    """Clocks that change nothing give about 0 %, inside the interval."""
    found = result(tmp_path, RunSpec(updates=80, saving=0.0, growth=1.5))

    whole = found["whole"]
    assert whole["saving_percent"] == pytest.approx(0, abs=1.5)
    assert whole["saving_low_percent"] < 0 < whole["saving_high_percent"]
    assert whole["throughput_change_low_percent"] < 0 < whole["throughput_change_high_percent"]


def test_whole_run_counts_every_update_and_lies_between_its_parts(tmp_path: Path) -> None:
    """The whole run includes calibration and search, so it saves less than the locked part (table 5)."""
    spec = RunSpec()
    found = result(tmp_path, spec)

    whole, before, after = found["whole"], found["before_lock"], found["after_lock"]
    assert (whole["updates"], before["updates"], after["updates"]) == (60, 40, 20)
    assert (before["first_update"], before["last_update"], after["first_update"]) == (1, 40, 41)
    assert before["saving_percent"] < whole["saving_percent"] < after["saving_percent"]
    assert before["clocks_vary"]
    assert (after["generation_mhz"], after["training_mhz"], after["clocks_vary"]) == (1500, 1200, False)
    parts = before["saved_energy_j"] + after["saved_energy_j"]
    assert whole["saved_energy_j"] == pytest.approx(parts)


def test_interval_holds_the_estimate_and_widens_with_noise(tmp_path: Path) -> None:
    """Noisier updates give a wider 95 % interval, and the estimate lies inside its own."""
    quiet = result(tmp_path / "quiet", RunSpec(noise=0.005, growth=1.2))["after_lock"]
    noisy = result(tmp_path / "noisy", RunSpec(noise=0.05, growth=1.2))["after_lock"]

    for entry in (quiet, noisy):
        assert entry["saving_low_percent"] < entry["saving_percent"] < entry["saving_high_percent"]

    def width(entry: dict) -> float:
        return float(entry["saving_high_percent"] - entry["saving_low_percent"])

    assert width(noisy) > 2 * width(quiet)


def test_intervals_hold_the_truth_about_as_often_as_they_say(tmp_path: Path) -> None:
    """Of six runs with 10 % true saving at 2 % noise, the 95 % interval holds the truth in at least five."""
    held = 0
    for seed in range(6):
        spec = RunSpec(nodes=1, saving=0.10, growth=1.3, noise=0.02, seed=seed, validation_every=0)
        found = result(tmp_path / str(seed), spec)["lowered"]
        held += found["saving_low_percent"] <= 10 * 0.998 <= found["saving_high_percent"]

    assert held >= 5


def test_same_ledger_same_report(tmp_path: Path) -> None:
    """Made twice from the same ledger, every file is the same, byte for byte."""
    folder = write_run(tmp_path, RunSpec(updates=40, lock_from=30))

    first = {path.name: path.read_bytes() for path in _files(write_report(folder))}
    second = {path.name: path.read_bytes() for path in _files(write_report(folder))}

    assert len(first) == 6
    assert first == second


def _files(paths: object) -> list[Path]:
    return [getattr(paths, key) for key in ("html", "json", "txt", "updates_csv", "phases_csv", "gpus_csv")]


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (RunSpec(policy={"policy": "governor"}, calibration=60), "the policy is governor"),
        (RunSpec(updates=15), "no clock was lowered"),
        (RunSpec(updates=12, calibration=3, warm_up=0, lock_from=6), "too few usable governor updates"),
        (
            RunSpec(calibration=0, warm_up=0, lock_from=0, policy={"policy": "fixed"}),
            "too few usable governor updates to compare with: 0, 6 are needed",
        ),
        (RunSpec(counts=False), "no token counts were sent"),
        (RunSpec(updates=0), "no update was marked"),
    ],
)
def test_no_claim_without_a_baseline(tmp_path: Path, spec: RunSpec, reason: str) -> None:
    """Without lowered clocks, without counts or with too few governor updates there is no estimate, but a reason."""
    paths = write_report(write_run(tmp_path, spec), ["json", "txt", "html"])

    found = strict(paths.json)["result"]
    assert not found["estimate"]
    assert reason in found["no_estimate_reason"]
    assert found["whole"] is None
    assert f"No estimate: {reason}" in " ".join(paths.txt.read_text().split())
    assert reason in paths.html.read_text()


def straggle(index: int, factor: float) -> object:
    """One update took ``factor`` times as long, at a quarter of the power on top."""

    def edit(event: dict) -> Iterator[dict] | None:
        if event["ev"] != "update" or event["index"] != index:
            return None
        record = dict(event["record"])
        more_s = (factor - 1) * record["elapsed_s"]
        more_j = 0.25 * more_s * record["energy_j"] / record["elapsed_s"]
        record |= {"elapsed_s": record["elapsed_s"] + more_s, "energy_j": record["energy_j"] + more_j}
        return iter([{**event, "record": record}])

    return edit


def test_a_hanging_rank_is_no_saving_when_the_governor_ran(tmp_path: Path) -> None:
    """Field case R07: a governor update that hung for ten times its time does not raise what the governor needs."""
    usual = result(tmp_path / "usual", RunSpec())["lowered"]
    hung = result(tmp_path / "hung", RunSpec(edit=straggle(8, 10.0)))["lowered"]

    assert hung["saving_percent"] == pytest.approx(usual["saving_percent"], abs=0.5)
    assert hung["throughput_change_percent"] == pytest.approx(usual["throughput_change_percent"], abs=0.7)


def test_a_hanging_rank_is_no_loss_when_clocks_were_lowered(tmp_path: Path) -> None:
    """Field case R07: a lowered straggler is neutral; the report says what holding it against the clocks gives."""
    usual = result(tmp_path / "usual", RunSpec())
    hung = result(tmp_path / "hung", RunSpec(edit=straggle(50, 10.0)))

    assert hung["straggling_lowered_updates"] == 1
    assert hung["whole"]["throughput_change_percent"] > -0.5
    assert hung["throughput_change_with_stragglers_percent"] < -5
    assert 0 < hung["whole"]["saving_percent"] <= usual["whole"]["saving_percent"]


def test_one_straggler_among_many_updates_put_together_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others of its mean are none, and what it took too long is no loss of theirs."""
    monkeypatch.setattr(estimate, "MOST_ENTRIES", 100)
    spec = RunSpec(nodes=1, updates=300, validation_every=0, subphases=False, edit=straggle(150, 10.0))

    found = result(tmp_path, spec)

    assert found["straggling_lowered_updates"] == 1
    assert found["whole"]["throughput_change_percent"] == pytest.approx(0, abs=0.7)


def test_updates_without_counts_are_left_out_and_counted(tmp_path: Path) -> None:
    """Field case R06: lowered updates without valid tokens are left out of the comparison, and the report says so."""

    def drop(event: dict) -> Iterator[dict] | None:
        if event["ev"] == "update" and event["index"] in (45, 52):
            return iter([{**event, "record": {**event["record"], "valid_tokens": 0}}])
        return None

    found = result(tmp_path, RunSpec(edit=drop))

    assert found["updates_left_out"] == {"without token counts": 2}
    assert found["updates_compared"] == 58
    assert found["lowered"]["saving_percent"] == pytest.approx(12, abs=2)


def test_validation_and_checkpoint_are_not_held_against_the_clocks(tmp_path: Path) -> None:
    """Field case R01: a long validation every fifth update changes neither saving nor throughput of the rest."""
    without = result(tmp_path / "without", RunSpec(validation_every=0, growth=1.2))["lowered"]
    often = result(tmp_path / "often", RunSpec(validation_every=5, growth=1.2))["lowered"]

    assert often["throughput_change_percent"] == pytest.approx(without["throughput_change_percent"], abs=1.5)
    assert often["saving_percent"] == pytest.approx(without["saving_percent"], abs=2.5)


def test_csv_has_the_prediction_that_the_result_rests_on(tmp_path: Path) -> None:
    """Summing measured and predicted columns over the lowered updates gives the saving of report.json."""
    spec = RunSpec()
    paths = write_report(write_run(tmp_path, spec), ["json", "csv"])

    rows = table(paths.updates_csv)
    lowered = [row for row in rows if not is_governor(spec, int(row["index"]))]
    measured = sum(float(row["energy_j"]) for row in lowered)
    governor = sum(float(row["governor_energy_j"]) for row in lowered)
    found = strict(paths.json)["result"]["lowered"]
    assert 100 * (1 - measured / governor) == pytest.approx(found["saving_percent"], abs=1e-6)
