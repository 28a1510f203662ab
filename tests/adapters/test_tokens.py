"""Exact token counts from masks, lengths, means and configurations of any library."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from eerl_launch.adapters.tokens import Counted, masked, setting, whole


def test_masks_are_counted_not_summed() -> None:
    """Seventeen million ones in float32, beyond what a sum of them could hold; rows left out are not counted."""
    mask = np.ones((17, 1_000_000), dtype=np.float32)
    rows = np.ones(17, dtype=np.float32)
    rows[3] = 0

    assert masked(mask) == Counted(17_000_000, 1_000_000, 17)
    assert masked(mask, rows) == Counted(16_000_000, 1_000_000, 16)


def test_masks_of_other_shapes() -> None:
    """Integers, weights other than one, rows without any, and no rows at all."""
    assert masked(np.array([[0, 2, 0, 3], [0, 0, 0, 0]])) == Counted(2, 2, 1)
    assert masked(np.zeros((0, 5))) == Counted(0, 0, 0)


def test_lengths_are_known_of_all_responses_or_of_none() -> None:
    """Counted one by one they stay, over rounds too; with a round that was only summed up there are none."""
    assert masked(np.array([[1, 1, 0], [0, 0, 0], [1, 1, 1]])).all_lengths == (2, 3)
    assert (Counted.of([3, 9]) + Counted.of([4])).all_lengths == (3, 9, 4)
    assert (Counted.of([3, 9]) + Counted(8, 5, 2)).all_lengths == ()


def test_rounds_add_up() -> None:
    """Tokens and responses are summed, the longest is the longest."""
    assert Counted.of([3, 9]) + Counted.of([4]) == Counted(16, 9, 3)
    assert Counted.of([]) == Counted()


@pytest.mark.parametrize(
    ("value", "off_by", "number"), [(41.0, 0.0, 41), (40.9, 0.1, 41), (40.6, 0.2, None), (41.0, 0.6, None)]
)
def test_whole_numbers_only(value: float, off_by: float, number: int | None) -> None:
    """A sum from a mean is that number, or unknown when its error could make it another."""
    assert whole(value, off_by) == number


def test_settings_of_any_kind() -> None:
    """Dicts, attributes and both in turn; what is not there is None, at any depth."""
    config = {"a": SimpleNamespace(b={"c": 5}), "d": None}

    assert setting(config, "a", "b", "c") == 5
    assert setting(config, "a", "x", "c") is None
    assert setting(config, "d", "e") is None
    assert setting(None, "a") is None
