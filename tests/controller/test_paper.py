"""The paper's own numbers: the workload model reproduces its rows, the controller its Tables 4 and 5 in kind."""

from __future__ import annotations

from statistics import fmean

import pytest
from controller.examples import controller_for
from controller.workload import PAPER_QWEN, Job, Truth, play

#: Appendix C.1, Qwen3-30B-A3B, 32 H100s, colocated, large: clocks, throughput loss and energy saving in percent.
ROWS_C1_LARGE = (
    (1200, 1200, 5.82, 26.59),
    (1500, 1500, 1.95, 12.74),
    (1650, 1200, 3.17, 18.88),
    (1650, 1350, 2.31, 15.60),
    (1800, 1200, 2.99, 16.57),
    (1800, 1350, 2.03, 13.51),
    (1800, 1500, 0.99, 8.29),
    (1800, 1800, 0.14, 0.25),
)


@pytest.mark.parametrize(("generation", "training", "loss_pct", "saving_pct"), ROWS_C1_LARGE)
def test_the_model_workload_answers_as_the_papers_did(
    generation: int, training: int, loss_pct: float, saving_pct: float
) -> None:
    """Before the controller is judged on it, the model is judged on the paper."""
    loss, saving = Job(PAPER_QWEN, 0).expected(generation, training)

    assert 100 * loss == pytest.approx(loss_pct, abs=0.5)
    assert 100 * saving == pytest.approx(saving_pct, abs=2.6)


def part(truth: Truth, begin: int, end: int) -> tuple[float, float]:
    """Energy saving and throughput change in percent over updates begin..end, as columns of Tables 4 and 5."""
    twin = Job(PAPER_QWEN, 0)
    governor_s = governor_j = 0.0
    for record in truth.records[begin:end]:
        generated, longest = record.generated_tokens or 0, record.longest_generated_tokens or 0
        for phase in (PAPER_QWEN.generation, PAPER_QWEN.logprob, PAPER_QWEN.training):
            base_s = phase.governor_s(generated, longest, record.valid_tokens or 0)
            seconds, joules, _ = twin._phase(phase, base_s, None)
            governor_s, governor_j = governor_s + seconds, governor_j + joules
        governor_s += PAPER_QWEN.rest_s
        governor_j += PAPER_QWEN.rest_s * PAPER_QWEN.rest_w
    elapsed_s = sum(record.elapsed_s or 0.0 for record in truth.records[begin:end])
    energy_j = sum(record.energy_j or 0.0 for record in truth.records[begin:end])
    return 100 * (1 - energy_j / governor_j), 100 * (governor_s / elapsed_s - 1)


def test_a_run_of_the_papers_length_reads_like_tables_4_and_5() -> None:
    """Updates 2 to 107: less than 2 % lost over the whole, more saved after the lock than before it."""
    whole, before, after = [], [], []

    for seed in range(6):
        truth = play(controller_for(PAPER_QWEN), Job(PAPER_QWEN, seed), 107)
        lock = truth.states.index("locked")
        whole.append(part(truth, 2, 107))
        before.append(part(truth, 2, lock))
        after.append(part(truth, lock, 107))

    assert fmean(saving for saving, _ in whole) >= 4.0, "the paper: 7.0 %"
    assert fmean(change for _, change in whole) >= -2.0, "the paper: -1.25 %"
    assert fmean(saving for saving, _ in after) > fmean(saving for saving, _ in before)
    assert fmean(change for _, change in after) >= -2.3, "the paper: -1.55 %"
