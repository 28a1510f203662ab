"""Runs side by side: what they are, by whose word, in which axes they differ, and what that allows to be said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from profiles.small_ledgers import end, lengths, phase, start, update
from report.ledgers import write_ledger

from eerl_launch.errors import OptionError
from eerl_launch.profiles.document import profile
from eerl_launch.profiles.noise import log_error, ratio_interval


def run(folder: Path, watts: float = 500.0, elapsed_s: float = 10.0, nodes: int = 2, **about: Any) -> Path:
    """Two updates of training with a reward before it."""
    events = start(nodes=nodes, **about)
    for index in range(2):
        begin_s = index * (elapsed_s + 2)
        events += [
            phase("reward", begin_s, 2, [100] * 4),
            phase("training", begin_s + 2, elapsed_s, [watts] * 4),
            lengths(index, 100.0, 16, p90=150, max=200),
            update(
                index,
                begin_s,
                elapsed_s + 2,
                4 * (watts * elapsed_s + 200),
                {"valid_tokens": 1000, "longest_generated_tokens": 200},
                responses=16,
            ),
        ]
    return write_ledger(folder, [*events, end(2 * elapsed_s + 4)])


def compared(*folders: Path, labels: tuple[str, ...] = ()) -> dict[str, Any]:
    """The comparison of the runs."""
    comparison = profile(folders, labels).document["comparison"]
    assert comparison is not None
    return comparison


def test_one_axis_in_which_runs_differ_is_named(tmp_path: Path) -> None:
    """Only the model differs, by the trainers' own word."""
    about = {"algorithm": "GRPO", "reward": "function", "task": "maths"}
    one, other = run(tmp_path / "a", model="small", **about), run(tmp_path / "b", model="large", **about)

    found = compared(one, other)

    assert found["differing_axes"] == ["model"]
    assert found["notes"] == ["the runs differ in model and in no other axis that is known"]
    (axis,) = [row for row in found["axes"] if row["axis"] == "model"]
    assert (axis["values"], axis["origins"]) == (["small", "large"], ["trainer", "trainer"])


def test_runs_that_differ_in_more_than_one_axis_are_said_to(tmp_path: Path) -> None:
    """Model and scaling at once: no difference can be laid to one of them; what nobody told is named too."""
    one, other = run(tmp_path / "a", model="small"), run(tmp_path / "b", model="large", nodes=1)

    found = compared(one, other)

    assert found["differing_axes"] == ["model", "scaling"]
    assert "differ in 2 axes (model, scaling)" in found["notes"][0]
    assert found["notes"][1].startswith("not known of every run: algorithm, reward, task;")


def test_labels_tell_what_no_trainer_did_and_win_over_it(tmp_path: Path) -> None:
    """A label is for all runs, for one by its name or by its place; axes of one's own are allowed."""
    one, other = run(tmp_path / "a", model="small", reward="function"), run(tmp_path / "b", model="small")

    found = compared(one, other, labels=("task=maths", "b:reward=model", "1:seed=7", "2:seed=8"))

    values = {row["axis"]: row["values"] for row in found["axes"]}
    assert (values["task"], values["reward"], values["seed"]) == (
        ["maths"] * 2,
        ["function", "model"],
        ["7", "8"],
    )
    assert found["differing_axes"] == ["reward", "seed"]


@pytest.mark.parametrize(
    "label", ["reward", "=x", "reward=", "c:reward=model", "mode=foo", "1:hardware=real"]
)
def test_a_label_that_cannot_be_one_is_refused(tmp_path: Path, label: str) -> None:
    """It is named, with what would be right."""
    with pytest.raises(OptionError, match="--label"):
        profile([run(tmp_path / "a")], [label])


def test_an_axis_that_one_run_does_not_tell_is_no_sameness(tmp_path: Path) -> None:
    """Unknown beside known is "not known", never "same"."""
    found = compared(run(tmp_path / "a", task="maths"), run(tmp_path / "b"))

    (axis,) = [row for row in found["axes"] if row["axis"] == "task"]
    assert axis["differs"] is None


def test_what_runs_took_side_by_side(tmp_path: Path) -> None:
    """Energy, time and GPU time per update, token and GPU, and against the first run, from known powers and times."""
    found = compared(run(tmp_path / "a"), run(tmp_path / "b", watts=250.0, elapsed_s=20.0))

    rows = {row["quantity"]: row for row in found["quantities"]}
    assert rows["elapsed_s_per_update"]["values"] == [12.0, 22.0]
    assert rows["energy_j_per_gpu_and_update"]["values"] == pytest.approx([5200.0, 5200.0])
    assert rows["energy_j_per_valid_token"]["values"] == pytest.approx([20.8, 20.8])
    assert rows["gpu_s_per_million_valid_tokens"]["values"] == pytest.approx([48_000.0, 88_000.0])
    assert rows["elapsed_s_per_update"]["relative_to_first"] == pytest.approx([1.0, 22 / 12])
    assert rows["elapsed_s_per_update"]["relative_low"] == [None, None], "two updates tell no spread"
    assert rows["reward_elapsed_fraction"]["values"] == pytest.approx([2 / 12, 2 / 22])
    assert rows["tail_fraction"]["values"] == pytest.approx([0.25, 0.25])


def test_the_interval_of_a_ratio_holds_the_truth_as_often_as_it_says() -> None:
    """Energy per token of two runs with correlated noise: about 95 of 100 intervals hold the true 1.1."""
    rng, held = np.random.default_rng(1), 0

    for _ in range(200):
        errors, ratios = [], []
        for truth in (1.0, 1.1):
            noise = np.convolve(rng.normal(0, 0.03, 102), [0.6, 0.6, 0.5], "valid")
            tokens = rng.uniform(1e5, 2e5, 100)
            joules = truth * tokens * np.exp(noise)
            errors.append(log_error(joules, tokens))
            ratios.append(joules.sum() / tokens.sum())
        found = ratio_interval(ratios[1] / ratios[0], *errors)
        assert found is not None
        held += found[0] <= 1.1 <= found[1]

    assert 0.90 <= held / 200 <= 0.99


def test_the_same_run_twice_is_refused(tmp_path: Path) -> None:
    """However it is written."""
    folder = run(tmp_path / "a")

    with pytest.raises(OptionError, match="given twice"):
        profile([folder, folder / ".." / "a"])


def test_runs_named_alike_are_told_apart(tmp_path: Path) -> None:
    """Folders of the same name are called by their paths."""
    found = compared(run(tmp_path / "x" / "job"), run(tmp_path / "y" / "job"))

    assert found["runs"] == [str(tmp_path / "x" / "job"), str(tmp_path / "y" / "job")]


def test_a_run_is_called_by_its_folder_on_one_line(tmp_path: Path) -> None:
    """Also where the ledger itself was named, or where the folder's name has a line end in it."""
    found = compared(run(tmp_path / "a") / "ledger.jsonl", run(tmp_path / "b\nc"))

    assert found["runs"] == ["a", "b c"]


def test_ledgers_of_different_versions_are_compared_with_a_word(tmp_path: Path) -> None:
    """Runs measured by different versions of eerl may differ in how they were measured."""
    one = run(tmp_path / "a")
    events = [
        *start(),
        phase("training", 0, 10, [500] * 4),
        update(0, 0, 10, 20_000, {"valid_tokens": 1}),
        end(10),
    ]
    events[0]["versions"] = {"eerl": "0.2.0"}

    found = compared(one, write_ledger(tmp_path / "b", events))

    assert any("different versions of eerl: 0.1.0, 0.2.0" in note for note in found["notes"])
