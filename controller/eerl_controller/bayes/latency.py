"""What is believed of the one thing about an in-flight queue that no record tells: how long a batch must wait.

It shows only where both pools wait; until then it is bounded by that they do not (``backlog``).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from eerl_controller.bayes.backlog import AS_GOVERNED, Batches, Queue
from eerl_controller.bayes.knee import RATIOS, Knee

Array = NDArray[np.float64]

#: Latencies that are told apart, as fractions of the mean one at which both pools would just wait.
LATENCIES: Array = np.linspace(0.0, 1.6, 33)
#: Believed latencies are passed on as this many equally likely ones.
BELIEFS = 6
#: Every so many of the curve's ratios are replayed, and what lies between is drawn straight.
STRIDE = 4
#: How far a replay's total may be off: a part of a batch in so many updates, and what it does not know of.
EDGE_SD, MODEL_SD = 0.05, 0.004
#: Updates in a row whose sums are compared: longer than a batch is begun ahead of its update.
SUMMED_UPDATES = 5


def believe(batches: Batches, was: Queue) -> tuple[Knee, Array]:
    """How the pools go together, for every latency that agrees with what updates took, and these latencies."""
    generation_s, training_s = float(batches.generation_s.mean()), float(batches.training_s.mean())
    # Where the latency would just bind, in seconds of an update's longest response.
    actual_s = float(batches.running_s.mean())
    own_s = float((batches.training_s * batches.slower[1]).mean())
    binding_s = (batches.ahead + 1) * actual_s - own_s
    unit_s = binding_s / float((batches.longest * batches.slower[0]).mean())
    start = was.spread((len(LATENCIES), 1), batches.ahead)
    expected = batches.run(start, LATENCIES * unit_s, batches.as_it_was).mean(axis=0)[:, 0]
    error = (expected - actual_s) / actual_s
    scale = np.hypot(EDGE_SD / np.sqrt(len(batches.running_s)), MODEL_SD)
    # A replay that is too short even without latency, or too long with every one, still has a nearest.
    weight = np.exp(-0.5 * ((error**2 - (error**2).min()) / scale**2))
    chosen = LATENCIES[_quantiles(weight)] * unit_s
    ratios = RATIOS[::STRIDE]
    queue = Queue.empty((BELIEFS, len(ratios)), batches.ahead)
    slowed = np.exp(ratios)[None, :], AS_GOVERNED
    # The first time fills the queue.
    every = batches.run(queue, chosen, slowed, rounds=2)
    curves = np.array([np.interp(RATIOS, ratios, curve) for curve in every.mean(axis=0)])
    curve = curves.mean(axis=0)
    critical = np.minimum(np.maximum(np.gradient(curve, RATIOS), 0.0), curve)
    # What one update loses the next ones may win back: only sums over some of them tell the variance of long ones.
    blocks = max(len(every) // SUMMED_UPDATES, 1)
    length, longer = divmod(len(every), blocks)
    lengths = np.full(blocks, length)
    lengths[:longer] += 1
    begins = np.cumsum(lengths) - lengths
    sums = np.add.reduceat(every.mean(axis=1), begins, axis=0) / np.sqrt(lengths)[:, None]
    each = np.array([np.interp(RATIOS, ratios, item) for item in sums])
    return Knee(curves, critical, (generation_s, training_s), each), chosen


def _quantiles(weight: Array) -> NDArray[np.intp]:
    """Indices of equally likely values of a distribution over :data:`LATENCIES`."""
    cumulative = np.cumsum(weight) / weight.sum()
    wanted = (np.arange(BELIEFS) + 0.5) / BELIEFS
    return np.minimum(np.searchsorted(cumulative, wanted), len(weight) - 1)
