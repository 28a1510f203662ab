"""Where asynchronous updates begin and end, and whose counts are whose (contract 3.7)."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from launch.trainer_double import Trainer

from eerl_launch.modes import Border


def drained(labels: list[int | None]) -> Trainer:
    """Batch 0 alone, then batch n + 1 beside training on n, then a refit; 10 s an update."""
    run = Trainer(Border.REFIT)
    run.phase(0.0, 4.0, "generation", labels[0], sender="engine", generated_tokens=100)
    for i, label in enumerate(labels):
        t = 10.0 * i + 5.0
        following = None if label is None else label + 1
        run.send(t, "begin", "generation", following, sender="engine")
        run.phase(t + 0.1, t + 6.0, "training", label)
        run.send(t + 8.0, "end", "generation", following, sender="engine", generated_tokens=101 + i)
        run.phase(t + 9.0, t + 10.0, "refit", label)
    return run


@pytest.mark.parametrize("labels", [[0, 1, 2], [300, 301, 302], [None] * 3])
def test_drained_from_refit_end_to_refit_end(labels: list[int | None]) -> None:
    """The label is that of the training inside, the tokens are those of the generation that ended inside."""
    updates = drained(labels).finish(36.0)

    assert [(u.label, u.begin_s, u.end_s) for u in updates] == [
        (labels[0], 0.0, 15.0),
        (labels[1], 15.0, 25.0),
        (labels[2], 25.0, 35.0),
    ]
    assert [u.tokens("generated_tokens", "generation") for u in updates] == [100 + 101, 102, 103]


def test_edge_that_comes_near_and_edge_that_is_one() -> None:
    """A refit's begin is told as the border coming near, its end as the border."""
    run = drained([0, 1])

    assert [e.t_s for e in run.edges if e.approaches] == [14.0, 24.0]
    assert [(e.phase, e.begins, e.t_s) for e in run.edges if e.closed is not None] == [
        ("refit", False, 15.0),
        ("refit", False, 25.0),
    ]


def test_refit_without_training_is_no_border() -> None:
    """Weights sent before the first training, or again for a validation, end no update."""
    run = Trainer(Border.REFIT)
    run.phase(0.0, 1.0, "refit")
    run.phase(2.0, 6.0, "generation", 0)
    run.phase(7.0, 8.0, "refit")
    run.phase(9.0, 12.0, "training", 0)
    run.phase(12.0, 13.0, "refit")
    run.phase(13.5, 14.0, "refit")

    updates = run.finish(20.0)

    assert [(u.label, u.begin_s, u.end_s) for u in updates] == [(0, 1.0, 13.0)]
    assert run.tracker.updates_seen == 1
    after = [(o.phase, o.begin_s) for o in run.tracker.take_before()]
    assert after == [("refit", 0.0), ("refit", 13.5)], (
        "what trained nothing is before or after, not an update"
    )


def in_flight(pauses: str) -> Trainer:
    """One long batch after the other, across pauses; ``pauses`` says how they are told."""
    run = Trainer(Border.PAUSE)
    run.send(0.0, "begin", "generation", 0, sender="engine")
    for update in range(3):
        t = 10.0 * update
        run.phase(t + 2.0, t + 7.0, "training", update, valid_tokens=80)
        if pauses != "refit":
            run.send(t + 8.0, "pause", update=update)
        if pauses != "pause":
            run.phase(t + 8.2, t + 8.8, "refit", update)
        if pauses != "refit":
            run.send(t + 9.0, "resume", update=update)
        run.send(t + 9.5, "end", "generation", update, sender="engine", generated_tokens=100 + update)
        run.send(t + 9.6, "begin", "generation", update + 1, sender="engine")
    return run


@pytest.mark.parametrize(("pauses", "border_s"), [("pause", 9.0), ("both", 9.0), ("refit", 8.8)])
def test_in_flight_from_pause_end_to_pause_end(pauses: str, border_s: float) -> None:
    """Generation runs on across borders; without pause events the refits are the pauses, with them they are not."""
    updates = in_flight(pauses).finish(30.0)

    assert [(u.label, u.begin_s, u.end_s) for u in updates] == [
        (0, 0.0, border_s),
        (1, border_s, border_s + 10.0),
        (2, border_s + 10.0, border_s + 20.0),
    ]
    assert [u.tokens("generated_tokens", "generation") for u in updates] == [None, 100, 101]
    carried = [o for o in updates[1].occurrences if o.phase == "generation" and o.carried]
    assert [(o.label, o.begin_s, o.complete) for o in carried] == [(0, 0.0, True)]
    assert not in_flight(pauses).tracker.odd


def test_what_runs_across_the_last_border_is_after_it_from_there_on() -> None:
    """The share before the border is the last update's, and no second time of what follows."""
    run = in_flight("pause")

    updates = run.finish(31.0)

    assert updates[-1].end_s == 29.0
    after = [(o.phase, o.begin_s, o.end_s) for o in run.tracker.take_before()]
    assert after == [("generation", 29.0, 29.5), ("generation", 29.6, 31.0)]


def test_generation_without_end_goes_on_for_ever() -> None:
    """An engine that never stops is in every update; the update events then say what was generated."""
    run = Trainer(Border.PAUSE)
    run.send(0.0, "begin", "generation", sender="engine")
    for update in range(8):
        t = 10.0 * update
        run.phase(t + 1.0, t + 7.0, "training", update)
        run.send(t + 8.0, "pause")
        run.send(t + 9.0, "resume")
        run.send(t + 9.5, "update", update=update, generated_tokens=100 + update, valid_tokens=90)

    updates = run.finish(80.0)

    assert len(updates) == 8
    assert all([o.phase for o in u.occurrences].count("generation") == 1 for u in updates)
    assert [u.tokens("generated_tokens", "generation") for u in updates] == [100 + i for i in range(8)]
    assert not run.tracker.odd


def test_batches_that_overlap() -> None:
    """One sender may generate for several updates at once: no end was lost, each brings its own counts."""
    run = Trainer(Border.PAUSE)
    run.send(0.0, "begin", "generation", 0)
    run.send(1.0, "begin", "generation", 1)
    run.send(2.0, "begin", "training", 7, sender="t")
    run.send(3.0, "end", "generation", 0, generated_tokens=10)
    run.send(4.0, "begin", "generation", 2)
    run.send(5.0, "end", "training", 7, sender="t")
    run.send(6.0, "pause")
    run.send(7.0, "resume")
    run.send(8.0, "end", "generation", 2, generated_tokens=30)
    run.send(9.0, "end", "generation", 1, generated_tokens=20)
    run.phase(10.0, 11.0, "training", 8, sender="t")

    first, second = run.finish(12.0)

    assert first.tokens("generated_tokens", "generation") == 10
    assert second.tokens("generated_tokens", "generation") == 50
    assert not run.tracker.odd


def test_training_that_begins_before_the_pause_is_over_elsewhere() -> None:
    """The trainer may begin while the engine's resume is still under way: that training is the next update's."""
    run = Trainer(Border.PAUSE)
    run.send(0.0, "begin", "generation", sender="engine")
    for update in range(3):
        t = 10.0 * update
        run.send(t + 9.0, "pause", sender="engine") if update else None
        run.send(t + 9.9, "begin", "training", update, sender="t")
        run.send(t + 10.0, "resume", sender="engine") if update else None
        run.send(t + 15.0, "end", "training", update, sender="t", valid_tokens=80 + update)
        run.send(t + 15.5, "update", update=update, valid_tokens=80 + update, policy_age=update)

    updates = run.finish(38.0)

    assert [(u.label, u.begin_s) for u in updates] == [(0, 0.0), (1, 20.0), (2, 30.0)]
    assert [u.tokens("valid_tokens", "training") for u in updates] == [80, 81, 82]
    assert [u.numbers["policy_age"] for u in updates] == [0, 1, 2]
    assert all(u.counts_known for u in updates)


def test_several_steps_between_two_refits() -> None:
    """Weights go out every second step: both steps are one update, whose counts add up."""
    run = Trainer(Border.REFIT)
    run.send(0.0, "begin", "generation", sender="engine")
    for step in range(4):
        t = 5.0 * step
        run.phase(t + 1.0, t + 3.0, "training", step)
        if step % 2:
            run.phase(t + 3.0, t + 4.0, "refit")
        if step != 1:
            run.send(
                t + 4.5, "update", update=step, valid_tokens=100 + step, longest_response_tokens=9 + step
            )

    first, second = run.finish(20.0)

    assert not first.counts_known, "step 1 has not been counted yet"
    run.send(20.5, "update", update=1, valid_tokens=101, longest_response_tokens=12)
    assert first.counts_known
    assert [u.tokens("valid_tokens", "training") for u in (first, second)] == [201, 205]
    assert [u.longest_consumed() for u in (first, second)] == [12, 12]


def test_late_update_event() -> None:
    """Counts that come after the border, or two, are their update's; policy age comes with them only."""
    run = in_flight("pause")

    run.send(29.7, "update", update=0, valid_tokens=70, policy_age=2)
    first, second, third = run.finish(30.0)

    assert first.numbers == {"valid_tokens": 70, "policy_age": 2}
    assert first.counts_known and not second.counted and not third.counted


def test_counts_wait_for_update_events() -> None:
    """Once a trainer sends update events they are waited for, though ends have brought tokens already."""
    run = Trainer(Border.REFIT)
    for update in range(2):
        t = 10.0 * update
        run.phase(t, t + 4.0, "generation", update, generated_tokens=10, longest_response_tokens=3)
        run.phase(t + 5.0, t + 6.0, "training", update, valid_tokens=9)
        run.phase(t + 6.0, t + 7.0, "refit", update)
        if update == 0:
            run.send(7.5, "update", update=0, policy_age=1)

    first, second = run.updates

    assert first.counts_known
    assert not second.counts_known
    run.send(18.0, "update", update=1, policy_age=1)
    assert second.counts_known


def test_many_engines() -> None:
    """Engines that end a batch at different times are one phase; those still at it go on across the border."""
    run = Trainer(Border.PAUSE)
    for engine in ("a", "b", "c"):
        run.send(0.0, "begin", "generation", 0, sender=engine)
    run.phase(1.0, 6.0, "training", 0, sender="t")
    run.send(5.0, "end", "generation", 0, sender="a", generated_tokens=100)
    run.send(7.0, "pause", sender="t")
    run.send(8.0, "resume", sender="t")
    run.send(9.0, "end", "generation", 0, sender="b", generated_tokens=90)
    run.send(9.5, "end", "generation", 0, sender="c", generated_tokens=95)
    run.phase(10.0, 12.0, "training", 1, sender="t")

    first, second = run.finish(13.0)

    assert first.tokens("generated_tokens", "generation") is None
    assert second.tokens("generated_tokens", "generation") == 100, "counts are totals, so the largest counts"
    assert not run.tracker.odd


EVENTS = st.tuples(
    st.sampled_from(["begin", "end", "begin", "end", "update", "pause", "resume"]),
    st.sampled_from(["generation", "training", "refit", "logprob", "reward", "generation/engine"]),
    st.sampled_from([None, 0, 1, 2, 3]),
    st.sampled_from(["a", "b"]),
    st.floats(-0.5, 5.0),
)


@settings(max_examples=200, deadline=None)
@given(border=st.sampled_from([Border.REFIT, Border.PAUSE]), events=st.lists(EVENTS, max_size=80))
def test_any_markers(border: Border, events: list[tuple[str, str, int | None, str, float]]) -> None:
    """Whatever comes, updates follow each other without gap or overlap, and every phase lies in its update."""
    run, t_s = Trainer(border), 10.0
    for event, phase, update, sender, step_s in events:
        t_s = max(0.0, t_s + step_s)
        if event == "update":
            run.send(t_s, event, update=update or 0, sender=sender, valid_tokens=5, policy_age=1)
        elif event in ("pause", "resume"):
            if border is Border.PAUSE:
                run.send(t_s, event, update=update, sender=sender)
        else:
            run.send(t_s, event, phase, update, sender=sender)

    updates = run.finish(t_s + 1.0)

    assert run.tracker.updates_seen == len(updates)
    for before, after in itertools.pairwise(updates):
        assert before.end_s == after.begin_s
    for update in updates:
        assert update.end_s is not None and update.begin_s <= update.end_s
        assert update.trained
