"""Hindsight: what clocks did, smoothed out of a run whose truth is known by construction."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from eerl_controller import ExecutionMode, PhaseRecord, PoolRecord, UpdateRecord
from eerl_controller.clocks import GOVERNOR, Pair
from eerl_controller.hindsight.entries import Entry, Reader, with_idle
from eerl_controller.hindsight.history import MOST_ENTRIES, History
from eerl_controller.hindsight.merging import kind, merged
from eerl_controller.hindsight.reckoning import Reckoning
from eerl_controller.hindsight.rows import Rows
from eerl_controller.hindsight.series import EFFECT_WALKS, LEVEL_WALKS, NOISES, Series, mean_variance
from eerl_controller.saving import RunningSaving

COLOCATED = ExecutionMode.COLOCATED_SYNC
DEEP = Pair(1200, 1200)


def record(update: int, pair: Pair, plan_id: int | None, **fields: object) -> UpdateRecord:
    """An update of 100 s and 100 kJ of the governor; a lock takes 10 % more time at 30 % less power."""
    slow, cheap = (1.0, 1.0) if pair.is_governor else (1.1, 0.7)
    phases = {
        name: PhaseRecord(elapsed_s=seconds * slow, energy_j=1000.0 * seconds * slow * cheap)
        for name, seconds in (("generation", 60.0), ("training", 40.0))
    }
    values = {
        "update": update,
        "plan_id": plan_id,
        "elapsed_s": 100.0 * slow,
        "energy_j": 100_000.0 * slow * cheap,
        "phases": phases,
        "pools": {
            "generation": PoolRecord(requested_mhz=pair.generation_mhz, achieved_mhz=pair.generation_mhz),
            "training": PoolRecord(requested_mhz=pair.training_mhz, achieved_mhz=pair.training_mhz),
        },
        "generated_tokens": 1000,
        "longest_generated_tokens": 100,
        "valid_tokens": 900,
        **fields,
    }
    return UpdateRecord(**values)  # type: ignore[arg-type]


def story(*stretches: tuple[Pair, int], faster: float = 1.0) -> list[Entry]:
    """Entries of a run that holds each pair for so many updates; every stretch is a plan of its own."""
    reader, update, found = Reader(COLOCATED), 0, []
    for plan_id, (pair, count) in enumerate(stretches):
        for _ in range(count):
            update += 1
            made = record(update, pair, plan_id)
            entry = reader.read(replace(made, elapsed_s=(made.elapsed_s or 0.0) / faster), pair)
            assert entry is not None
            found.append(entry)
    return found


def noisy_rows(seed: int, *, drift: float = 0.0, jump: float = 0.0) -> Rows:
    """Blocks of ten of the governor and of a setting with effect 0.1; AR(1) noise, and an elasticity of 0.5."""
    rng = np.random.default_rng(seed)
    count = 200
    noise = np.zeros(count)
    for i in range(1, count):
        noise[i] = 0.6 * noise[i - 1] + rng.normal(0.0, 0.008)
    group = np.where(np.arange(count) // 10 % 2 == 1, 0, -1)
    work = rng.normal(0.0, 0.2, (count, 1))
    log = 3.0 + 0.5 * work[:, 0] + 0.1 * (group >= 0) + noise + drift * np.arange(count)
    log[count // 2 :] += jump
    return Rows(log, work, (0.8,), group, np.arange(count, dtype=float), np.ones(count))


def fit(rows: Rows) -> Series:
    """The series with a broad prior of the one setting's effect."""
    return Series(rows, 1, np.array([[0.25]]))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("drift", "jump"), [(0.0, 0.0), (5e-4, 0.0), (0.0, -0.08)])
def test_the_effect_is_told_from_level_and_work(seed: int, drift: float, jump: float) -> None:
    """Neither ageing of 10 % over the run nor a sudden change of cost moves what a setting is found to do."""
    series = fit(noisy_rows(seed, drift=drift, jump=jump))

    lowered = series.effect[series.effect != 0.0]
    assert lowered.mean() == pytest.approx(0.1, abs=0.01)
    assert series.effect[:10].tolist() == [0.0] * 10


def test_its_own_error_is_as_large_as_it_says() -> None:
    """Over 60 series the mean effect is outside its 95 % interval seldom, and off by its standard error."""
    off = []
    for seed in range(60):
        rows = noisy_rows(100 + seed)
        series = fit(rows)
        lowered = (rows.group >= 0).astype(float)[None, :] / float((rows.group >= 0).sum())
        means, variances = series.spread(lowered)
        weights = series.weights[:, None]
        middle = float((weights * means).sum())
        variance = float((weights * (variances + (means - middle) ** 2)).sum())
        off.append((middle - 0.1) / math.sqrt(variance))

    assert sum(abs(value) > 1.96 for value in off) <= 8
    assert 0.6 <= float(np.std(off)) <= 1.4


def test_bands_give_what_full_matrices_give() -> None:
    """Effect and variance under one supposition agree with the textbook's generalised least squares."""
    rows = noisy_rows(7)
    keep = 30
    rows = Rows(
        rows.log[:keep], rows.work[:keep], rows.expected, rows.group[:keep], rows.at[:keep], np.ones(keep)
    )
    series = fit(rows)
    supposed = (NOISES[1], LEVEL_WALKS[2], EFFECT_WALKS[1])
    solution = series._solve(supposed)
    (correlation, white), level, walk = supposed

    at, lowered = rows.at, (rows.group >= 0).astype(float)
    apart = np.abs(at[:, None] - at[None, :])
    before = np.minimum(at[:, None], at[None, :])
    covariance = np.diag(white / series._weight) + (1.0 - white) * correlation**apart
    covariance += level**2 * before + walk**2 * before * lowered[:, None] * lowered[None, :]
    columns = np.stack([np.ones(keep), rows.work[:, 0], lowered], axis=1)
    inverse = np.linalg.inv(covariance)
    normal = columns.T @ inverse @ columns + series._precision
    found = np.linalg.solve(normal, columns.T @ inverse @ (rows.log - 0.8 * rows.work[:, 0]))
    rest = rows.log - 0.8 * rows.work[:, 0] - columns @ found
    drifted = walk**2 * before * lowered[None, :] @ inverse @ rest

    assert solution.effect == pytest.approx(lowered * (found[2] + drifted), abs=1e-6)
    assert np.allclose(
        solution.fitted, rows.log - np.diag(white / series._weight) @ inverse @ rest, atol=1e-5
    )


def test_one_update_far_off_changes_little() -> None:
    """A governor update that hung is an outlier, not a reference."""
    rows = noisy_rows(3)
    calm = fit(rows).effect
    log = rows.log.copy()
    log[104] += 2.0

    hung = fit(replace(rows, log=log)).effect

    assert np.abs(hung - calm).max() < 0.004


def test_the_governor_is_found_for_every_lowered_update() -> None:
    """10 % slower at 30 % less power is 23 % less energy: known to the last update, and nothing else is claimed."""
    entries = story((GOVERNOR, 12), (DEEP, 10), (GOVERNOR, 4), (DEEP, 10))

    reckoning = Reckoning(entries, COLOCATED, 1980.0)

    assert reckoning.governor_s == pytest.approx([100.0] * 36, rel=2e-3)
    assert reckoning.governor_j == pytest.approx([100_000.0] * 36, rel=4e-3)
    governor = [i for i, entry in enumerate(entries) if entry.pair.is_governor]
    # Of its first updates after lowered ones what the change of clocks cost is claimed: nothing here.
    assert [float(reckoning.governor_s[i]) for i in governor] == pytest.approx([100.0] * 16, rel=1e-6)


@pytest.mark.parametrize("carried", [False, True])
def test_what_first_updates_are_slower_by_is_no_part_of_the_reference(carried: bool) -> None:
    """After each change 5 % slower whatever the clocks, or a half still under those before: the clocks' doing."""
    entries = story((GOVERNOR, 12), *[(DEEP, 4), (GOVERNOR, 2)] * 20)
    seen = []
    for entry in entries:
        towards = 1.0 / math.sqrt(1.1) if entry.pair == DEEP else math.sqrt(1.1)
        factor = (towards if carried else 1.05) if entry.fresh else 1.0
        phases = {name: (factor * s, factor * (j or 0.0)) for name, (s, j) in entry.phases.items()}
        more_s = sum(s for s, _ in phases.values()) - sum(s for s, _ in entry.phases.values())
        more_j = sum(j or 0.0 for _, j in phases.values()) - sum(j or 0.0 for _, j in entry.phases.values())
        seen.append(
            replace(
                entry,
                phases=phases,
                elapsed_s=entry.elapsed_s + more_s,
                own_s=entry.own_s + more_s,
                energy_j=(entry.energy_j or 0.0) + more_j,
                own_j=(entry.own_j or 0.0) + more_j,
            )
        )

    reckoning = Reckoning(seen, COLOCATED, 1980.0)

    assert sum(entry.fresh for entry in seen) == 40
    assert float(reckoning.governor_s.mean()) == pytest.approx(100.0, rel=2e-3)


@pytest.mark.parametrize(("faster", "tells"), [(1.0, True), (10.0, False)])
def test_the_first_update_after_a_change_is_evidence_if_it_is_long(faster: float, tells: bool) -> None:
    """C06: of 100 s the second that clocks take to settle is nothing, of 10 s too much; the very first is out."""
    entries = story((GOVERNOR, 3), (DEEP, 2), (GOVERNOR, 2), faster=faster)

    assert [entry.evidence for entry in entries] == [False, True, True, tells, True, tells, True]


def test_later_updates_are_priced_by_what_their_clocks_did() -> None:
    """As the reckoning would have it; a setting that was never tried has done nothing."""
    entries = story((GOVERNOR, 12), (DEEP, 10), (GOVERNOR, 4), (DEEP, 4), (Pair(900, 900), 3))

    seconds, joules = Reckoning(entries[:26], COLOCATED, 1980.0).price(entries[26:])

    assert seconds[:4] == pytest.approx([100.0] * 4, rel=2e-3)
    assert joules[:4] == pytest.approx([100_000.0] * 4, rel=4e-3)
    assert seconds[4:].tolist() == [entry.elapsed_s for entry in entries[30:]]


def test_of_a_straggler_only_the_usual_is_claimed() -> None:
    """An update that hung for a thousand seconds stands with them on both sides, waiting watts included."""
    entries = story((GOVERNOR, 12), (DEEP, 20))
    hung = entries[20]
    generation = hung.phases["generation"]
    phases = {**hung.phases, "generation": (generation[0] + 1000.0, (generation[1] or 0.0) + 100_000.0)}
    entries[20] = replace(
        hung,
        elapsed_s=hung.elapsed_s + 1000.0,
        own_s=hung.own_s + 1000.0,
        energy_j=(hung.energy_j or 0.0) + 100_000.0,
        own_j=(hung.own_j or 0.0) + 100_000.0,
        phases=phases,
    )

    reckoning = Reckoning(entries, COLOCATED, 1980.0)

    assert reckoning.governor_s[20] == pytest.approx(1100.0, abs=1.0)
    assert reckoning.governor_j[20] == pytest.approx(200_000.0, abs=5_000.0)
    assert reckoning.excess_s[20] == pytest.approx(1000.0, abs=10.0)


def test_half_is_claimed_where_heat_slowed_the_governor_too() -> None:
    """With clocks reached as asked, the lock may still have saved; with less reached, it made no difference."""
    reader = Reader(COLOCATED)
    reached = {
        name: PoolRecord(requested_mhz=1200, achieved_mhz=mhz)
        for name, mhz in (("generation", 1200.0), ("training", 1200.0))
    }
    hotter = {**reached, "training": PoolRecord(requested_mhz=1200, achieved_mhz=1000.0)}

    found = [
        reader.read(record(i, DEEP, 0, pools=pools, flags=flags), DEEP)
        for i, (pools, flags) in enumerate(
            [
                (reached, frozenset()),
                (reached, frozenset({"hardware_slowdown"})),
                (hotter, frozenset({"hardware_slowdown"})),
                (reached, frozenset({"not_honoured"})),
                (reached, frozenset({"operator_hold"})),
            ]
        )
    ]

    assert [entry.claimed for entry in found if entry] == [1.0, 0.5, 0.0, 0.0, 0.0]


def test_a_mixed_update_has_the_idle_clock_of_the_plan_that_it_trained_under() -> None:
    """Pools tell two clocks; the third follows from the neighbour with the same training clock."""
    before, after = story((Pair(None, None, 345), 2), (Pair(1500, 1200, 360), 2))[1:3]
    mixed = replace(before, pair=Pair(None, 1200), mixed=True, evidence=False)

    assert with_idle([before, mixed, after])[1].pair == Pair(None, 1200, 360)


@pytest.mark.parametrize("mode", list(ExecutionMode))
def test_whatever_is_missing_nothing_breaks(mode: ExecutionMode) -> None:
    """No phases, no energy, no counts, in any mode: finite seconds, and no joules where none were measured."""
    for without in product([False, True], repeat=2):
        reader = Reader(mode)
        fields: dict[str, object] = {}
        if without[0]:
            fields["phases"] = {}
        if without[1]:
            fields["energy_j"] = None
        pairs = [GOVERNOR] * 10 + [DEEP] * 10
        read = [reader.read(record(i, pair, int(i >= 10), **fields), pair) for i, pair in enumerate(pairs)]
        reckoning = Reckoning([entry for entry in read if entry], mode, 1980.0)

        assert np.isfinite(reckoning.governor_s).all()
        assert np.isnan(reckoning.governor_j).all() == without[1]


#: Runs of thousands of updates: clocks that change seldom, in turns, and all the time between many settings.
LONG = {
    "blocks": [(GOVERNOR, 20), (DEEP, 80)] * 40,
    "in turns": [(GOVERNOR, 15)] + [(Pair(900, 900), 1), (DEEP, 3)] * 500 + [(DEEP, 500)],
    "many": [(GOVERNOR, 15)] + [(Pair(mhz, mhz), 2) for mhz in range(600, 1800, 40)] * 40,
}


def long_history(stretches: list[tuple[Pair, int]]) -> tuple[History, list[Entry]]:
    """The history of such a run, and its updates."""
    history, updates = History(), story(*stretches)
    for entry in updates:
        history.add(entry)
    return history, updates


@pytest.mark.parametrize("name", LONG)
def test_a_long_history_keeps_its_sums_in_bounded_memory(name: str) -> None:
    """However clocks change: no update is let go, settings and totals stay apart, and JSON keeps it all."""
    history, updates = long_history(LONG[name])

    assert len(history.entries) <= MOST_ENTRIES
    assert sum(item.updates for item in history.entries) == history.taken == len(updates)
    for entries in (history.entries, updates):
        assert sum(item.updates * item.elapsed_s for item in entries) == pytest.approx(
            sum(item.elapsed_s for item in updates)
        )
    for pair in {item.pair for item in updates}:
        found = sum(item.updates for item in history.entries if item.pair == pair)
        assert found == sum(item.pair == pair for item in updates)
    again = History()
    again.load(json.loads(json.dumps(history.to_dict())))
    assert again.entries == history.entries and again.to_dict() == history.to_dict()
    for other in (history, again):
        for entry in updates[:100]:
            other.add(replace(entry, place=entry.place + len(updates)))
    assert again.entries == history.entries


@pytest.mark.parametrize("name", LONG)
def test_every_update_knows_the_entry_that_stands_for_it(name: str) -> None:
    """It has its clocks, is as good an evidence, and stands for as many updates as say so."""
    history, updates = long_history(LONG[name])

    at = history.places(updates)

    for entry, i in zip(updates, at, strict=True):
        assert (entry.pair, entry.evidence) == (history.entries[i].pair, history.entries[i].evidence)
    assert np.bincount(at).tolist() == [item.updates for item in history.entries]
    places = np.bincount(at, weights=[entry.place for entry in updates]) / np.bincount(at)
    assert places == pytest.approx([item.place for item in history.entries])


def test_what_there_is_least_of_stays_as_it_is() -> None:
    """The governor's settled updates at the beginning are kept one by one, whatever comes after."""
    history, updates = long_history(LONG["in turns"])

    governor = [item for item in history.entries if item.pair.is_governor and item.evidence]
    assert governor == [item for item in updates if item.pair.is_governor and item.evidence]


def test_entries_that_are_settled_stay() -> None:
    """Those that a reckoning was told are settled are there still when the next updates came."""
    history = History()
    for entry in story(*LONG["in turns"]):
        thinned, settled = history.thinned, history.entries[: history.settled]
        history.add(entry)
        assert history.thinned != thinned or history.entries[: len(settled)] == settled


@pytest.mark.parametrize("later", [(70.0, 100.0), (100.0, 70.0)])
def test_which_pool_is_later_is_not_lost_in_means(later: tuple[float, float]) -> None:
    """The later of two means is not the mean of the later ones: updates that wait for other pools stay apart."""
    one, other = (
        replace(item, arrivals_s=found)
        for item, found in zip(story((GOVERNOR, 3))[1:], [(100.0, 70.0), later], strict=True)
    )

    assert (kind(one) == kind(other)) == (later[0] > later[1])


def test_means_of_many_updates_keep_the_mean_of_logs() -> None:
    """Seconds that grow as a power of the work are explained by it, however unlike the updates in a mean are."""
    updates = []
    for i, entry in enumerate(story((GOVERNOR, 65))[1:]):
        tokens = 1000.0 * math.exp(0.3 * math.sin(i))
        phases = {"generation": (tokens**0.5, None), "training": (tokens**0.5, None)}
        updates.append(
            replace(entry, counts={"generated": tokens - 1.0}, phases=phases, own_s=2.0 * tokens**0.5)
        )
    entry = updates[0]
    for other in updates[1:]:
        entry = merged(entry, other)

    for name, seconds in (("generation", 1.0), ("training", 1.0), ("update", 2.0)):
        taken = entry.own_s if name == "update" else entry.phases[name][0]
        logs = math.log(taken) + entry.bends[name]
        work = math.log1p(entry.counts["generated"]) + entry.bends["generated"]
        assert logs == pytest.approx(math.log(seconds) + 0.5 * work, abs=1e-12)
    assert entry.bends["generated"] < -0.01


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.95, -0.7])
def test_means_of_noise_vary_as_much_as_they_say(correlation: float) -> None:
    """The closed form is the mean of all the covariances."""
    for updates in (1, 2, 7, 40):
        apart = np.abs(np.subtract.outer(np.arange(updates), np.arange(updates)))

        found = mean_variance(correlation, np.array([float(updates)]))

        assert found == pytest.approx(np.mean(np.power(correlation, apart)))


def test_means_of_updates_say_what_the_updates_say() -> None:
    """Lowered updates put together by fives: the same effect, known as well."""
    found = []
    for seed in range(20):
        rows = noisy_rows(seed)
        five = [
            range(i, i + 5) if rows.group[i] >= 0 else [i]
            for i in range(200)
            if rows.group[i] < 0 or i % 5 == 0
        ]
        log, at = (
            np.array([values[list(places)].mean() for places in five]) for values in (rows.log, rows.at)
        )
        work = np.array([rows.work[list(places)].mean(axis=0) for places in five])
        group = rows.group[[places[0] for places in five]]
        means = Rows(log, work, rows.expected, group, at, np.array([float(len(places)) for places in five]))
        for item in (rows, means):
            series = fit(item)
            lowered = np.where(item.group >= 0, item.updates, 0.0)[None, :]
            middle, variance = (values[:, 0] for values in series.spread(lowered / lowered.sum()))
            found.append((series.weights @ middle, math.sqrt(series.weights @ variance)))
    effects, errors = (np.array(values).reshape(-1, 2) for values in zip(*found, strict=True))

    assert effects.mean(axis=0) == pytest.approx([0.1, 0.1], abs=0.002)
    assert errors[:, 1].mean() == pytest.approx(errors[:, 0].mean(), rel=0.25)
    assert effects.std(axis=0)[1] <= 1.3 * effects.std(axis=0)[0]


@pytest.mark.parametrize("name", LONG)
def test_the_running_estimate_of_a_long_run_is_right(name: str) -> None:
    """10 % slower at 30 % less power, of all that ran under lowered clocks; restored from JSON it is the same."""
    saving, update = RunningSaving(COLOCATED, 1980), 0
    measured = governor = 0.0
    for plan_id, (pair, count) in enumerate(LONG[name], start=1):
        for _ in range(count):
            update += 1
            found = record(update, pair, plan_id)
            saving.add(found, pair)
            measured, governor = measured + (found.energy_j or 0.0), governor + 100_000.0
    again = RunningSaving(COLOCATED, 1980)
    again.load(json.loads(json.dumps(saving.to_dict())))

    assert saving.estimate is not None and saving.estimate == again.estimate
    assert saving.estimate.updates == update
    assert saving.estimate.energy_saving == pytest.approx(1.0 - measured / governor, abs=0.003)


def test_a_mixed_update_far_from_its_plan_in_the_list_has_its_idle_clock() -> None:
    """What is next to it in a long run may stand for updates before and after it."""
    same, other, mixed, after = (
        replace(item, pair=pair, mixed=pair == Pair(None, 1200), place=place)
        for item, pair, place in zip(
            story((DEEP, 4)),
            (Pair(1500, 1200, 360), Pair(1500, 900, 345), Pair(None, 1200), GOVERNOR),
            (3.0, 4.0, 5.0, 6.0),
            strict=True,
        )
    )

    assert with_idle([same, other, mixed, after])[2].pair == Pair(None, 1200, 360)


def test_validation_now_and_then_leaves_a_long_history_its_governor() -> None:
    """Every twentieth update of 10,000 validates: they are put together with the others, and no sum is lost."""
    history, seconds, joules = History(), 0.0, 0.0
    for place, entry in enumerate(story((GOVERNOR, 20), (DEEP, 9_980))):
        if place % 20 == 19:
            entry = replace(entry, validation=(30.0, 9000.0))
            seconds, joules = seconds + 30.0, joules + 9000.0
        history.add(entry)

    assert history.entries[0].pair == GOVERNOR
    assert sum(item.updates for item in history.entries) == 10_000
    assert sum(item.updates * item.validation[0] for item in history.entries) == pytest.approx(seconds)
    assert sum(item.updates * (item.validation[1] or 0.0) for item in history.entries) == pytest.approx(
        joules
    )
