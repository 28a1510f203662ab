"""The scoreboard's arithmetic: ratios of sums, violations counted as nothing saved, exact bounds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from twin.examples import world

from eerl_controller import ExecutionMode
from eerl_twin.binomial import upper_bound
from eerl_twin.page import BEGIN, END, Played, with_short_table
from eerl_twin.presets import ALIASES
from eerl_twin.score import RunScore, as_markdown, percent, rows, score
from eerl_twin.scoreboard import FINAL_SEED, main


def run_score(**fields: object) -> RunScore:
    """One run that saved 10 of 20 % at 1 % loss; ``fields`` replace what is to be different."""
    values: dict[str, object] = {
        "world": "w",
        "mode": "colocated_sync",
        "seed": 0,
        "policy": "eerl",
        "energy_saving": 0.10,
        "throughput_change": -0.01,
        "afterlock_energy_saving": 0.12,
        "afterlock_throughput_change": -0.01,
        "oracle_energy_saving": 0.20,
        "lock_update": 40,
        "clock_changes": 9,
        "state": "locked",
    }
    return RunScore(**{**values, **fields})  # type: ignore[arg-type]


def test_the_share_is_a_ratio_of_sums_without_violating_runs() -> None:
    """10 of 20 %, 30 of 20 % but too slow, 0 of 0 %: a quarter of the oracle's saving."""
    scores = [
        run_score(),
        run_score(energy_saving=0.30, throughput_change=-0.03),
        run_score(
            energy_saving=0.0, oracle_energy_saving=0.0, lock_update=None, afterlock_energy_saving=None
        ),
    ]

    row = rows(scores)[0]

    assert row.oracle_share == pytest.approx(0.10 / 0.40)
    assert (row.violations, row.runs, row.locked_runs) == (1, 3, 2)
    assert row.worst_loss == pytest.approx(0.03)
    assert row.updates_until_lock == 40
    assert row.afterlock_energy_saving == pytest.approx(0.12)


def test_rows_come_by_mode_and_over_all() -> None:
    """Each mode and policy has a row, and each policy one over all modes."""
    scores = [run_score(), run_score(mode="async_drained"), run_score(policy="paper")]

    made = rows(scores)

    assert [(row.group, row.policy, row.runs) for row in made] == [
        ("async_drained", "eerl", 1),
        ("colocated_sync", "eerl", 1),
        ("colocated_sync", "paper", 1),
        ("all", "eerl", 2),
        ("all", "paper", 1),
    ]
    assert as_markdown(made).count("\n") == 7


@pytest.mark.parametrize(
    ("events", "runs", "bound"),
    [(0, 300, 1 - 0.05 ** (1 / 300)), (0, 1, 0.95), (2, 300, 0.0208), (5, 5, 1.0), (1, 10, 0.3942)],
)
def test_the_bound_is_exact(events: int, runs: int, bound: float) -> None:
    """One-sided Clopper-Pearson at 95 %, against known values."""
    assert upper_bound(events, runs) == pytest.approx(bound, abs=1e-4)


def test_impossible_counts_are_refused() -> None:
    """More events than runs, or no run at all."""
    for events, runs in ((3, 2), (-1, 2), (0, 0)):
        with pytest.raises(ValueError, match="events"):
            upper_bound(events, runs)


def test_policies_meet_the_same_run() -> None:
    """The governor saves nothing, the oracle keeps the limit, and no calibrated bound beats it."""
    made = world(ExecutionMode.DISAGGREGATED_SYNC)

    scores = {
        item.policy: item for item in score(made, 3, 60, ["governor", "oracle", "oracle after calibration"])
    }

    assert scores["governor"].energy_saving == 0.0
    assert scores["governor"].throughput_change == 0.0
    assert scores["oracle"].energy_saving == scores["governor"].oracle_energy_saving > 0.0
    assert scores["oracle"].throughput_change >= -0.02
    assert 0.0 < scores["oracle after calibration"].energy_saving < scores["oracle"].energy_saving


def test_unknown_policies_are_refused() -> None:
    """A misspelt policy is named, with those that exist."""
    with pytest.raises(ValueError, match="papr; known are governor"):
        score(world(ExecutionMode.COLOCATED_SYNC), 3, 10, ["papr"])


def test_the_command_prints_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One run by mode: a table on the terminal, every run and row in the JSON, the same again next time."""
    out = tmp_path / "score.json"
    arguments = ["--runs", "1", "--updates", "40", "--policies", "governor,fixed,oracle", "--json", str(out)]

    assert main(arguments) == 0
    first = out.read_text()
    assert main([*arguments, "--jobs", "2"]) == 0

    content = json.loads(first)
    assert out.read_text() == first
    assert len(content["runs"]) == 4 * 3
    assert len(content["rows"]) == 5 * 3
    assert capsys.readouterr().out.count("| all |") == 2 * 3


def test_the_final_seeds_are_apart(tmp_path: Path) -> None:
    """The last score uses worlds that no other does."""
    out = tmp_path / "score.json"

    main(
        [
            "--runs",
            "1",
            "--updates",
            "5",
            "--modes",
            "colocated_sync",
            "--policies",
            "governor",
            "--final",
            "--json",
            str(out),
        ]
    )

    assert json.loads(out.read_text())["runs"][0]["seed"] == FINAL_SEED


def test_presets_have_rows_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    """Two presets of one mode are two groups."""
    names = "qwen-colocated,nemotron-colocated"

    assert main(["--runs", "1", "--updates", "20", "--presets", names, "--policies", "fixed"]) == 0

    table = capsys.readouterr().out
    assert "| qwen-h100-colocated_sync-32-32-M | fixed | 1 |" in table
    assert "| nemotron-h100-colocated_sync-64-64-M | fixed | 1 |" in table
    assert "| all | fixed | 2 |" in table


@pytest.mark.parametrize(
    "arguments",
    [
        ["--modes", "sync"],
        ["--policies", "best"],
        ["--runs", "0"],
        ["--presets", "qwen"],
        ["--presets", "qwen-disagg", "--page", "x"],
    ],
)
def test_wrong_arguments_stop_with_a_message(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A mode or policy that does not exist, or no run at all, ends with exit code 2."""
    with pytest.raises(SystemExit) as stopped:
        main(arguments)

    assert stopped.value.code == 2
    assert "error:" in capsys.readouterr().err


README = Path(__file__).resolve().parents[2] / "README.md"
PAGE = README.parent / "controller" / "eerl_twin" / "scoreboard.md"


def test_the_page_and_the_readme_are_made(tmp_path: Path) -> None:
    """A tiny scoreboard writes the page, presets included, and the short table between the README's marks."""
    page, readme, out = tmp_path / "page.md", tmp_path / "README.md", tmp_path / "score.json"
    readme.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")

    lengths = ["--runs", "1", "--updates", "30", "--inflight-updates", "70"]
    files = ["--page", str(page), "--readme", str(readme), "--json", str(out)]
    main([*lengths, *files, "--policies", "governor,fixed,eerl,oracle"])

    text, content = page.read_text(), json.loads(out.read_text())
    assert {row["group"] for row in content["presets"]["rows"]} == {*ALIASES.values(), "all"}
    assert "| qwen-h100-disaggregated_sync-8-32-M | oracle | 1 |" in text
    assert "1 runs of each (seeds 0 to 0), 30 updates each, in-flight 70; limit 2 % of throughput." in text
    written = readme.read_text()
    assert written.startswith(f"before\n{BEGIN}\n") and written.endswith(f"{END}\nafter\n")
    short = written.split(BEGIN)[1].split(END)[0].strip()
    assert short in text and "old" not in written
    assert "| in-flight | `eerl` |" in short


def test_a_readme_without_marks_is_refused() -> None:
    """Nothing is written where the table does not belong."""
    with pytest.raises(ValueError, match="needs the lines"):
        with_short_table("no marks", Played(1, 1, 1, 0, 0.02, rows([run_score()])))


def test_the_readme_shows_what_the_page_says() -> None:
    """The table in the README is the one of the page: both were made in one go."""
    short = README.read_text().split(BEGIN)[1].split(END)[0].strip()

    assert short.count("\n") > 15
    assert short in PAGE.read_text()


def test_numbers_read_as_numbers() -> None:
    """What rounds to zero has no minus, and what is not known is empty."""
    assert (percent(-0.00001), percent(None), percent(-0.0123, 1)) == ("0.00", "", "-1.2")
