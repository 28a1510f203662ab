"""A study file: what it says, and every way of saying it wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from eerl_launch.policy import load_policy
from eerl_launch.sweep_plan import GOVERNOR, policy_text
from eerl_launch.sweep_study import Study, StudyError, read_study, study_text
from eerl_launch.tools import eerl

EXAMPLE = Path(__file__).resolve().parents[2] / "slurm_examples" / "sweep.yaml"
PLAIN = "command: python train.py --seed {seed} --steps {updates}\npairs: [1800/1500]\nseeds: [1]\n"


def study(tmp_path: Path, text: str) -> Study:
    """The study of this text."""
    path = tmp_path / "my study.yaml"
    path.write_text(text)
    return read_study(path)


def test_the_shipped_study() -> None:
    """The reference file is a study, and has every key."""
    found = read_study(EXAMPLE)

    assert found.pairs == ((1800, 1500), (1500, 1200), (1200, None))
    assert (found.seeds, found.first_update, found.last_update) == ((1, 2), 4, 9)
    assert found.simulate == "h100:1x2"
    assert found.sbatch == {"nodes": "1", "ntasks": "1", "time": "00:30:00"}


def test_placeholders_are_filled_in_and_nothing_else_is_touched(tmp_path: Path) -> None:
    """Words stay words: no shell, no other braces, no quoting lost."""
    found = study(
        tmp_path,
        "workloads:\n  big: [python, train.py, '{seed}', '{updates}/{workload}/{repetition}',"
        " '{\"a\": {x}}', 'b c']\n"
        "pairs: [governor/1200]\nseeds: [7]\nupdates: 5-25\n",
    )

    assert found.argv("big", 7, 2) == ["python", "train.py", "7", "26/big/2", '{"a": {x}}', "b c"]
    assert found.name == "my-study"


@pytest.mark.parametrize(
    "text", [EXAMPLE.read_text(), PLAIN, PLAIN + "idle_mhz: null\nsbatch: {eerl: true}\n"]
)
def test_a_study_written_is_read_back(tmp_path: Path, text: str) -> None:
    """What stands beside the runs is the study, to the last value."""
    found = study(tmp_path, text)

    assert study(tmp_path, study_text(found)) == found


def test_defaults_are_the_papers(tmp_path: Path) -> None:
    """Updates 5-25 and 2 % are what the paper's sweeps measure."""
    found = study(tmp_path, PLAIN)

    assert (found.first_update, found.last_update, found.max_throughput_loss) == (5, 25, 0.02)
    assert (found.repetitions, found.pairs_per_allocation, found.simulate) == (1, None, None)


@pytest.mark.parametrize("pair", [(1800, 1500), (None, 1200), (1500, None), GOVERNOR])
def test_policies_of_cells_are_policies(tmp_path: Path, pair: tuple[int | None, int | None]) -> None:
    """eerl-run takes what the sweep writes, and it is the setting."""
    path = tmp_path / "policy.yaml"
    path.write_text(policy_text(study(tmp_path, PLAIN), pair))

    policy = load_policy(path)

    assert policy.policy == ("governor" if pair == GOVERNOR else "fixed")
    assert (policy.fixed.generation_mhz, policy.fixed.training_mhz) == pair


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "saw nothing"),
        ("- a", "saw a list"),
        ("pairs: [1800/1500]\nseeds: [1]\n", "give one of command"),
        (PLAIN + "workloads: {a: b}\n", "give one of command"),
        ("command: a\nseeds: [1]\n", "pairs: missing"),
        ("command: a\npairs: [1800/1500]\n", "seeds: missing"),
        (PLAIN + "seedz: [1]\n", "nearest valid key: seeds"),
        (PLAIN + "seeds: [2]\n", "given twice"),
        ("command: a\npairs: [1800]\nseeds: [1]\n", "2: pairs: saw 1800"),
        ("command: a\npairs: [governor/governor]\nseeds: [1]\n", "a pair such as"),
        ("command: a\npairs: [0/1500]\nseeds: [1]\n", "a pair such as"),
        ("command: a\npairs: [1800/1500, 1800/1500]\nseeds: [1]\n", "each once"),
        ("command: a\npairs: []\nseeds: [1]\n", "a list of clock pairs"),
        ("command: a\npairs: [1800/1500]\nseeds: [-1]\n", "whole numbers"),
        ("command: a\npairs: [1800/1500]\nseeds: 4\n", "a list of whole numbers"),
        (PLAIN + "updates: 25-5\n", "a range such as 5-25"),
        (PLAIN + "updates: 1-5\n", "1 is warm-up"),
        (PLAIN + "command: 'a \"b'\n", "given twice"),
        ("command: 'a \"b'\npairs: [1800/1500]\nseeds: [1]\n", "no shell reads it"),
        (PLAIN + "max_throughput_loss: 2\n", "did you mean 2%"),
        (PLAIN + "time_scale: 20\n", "works with simulate only"),
        (PLAIN + "sbatch: {array: 0-3}\n", "the sweep's own"),
        (PLAIN + "sbatch: {'--nodes': 2}\n", "without dashes"),
        (PLAIN + "name: a/b\n", "a name of letters"),
        (PLAIN + "repetitions: 0\n", "from 1 to 100"),
        ("a: &x 1\nb: *x\n", "anchors"),
        ("command: [\n", "not valid YAML"),
    ],
)
def test_bad_studies(tmp_path: Path, text: str, words: str) -> None:
    """Each fault is named with file and line where there is one, and the command exits 2."""
    path = tmp_path / "study.yaml"
    path.write_text(text)

    with pytest.raises(StudyError, match=r"study\.yaml") as error:
        read_study(path)

    assert words in str(error.value)
    assert CliRunner().invoke(eerl, ["sweep", str(path), "--dry-run"]).exit_code == 2


def test_every_fault_at_once(tmp_path: Path) -> None:
    """One reading names all that is wrong."""
    with pytest.raises(StudyError) as error:
        study(tmp_path, "command: a\npairs: [x]\nseeds: [y]\nmood: auto\n")

    assert len(str(error.value).splitlines()) == 3
