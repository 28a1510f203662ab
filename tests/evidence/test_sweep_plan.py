"""What a study runs where and in which order, and what is run again."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner
from evidence.sweep_cells import put, put_all

from eerl_launch.errors import EerlError
from eerl_launch.sweep import Sweep
from eerl_launch.sweep_plan import GOVERNOR, left, tasks, to_run
from eerl_launch.sweep_study import Study
from eerl_launch.sweep_submit import ranges, script_text
from eerl_launch.tools import eerl
from eerl_twin import FixedPlan, preset, simulate

PAIRS = ((1800, 1500), (1500, 1200), (None, 1200))
STUDY = Study(name="s", workloads={"a": ("true",), "b": ("true",)}, pairs=PAIRS, seeds=(1, 2), repetitions=2)
WORLD = preset("qwen-colocated").world
TEXT = "command: 'true'\npairs: [1800/1500, 1500/1200]\nseeds: [1, 2]\nupdates: 2-4\n"


def test_every_allocation_has_its_governor_and_all_pairs(tmp_path: Path) -> None:
    """Workloads × seeds × repetitions allocations; each runs each pair once, and the governor."""
    found = tasks(STUDY)

    assert [task.number for task in found] == list(range(8))
    for task in found:
        assert sorted(map(str, to_run(tmp_path, task, "job1.0"))) == sorted(map(str, [GOVERNOR, *PAIRS]))


def test_the_order_is_drawn_and_always_the_same(tmp_path: Path) -> None:
    """No setting is always first; the same task has the same order wherever it runs."""
    many = Study(name="s", workloads={"a": ("true",)}, pairs=PAIRS, seeds=tuple(range(40)))

    orders = [to_run(tmp_path, task, "job1.0") for task in tasks(many)]

    firsts = Counter(order[0] for order in orders)
    assert set(firsts) == {GOVERNOR, *PAIRS} and max(firsts.values()) < 25
    assert orders == [to_run(tmp_path, task, "job9.9") for task in tasks(many)]


def test_pairs_over_several_allocations(tmp_path: Path) -> None:
    """Parted pairs come with a governor run of their own in each part."""
    parted = Study(name="s", workloads={"a": ("true",)}, pairs=PAIRS, seeds=(1,), pairs_per_allocation=2)

    found = tasks(parted)

    assert [len(task.pairs) for task in found] == [2, 1]
    assert all(GOVERNOR in to_run(tmp_path, task, "job1.0") for task in found)


def test_only_what_is_left_runs_again_with_its_governor(tmp_path: Path) -> None:
    """A failed pair is run again, in another allocation with the governor, in the same one without."""
    task = tasks(STUDY)[0]
    run = simulate(WORLD, FixedPlan(), 3, 1)
    put(tmp_path, task, "job1.0", GOVERNOR, run)
    put(tmp_path, task, "job1.0", PAIRS[0], run)
    put(tmp_path, task, "job1.0", PAIRS[1], run, exit_code=3)

    assert left(tmp_path, task) == [PAIRS[1], PAIRS[2]]
    assert set(to_run(tmp_path, task, "job1.0")) == {PAIRS[1], PAIRS[2]}
    assert set(to_run(tmp_path, task, "job2.0")) == {GOVERNOR, PAIRS[1], PAIRS[2]}


def test_a_pair_without_its_governor_is_not_done(tmp_path: Path) -> None:
    """Where the governor run failed, no pair of that allocation counts as done."""
    task = tasks(STUDY)[0]
    run = simulate(WORLD, FixedPlan(), 3, 1)
    put(tmp_path, task, "job1.0", GOVERNOR, run, exit_code=137)
    put(tmp_path, task, "job1.0", PAIRS[0], run)

    assert PAIRS[0] in left(tmp_path, task)
    assert to_run(tmp_path, task, "job1.0")[0] is not None
    assert PAIRS[0] not in to_run(tmp_path, task, "job1.0")


def test_a_note_cut_short_is_no_run(tmp_path: Path) -> None:
    """A note that cannot be read, or names a ledger that is gone, is not a run that succeeded."""
    task = tasks(STUDY)[0]
    run = simulate(WORLD, FixedPlan(), 3, 1)
    governor = put(tmp_path, task, "job1.0", GOVERNOR, run)
    pair = put(tmp_path, task, "job1.0", PAIRS[0], run)
    assert PAIRS[0] not in left(tmp_path, task)

    (pair.parent / "cell.json").write_text('{"generation_mhz": 18')
    assert PAIRS[0] in left(tmp_path, task)

    put(tmp_path / "again", task, "job1.0", PAIRS[0], run)
    (governor / "ledger.jsonl").unlink()
    assert left(tmp_path, task) == list(PAIRS)


@pytest.mark.parametrize(
    ("numbers", "text"), [([0], "0"), ([0, 1, 2, 5, 7, 8], "0-2,5,7-8"), ([3, 9], "3,9"), ([], "")]
)
def test_ranges(numbers: list[int], text: str) -> None:
    """Array indices as Slurm writes them."""
    assert ranges(numbers) == text


def test_the_job_script(tmp_path: Path) -> None:
    """Options, set-up lines and the task's own command; spaces in paths survive."""
    study = Study(
        name="s",
        workloads={"a": ("true",)},
        pairs=PAIRS,
        seeds=(1,),
        array_limit=4,
        setup="module load x\nexport A=1",
        sbatch={"nodes": "4", "eerl": None, "comment": "two words"},
    )
    out = tmp_path / "with space"

    lines = script_text(study, out, tasks(study)).splitlines()

    assert lines[0] == "#!/bin/bash"
    assert "#SBATCH --array=0%4" in lines and "#SBATCH --eerl" in lines and "#SBATCH --nodes=4" in lines
    assert '#SBATCH "--comment=two words"' in lines
    assert lines[-3:-1] == ["module load x", "export A=1"]
    assert lines[-1].startswith("exec ") and f"'{out / 'study.yaml'}'" in lines[-1]
    assert lines[-1].endswith('--task "$SLURM_ARRAY_TASK_ID"')


def test_dry_run_prints_everything_and_writes_nothing(tmp_path: Path) -> None:
    """Every run with its command and policy, and the script; no folder is made."""
    file = tmp_path / "study.yaml"
    file.write_text(TEXT)

    done = CliRunner().invoke(eerl, ["sweep", str(file), "--out", str(tmp_path / "out"), "--dry-run"])

    assert done.exit_code == 0
    assert done.output.count("eerl-run --policy") == 6
    assert "#SBATCH --array=0-1" in done.output and "policy: fixed" in done.output
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("command: 'true'", "command: 'false'", "command of default"),
        ("updates: 2-4", "updates: 2-9", "end of updates"),
        ("updates: 2-4", "updates: 2-4\nsimulate: h100:1x1", "simulate"),
    ],
)
def test_another_study_in_the_same_folder(tmp_path: Path, old: str, new: str, words: str) -> None:
    """Runs of one study are not taken for those of another."""
    file = tmp_path / "study.yaml"
    file.write_text(TEXT)
    out = tmp_path / "out"
    out.mkdir()
    (out / "study.yaml").write_text(TEXT.replace(old, new))

    with pytest.raises(EerlError, match=words):
        Sweep(file, out).run_here()


def test_a_study_may_grow(tmp_path: Path) -> None:
    """A further seed leaves what has run alone, and only that seed is left to run."""
    file = tmp_path / "study.yaml"
    file.write_text(TEXT)
    first = Sweep(file, tmp_path / "out")
    put_all(first.out, first.tasks, WORLD, 5)
    (first.out / "study.yaml").write_text(TEXT)
    file.write_text(TEXT.replace("seeds: [1, 2]", "seeds: [1, 2, 3]"))

    grown = Sweep(file, first.out)

    assert [task.seed for task in grown.unfinished] == [3]


@pytest.mark.parametrize(
    ("queue", "words"), [("7_[0-1]  batch", "still in the queue"), ("", "submitted 2 of 2")]
)
def test_a_study_is_not_submitted_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, queue: str, words: str
) -> None:
    """While its array waits or runs, another would make the same runs; once it is gone, it may."""
    file = tmp_path / "study.yaml"
    file.write_text(TEXT)
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, text in (("sbatch", "echo '8;cluster'"), ("squeue", f"echo '{queue}'")):
        (tools / name).write_text(f"#!/bin/sh\n{text}\n")
        (tools / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    out = tmp_path / "out"
    out.mkdir()
    (out / "array.job").write_text("7\n")

    done = CliRunner().invoke(eerl, ["sweep", str(file), "--out", str(out)])

    assert words in done.output
    assert (out / "array.job").read_text() == ("7\n" if queue else "8\n")


def test_a_finished_study_has_nothing_to_submit(tmp_path: Path) -> None:
    """Given again, the command says where the tables are."""
    file = tmp_path / "study.yaml"
    file.write_text(TEXT)
    sweep = Sweep(file, tmp_path / "out")
    put_all(sweep.out, sweep.tasks, WORLD, 5)
    said: list[str] = []

    sweep.submit(said.append)

    assert sweep.unfinished == []
    assert "nothing is left" in said[0] and "--collect" in said[0]


def test_no_slurm_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without sbatch the message names the two ways on."""
    file = tmp_path / "study.yaml"
    file.write_text(TEXT)
    monkeypatch.setenv("PATH", str(tmp_path))

    done = CliRunner().invoke(eerl, ["sweep", str(file), "--out", str(tmp_path / "out")])

    assert done.exit_code == 1
    assert "--local" in done.output
