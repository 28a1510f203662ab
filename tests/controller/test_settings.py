from __future__ import annotations

import json
import re
from dataclasses import fields

import pytest

from eerl_controller import Settings, SettingsError


def test_defaults_are_the_papers_table_3() -> None:
    """The synchronous column of Table 3 is what a run without a policy file gets."""
    settings = Settings()

    assert settings.max_throughput_loss == 0.02
    assert settings.calibration_updates == 15
    assert settings.trial_updates == 3
    assert settings.confirmation_updates == 6
    assert settings.search_step_mhz == 90
    assert (settings.feedback_step_mhz, settings.feedback_large_step_mhz) == (45, 90)
    assert settings.feedback_large_loss == 0.04
    assert (settings.monitor_window, settings.monitor_every) == (20, 10)
    assert settings.idle_mhz == 345


def test_settings_survive_json() -> None:
    """What the ledger writes is what a replay reads."""
    settings = Settings(policy="fixed", fixed_generation_mhz=1500, max_throughput_loss=0.0)

    assert Settings.from_dict(json.loads(json.dumps(settings.to_dict()))) == settings


def test_every_field_says_in_the_docstring_where_its_number_comes_from() -> None:
    """A setting without an explanation is a number nobody can question."""
    documented = set(re.findall(r"``(\w+)``", Settings.__doc__ or ""))

    assert {item.name for item in fields(Settings)} <= documented


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"policy": "fast"}, "policy"),
        ({"max_throughput_loss": 1.0}, "max_throughput_loss"),
        ({"max_throughput_loss": -0.01}, "max_throughput_loss"),
        ({"max_throughput_loss": float("nan")}, "max_throughput_loss"),
        ({"max_throughput_loss": True}, "max_throughput_loss"),
        ({"trial_updates": 0}, "trial_updates"),
        ({"trial_updates": 2.5}, "trial_updates"),
        ({"calibration_updates": 2}, "calibration_updates"),
        ({"reference_window": 14}, "reference_window"),
        ({"fixed_training_mhz": -1}, "fixed_training_mhz"),
        ({"min_mhz": 1500, "max_mhz": 1200}, "min_mhz"),
        ({"start_fraction": 1.0}, "start_fraction"),
    ],
)
def test_an_impossible_setting_is_refused_by_name(values: dict[str, object], named: str) -> None:
    """The message names the setting and the value seen."""
    with pytest.raises(SettingsError, match=named):
        Settings(**values)  # type: ignore[arg-type]


def test_an_unknown_setting_is_refused_with_the_known_ones() -> None:
    """A ledger of another version does not silently lose a setting."""
    with pytest.raises(SettingsError, match=r"max_slowdown.*known are.*max_throughput_loss"):
        Settings.from_dict({"max_slowdown": 3})
