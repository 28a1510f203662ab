"""Joules at the edges of phases, from readings of a counter that is published now and then (field cases N09, E12)."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eerl_launch.curve import COUNTER_PERIOD_S, Curve

PERIOD_S = 0.2
IDLE_W, BUSY_W = 100.0, 700.0


class Truth:
    """Phases in turns, idle and busy, and the counter that a reading of it shows."""

    def __init__(self, source: random.Random, length_s: float, published_s: float) -> None:
        self.edges = [1.0]
        while self.edges[-1] < 60.0:
            self.edges.append(self.edges[-1] + length_s * source.uniform(0.9, 1.1))
        self.published_s = published_s
        self.offset_s = source.uniform(0.0, published_s)
        readings = [source.uniform(0.0, PERIOD_S) + PERIOD_S * i for i in range(320)]
        self.readings = sorted(readings + [edge + source.uniform(0.02, 0.03) for edge in self.edges])

    def joules(self, t_s: float) -> float:
        total_j = IDLE_W * min(t_s, self.edges[0])
        for i, (begin_s, end_s) in enumerate(pairwise([*self.edges, 1e9])):
            total_j += (IDLE_W if i % 2 else BUSY_W) * max(0.0, min(t_s, end_s) - begin_s)
        return total_j

    def counter_j(self, t_s: float) -> float:
        return self.joules((t_s - self.offset_s) // self.published_s * self.published_s + self.offset_s)

    def curve(self) -> Curve:
        """What a meter makes of the readings: one point for each that brings something new."""
        curve, last_j = Curve(age_s=COUNTER_PERIOD_S / 2), -1.0
        for t_s in self.readings:
            if (joules := self.counter_j(t_s)) > last_j:
                curve.add(t_s, joules)
                last_j = joules
        return curve


@pytest.mark.parametrize("length_s", [0.5, 1.0, 4.0])
@pytest.mark.parametrize("published_s", [0.02, 0.1])
def test_edges_are_true_on_average_and_within_their_error(length_s: float, published_s: float) -> None:
    """Idle phases get no more of their busy neighbours' joules than is told, whatever the counter's real period."""
    source = random.Random(7)
    errors, inside = [], []

    for _ in range(10):
        truth = Truth(source, length_s, published_s)
        curve = truth.curve()
        edges = [(t_s, curve.edge(t_s)) for t_s in truth.edges[:-2]]
        for (begin_s, begin), (end_s, end) in list(pairwise(edges))[1::2]:
            assert begin is not None and end is not None
            error_j = end.joules - begin.joules - (truth.joules(end_s) - truth.joules(begin_s))
            errors.append(error_j)
            inside.append(abs(error_j) <= (begin.error_j or 0.0) + (end.error_j or 0.0))

    # Booked at the instant of the reading, the mean was 30 J: 0.05 s of 600 W.
    assert abs(sum(errors) / len(errors)) < 15.0
    assert sum(inside) / len(inside) > 0.97


def test_an_edge_has_one_value() -> None:
    """What was said of an edge stays, though later readings tell more of it: parts must add up to the whole."""
    curve = Curve(age_s=0.05)
    for i in range(10):
        curve.add(0.2 * i, 140.0 * i)
    first = curve.at(1.72)
    for i in range(10, 20):
        curve.add(0.2 * i, 140.0 * 9 + 20.0 * (i - 9))

    assert first is not None
    assert curve.at(1.72) == first


@settings(max_examples=200, deadline=None)
@given(data=st.data(), age_s=st.sampled_from([0.0, 0.05]))
def test_joules_never_flow_back(data: st.DataObject, age_s: float) -> None:
    """However readings come and whenever edges are asked for, a later one has no fewer joules than an earlier."""
    curve, joules, asked = Curve(age_s=age_s), 0.0, {}
    for i in range(30):
        joules += data.draw(st.sampled_from([0.0, 20.0, 140.0, 300.0]))
        curve.add(0.2 * i, joules)
        for t_s in data.draw(st.lists(st.floats(0.0, 0.2 * i), max_size=3)):
            if (found := curve.at(t_s)) is not None:
                asked[t_s] = found

    ordered = [asked[t_s] for t_s in sorted(asked)]
    assert ordered == sorted(ordered)


def test_the_newest_reading_tells_a_little_of_what_follows() -> None:
    """At the end of a run an edge just after the last publication is known; one further away is not."""
    curve = Curve(age_s=0.05)
    for i in range(10):
        curve.add(0.2 * i, 140.0 * i)

    assert curve.at(1.85) == pytest.approx(700.0 * 1.9, rel=0.01)
    assert curve.at(2.0) is None


def test_exact_readings_are_taken_as_they_are() -> None:
    """Simulated counters have no age: between two readings the power of both sides says where it changed."""
    curve = Curve()
    for t_s in (0.0, 1.0, 2.0, 4.0, 5.0, 6.0):
        curve.add(t_s, 100.0 * min(t_s, 2.7) + 600.0 * max(0.0, t_s - 2.7))

    assert curve.at(2.7) == pytest.approx(270.0)
    edge = curve.edge(3.5)
    assert edge is not None and edge.joules == pytest.approx(270.0 + 600.0 * 0.8) and edge.error_j is None


def test_power_that_changed_more_than_once_in_between() -> None:
    """A stretch whose own power neither side explains is taken as a straight line."""
    curve = Curve()
    for t_s, joules in ((0.0, 0.0), (1.0, 100.0), (2.0, 1100.0), (3.0, 1200.0)):
        curve.add(t_s, joules)

    assert curve.at(1.5) == pytest.approx(600.0)
