from __future__ import annotations

import math

import numpy as np
import pytest

from eerl_controller.regression import fit_log_linear, robust_residuals, robust_sd, usable_features
from eerl_controller.work import BEFORE


def _rows(count: int, seed: int = 0) -> list[dict[str, float]]:
    rng = np.random.default_rng(seed)
    return [
        {
            "generated": float(rng.integers(5e5, 2e6)),
            "longest": float(rng.integers(1000, 8000)),
            "fixed": 512.0,
        }
        for _ in range(count)
    ]


def test_a_power_law_is_found() -> None:
    """Time proportional to a power of the count is what equation 2 expresses exactly."""
    rows = _rows(20)
    values = [3e-4 * (1 + row["generated"]) ** 0.8 for row in rows]

    model = fit_log_linear(["generated", "longest"], rows, values)

    assert model.predict({"generated": 3e6, "longest": 9000.0}) == pytest.approx(
        3e-4 * (1 + 3e6) ** 0.8, rel=1e-4
    )


def test_a_constant_feature_is_dropped_not_divided_by() -> None:
    """Qwen reaches the token limit in nearly every update (appendix E)."""
    rows = _rows(20)

    assert usable_features(["fixed", "generated"], rows) == ("generated",)
    assert fit_log_linear(["fixed"], rows, [100.0] * 20).predict({"fixed": 1.0}) == pytest.approx(100.0)


def test_a_feature_missing_in_several_rows_is_dropped_for_all() -> None:
    """Half-known features cannot be fitted."""
    rows = _rows(20)
    for row in rows[7:10]:
        del row["longest"]

    assert usable_features(["generated", "longest"], rows) == ("generated",)


def test_a_feature_missing_in_one_row_stands_at_its_mean_there() -> None:
    """The first update after a gap does not know its predecessor; the others are no less informative for that."""
    rows = _rows(20)
    values = [3.0 * row["longest"] for row in rows]
    del rows[7]["longest"]

    fitted = fit_log_linear(["longest"], rows, values)

    assert usable_features(["longest"], rows) == ("longest",)
    assert fitted.predict(rows[2]) == pytest.approx(3.0 * rows[2]["longest"], rel=0.1)


def test_only_the_update_before_may_make_an_update_shorter() -> None:
    """More tokens never take less time, but what was generated meanwhile is not waited for (in-flight)."""
    rows = [{"valid": 1000.0 + 50.0 * (k % 7), BEFORE: 1000.0 + 60.0 * (k % 5)} for k in range(30)]
    values = [row["valid"] ** 1.0 * row[BEFORE] ** -0.5 for row in rows]

    fitted = fit_log_linear(["valid", BEFORE], rows, values)

    slopes = dict(zip(fitted.names, fitted.slopes, strict=True))
    assert slopes["valid"] > 0.0 > slopes[BEFORE]
    shorter = fit_log_linear(["valid"], rows, [1e6 / row["valid"] for row in rows])
    assert shorter.slopes == (0.0,)


def test_few_rows_bear_few_features() -> None:
    """Every fifth observation allows one feature: below that a slope is an accident."""
    assert usable_features(["generated", "longest"], _rows(4)) == ()
    assert usable_features(["generated", "longest"], _rows(9)) == ("generated",)
    assert usable_features(["generated", "longest"], _rows(10)) == ("generated", "longest")


def test_two_features_that_are_one_do_not_break_the_fit() -> None:
    """Generated tokens may be the longest response times a number."""
    rows = [{"a": 1000.0 * k, "b": 2000.0 * k} for k in range(1, 16)]
    values = [0.5 * row["a"] for row in rows]

    model = fit_log_linear(["a", "b"], rows, values)

    assert model.predict({"a": 20_000.0, "b": 40_000.0}) == pytest.approx(10_000.0, rel=0.02)


def test_noise_alone_gives_the_constant() -> None:
    """Features that explain nothing are shrunk away by leave-one-out error."""
    rng = np.random.default_rng(3)
    rows = _rows(15, seed=4)
    values = [100.0 * math.exp(rng.normal(0.0, 0.03)) for _ in rows]

    model = fit_log_linear(["generated", "longest"], rows, values)

    assert model.predict({"generated": 2e6, "longest": 8000.0}) == pytest.approx(100.0, rel=0.05)


def test_no_slope_is_negative() -> None:
    """More tokens never take less time: a chance correlation must not be extrapolated."""
    rows = [{"generated": 1000.0 * k} for k in range(1, 16)]
    values = [100.0 / k for k in range(1, 16)]

    model = fit_log_linear(["generated"], rows, values)

    assert model.slopes == (0.0,)


def test_the_fitted_total_is_the_observed_total() -> None:
    """Savings are sums; a fit of logs would be a little below the sums."""
    rng = np.random.default_rng(5)
    rows = _rows(30, seed=6)
    values = [1e-4 * row["generated"] * math.exp(rng.normal(0.0, 0.2)) for row in rows]

    model = fit_log_linear(["generated"], rows, values)

    assert sum(model.predict(row) for row in rows) == pytest.approx(sum(values))


def test_absurd_work_predicts_a_finite_number() -> None:
    """No count, however wrong, may become an infinity."""
    rows = [{"generated": 1.0 + 1e-2 * k} for k in range(15)]
    values = [math.exp(k) for k in range(15)]

    model = fit_log_linear(["generated"], rows, values)

    assert math.isfinite(model.predict({"generated": 1e300}))


def test_an_empty_fit_is_an_error() -> None:
    """Nothing cannot be fitted."""
    with pytest.raises(ValueError, match="at least one"):
        fit_log_linear(["generated"], [], [])


def test_a_straggler_shows_instead_of_bending_the_fit() -> None:
    """Robust residuals leave one update of thirty times the duration alone in the open."""
    rows = _rows(15)
    values = [1e-4 * row["generated"] for row in rows]
    values[3] *= 30

    residuals = robust_residuals(["generated", "longest"], rows, values)

    assert residuals[3] == pytest.approx(math.log(30), rel=0.05)
    assert max(abs(value) for i, value in enumerate(residuals) if i != 3) < 0.05


def test_robust_sd_ignores_a_minority() -> None:
    """A third of the values may be anything."""
    values = [-1.0, -0.5, 0.0, 0.5, 1.0, 0.2, -0.2, 1e6, 1e9]

    assert robust_sd(values) < 2.0
    assert robust_sd([1.0]) == 0.0
