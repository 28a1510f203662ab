"""Whole runs with the adapter in bad company: each costs markers at most, and is told in one message."""

from __future__ import annotations

import os
import sys
import textwrap
from pathlib import Path

import pytest
from adapters.environments import uv
from launch.field_run import Done, Field, private_folders

STANDIN = Path(__file__).with_name("standin")
#: A training script as a user would write it.
TRAIN = "from trl.trainer.grpo_trainer import GRPOTrainer\nGRPOTrainer().train()\n"

root_only = pytest.mark.skipif(os.getuid() != 0, reason="mounting needs root")


@pytest.fixture
def field(tmp_path: Path) -> Field:
    """A place for runs on simulated GPUs, with the stand-in framework on the user's own path."""
    field = Field(tmp_path)
    field.simulate()
    field.environment["PYTHONPATH"] = str(STANDIN)
    return field


def script(field: Field, text: str = TRAIN, name: str = "train.py") -> str:
    """The script in a file."""
    path = field.folder / name
    path.write_text(textwrap.dedent(text))
    return str(path)


def labels(done: Done) -> list[int]:
    """The updates of the ledger that have trained."""
    return [event["label"] for event in done.events("update")]


def valid(done: Done) -> list[int | None]:
    """Their valid tokens."""
    return [event["record"]["valid_tokens"] for event in done.events("update")]


def test_a_plain_script(field: Field) -> None:
    """Phases, tokens, mode and the number of updates come without an edit."""
    done = field.run([sys.executable, script(field)])

    assert done.code == 0, done.errors
    (run,) = done.events("run")
    assert (run["framework"], run["mode"], run["total_updates"]) == ("trl", "colocated_sync", 3)
    assert labels(done) == [0, 1, 2] and valid(done) == [15, 15, 15]
    assert {"generation", "reward", "training"} <= set(done.events("update")[0]["record"]["phases"])
    assert done.events("start")[0]["adapter"] == "auto"
    assert not [line for line in done.ours if "adapter" in line]


def test_uv_run(field: Field) -> None:
    """``uv run`` before the script, in an environment that it makes for this one run, takes nothing away."""
    field.environment |= {"UV_OFFLINE": "1", "UV_CACHE_DIR": str(field.folder / "uv")}
    here = ["--no-project", "--isolated", "--python", sys.executable]

    done = field.run([str(uv()), "run", *here, "python", script(field)])

    assert done.code == 0, done.errors
    assert labels(done) == [0, 1, 2] and valid(done) == [15] * 3


def test_switched_off(field: Field) -> None:
    """With ``--adapter none`` the command's path is its own and no marker comes."""
    field.options += ["--adapter", "none"]

    done = field.run([sys.executable, script(field, "import os\nprint(os.environ['PYTHONPATH'])\n" + TRAIN)])

    assert done.output.decode().strip() == str(STANDIN)
    assert done.events("update") == [] and "no markers came" in done.errors


@pytest.mark.parametrize("option", ["-I", "-S", "-E"])
def test_python_options_that_keep_it_out(field: Field, option: str) -> None:
    """eerl-run says before the start which option does it; the command runs as it is."""
    done = field.run([sys.executable, option, "-c", "print('runs')"])

    assert (done.code, done.output) == (0, b"runs\n")
    assert any(f"{option} ignores" in line for line in done.ours)


def test_python_options_behind_a_shell(field: Field) -> None:
    """Where it cannot be seen before, it is said at the end."""
    done = field.run(["sh", "-c", f"{sys.executable} -E -c pass"])

    assert done.code == 0
    assert any("no Python of this node loaded the framework adapters" in line for line in done.ours)


def test_no_framework(field: Field) -> None:
    """A Python job without one is told so."""
    done = field.run([sys.executable, "-c", "pass"])

    assert any("no supported framework" in line for line in done.ours)


def test_a_crash_inside_a_phase(field: Field) -> None:
    """The user's exception and exit code are the user's; the phase is closed and the updates before it count."""
    field.environment["CRASH_IN_REWARD"] = "2"

    done = field.run([sys.executable, script(field)])

    assert done.code == 1
    errors = done.errors[done.errors.index("Traceback") :]
    assert "RuntimeError: the user's reward function" in errors
    assert labels(done)[:2] == [0, 1] and valid(done)[:2] == [15, 15]
    assert not done.events("event") or not any("missing_end" in str(event) for event in done.events("event"))


def test_a_trainer_that_forks(field: Field) -> None:
    """Children that do nothing with the trainer are silent; one that trains in the parent's place speaks."""
    text = """
        import os
        from trl.trainer.grpo_trainer import GRPOTrainer
        trainer = GRPOTrainer()
        children = []
        for _ in range(3):
            pid = os.fork()
            if pid == 0:
                os._exit(0)
            children.append(pid)
        trainer.train()
        for pid in children:
            os.waitpid(pid, 0)
        pid = os.fork()
        if pid == 0:
            trainer.state.max_steps = 5
            trainer.train()
            os._exit(0)
        os.waitpid(pid, 0)
    """
    done = field.run([sys.executable, script(field, text)])

    assert done.code == 0, done.errors
    assert labels(done) == [0, 1, 2, 3, 4] and valid(done) == [15] * 5


def test_a_child_that_leaves_a_phase(field: Field) -> None:
    """One forked inside a phase unwinds through it when it exits; the phase goes on in its parent."""
    text = """
        import os, sys, time
        from trl.trainer.grpo_trainer import GRPOTrainer
        sleep = time.sleep
        def forks(seconds):
            pid = os.fork()
            if pid == 0:
                sys.exit(0)
            os.waitpid(pid, 0)
            sleep(seconds)
        time.sleep = forks
        GRPOTrainer(phase_s=0.5).train()
    """
    done = field.run([sys.executable, script(field, text)])

    assert done.code == 0, done.errors
    assert labels(done) == [0, 1, 2] and valid(done) == [15] * 3
    for event in done.events("update"):
        assert event["record"]["phases"]["generation"]["elapsed_s"] >= 0.4
    assert not [event for event in done.events("event") if event["kind"] == "markers_odd"]


def test_a_trainer_of_the_scripts_own(field: Field) -> None:
    """A subclass that overrides what is hooked, without the original or around it, is marked all the same."""
    text = """
        import time
        from trl.trainer.grpo_trainer import GRPOTrainer
        class Own(GRPOTrainer):
            def _generate(self, prompts):
                time.sleep(self.phase_s)
                return prompts, [[0] * length for length in self.lengths], None
            def _prepare_inputs(self, batch):
                return self._generate_and_score_completions(["prompt"] * 3)
            def _calculate_rewards(self, inputs):
                return super()._calculate_rewards(inputs)
        Own().train()
    """
    done = field.run([sys.executable, script(field, text)])

    assert done.code == 0, done.errors
    assert labels(done) == [0, 1, 2] and valid(done) == [15] * 3
    for event in done.events("update"):
        assert {"generation", "reward", "training"} <= set(event["record"]["phases"])


def test_two_trainers_at_once(field: Field) -> None:
    """One of them is marked, whole and alone; eerl-run says that there was another."""
    one = script(field, TRAIN.replace("()", "(updates=20)", 1))
    other = script(field, TRAIN.replace("()", "(lengths=(100,))", 1), "other.py")
    wait = 'until [ -e "$(dirname "$EERL_SOCKET")/trainer" ]; do sleep 0.02; done'

    done = field.run(["sh", "-c", f"{sys.executable} {one} & {wait}; {sys.executable} {other}; wait"])

    assert done.code == 0, done.errors
    assert labels(done) == list(range(20)) and valid(done) == [15] * 20
    assert any("a second trainer of this job" in line for line in done.ours)


def test_two_trainers_in_two_threads(field: Field) -> None:
    """Within one process it is the same; a third one, after the first, is marked again."""
    text = """
        import threading, time
        from trl.trainer.grpo_trainer import GRPOTrainer
        first = GRPOTrainer(updates=12)
        other = GRPOTrainer(lengths=(100,), updates=4)
        trains = threading.Thread(target=first.train)
        trains.start()
        while first._step < 1:
            time.sleep(0.01)
        meanwhile = threading.Thread(target=other.train)
        meanwhile.start()
        meanwhile.join()
        trains.join()
        GRPOTrainer().train()
    """
    done = field.run([sys.executable, script(field, text)])

    assert done.code == 0, done.errors
    assert labels(done) == [*range(12), 0, 1, 2] and valid(done) == [15] * 15
    assert any("a second trainer of this job" in line for line in done.ours)
    assert not [event for event in done.events("event") if event["kind"] == "markers_odd"]


def test_two_trainers_one_after_the_other(field: Field) -> None:
    """Both are marked: the second begins to count anew, and its updates are updates of the run."""
    path = script(field)

    done = field.run(["sh", "-c", f"{sys.executable} {path}; {sys.executable} {path}"])

    assert labels(done) == [0, 1, 2, 0, 1, 2] and valid(done) == [15] * 6


def test_ranks_of_one_trainer(field: Field) -> None:
    """Ranks above 0 neither mark nor take the first one's place, and nothing is said of them."""
    path = script(field, "import sys\n" + TRAIN.replace("()", "(rank=int(sys.argv[1]))", 1))

    done = field.run(["sh", "-c", f"{sys.executable} {path} 1 & {sys.executable} {path} 0; wait"])

    assert labels(done) == [0, 1, 2] and valid(done) == [15] * 3
    assert not [line for line in done.ours if "trl" in line]


def test_totals_that_cannot_be_known(field: Field) -> None:
    """Where a framework no longer gathers what its ranks did, phases stay, counts are null, and it is said once."""
    path = script(field, TRAIN.replace("()", "(ranks=2)", 1))

    done = field.run([sys.executable, path])

    assert labels(done) == [0, 1, 2] and valid(done) == [None] * 3
    assert "generation" in done.events("update")[0]["record"]["phases"]
    assert len([line for line in done.ours if "token counts are unknown" in line]) == 1


def test_a_script_that_marks_itself(field: Field) -> None:
    """Its own markers count, once; the adapter says that it left it to them."""
    text = """
        from eerl_launch import mark
        from trl.trainer.grpo_trainer import GRPOTrainer
        with mark.phase("generation", 7):
            pass
        with mark.phase("training", 7):
            pass
        mark.update(7, generated_tokens=4, valid_tokens=4, longest_response_tokens=4)
        GRPOTrainer().train()
    """
    field.environment["PYTHONPATH"] += os.pathsep + str(Path(__file__).parents[2])

    done = field.run([sys.executable, script(field, text)])

    assert labels(done) == [7] and valid(done) == [4]
    assert any("the script marks its phases itself" in line for line in done.ours)


def test_stripped_environment(field: Field) -> None:
    """A launcher that passes PYTHONPATH and nothing else of ours loses nothing."""
    keep = 'env -i PATH="$PATH" PYTHONPATH="$PYTHONPATH"'

    done = field.run(["sh", "-c", f"{keep} {sys.executable} {script(field)}"])

    assert labels(done) == [0, 1, 2] and valid(done) == [15] * 3


def test_an_environment_cleared_by_the_script(field: Field) -> None:
    """What the script does to its environment once Python has started costs nothing, in the children it forks too."""
    text = """
        import os
        os.environ.clear()
        from trl.trainer.grpo_trainer import GRPOTrainer
        pid = os.fork()
        if pid == 0:
            GRPOTrainer().train()
            os._exit(0)
        os.waitpid(pid, 0)
        GRPOTrainer().train()
    """
    done = field.run([sys.executable, script(field, text)])

    assert done.code == 0, done.errors
    assert labels(done) == [0, 1, 2, 0, 1, 2] and valid(done) == [15] * 6


@root_only
def test_a_read_only_dev_shm(field: Field) -> None:
    """The adapters go where the socket goes."""
    field.options.clear()
    field.stub(gpus=1)
    mounts = 'mount -t tmpfs -o ro none /dev/shm; exec "$@"'

    done = field.run([sys.executable, script(field)], wrap=["unshare", "-m", "sh", "-c", mounts, "sh"])

    assert done.code == 0, done.errors
    assert labels(done) == [0, 1, 2]


@root_only
def test_a_full_dev_shm(field: Field) -> None:
    """Where there is no room for them the command runs without, and hears why."""
    field.options.clear()
    field.stub(gpus=1)
    mounts = 'mount -t tmpfs -o size=64k none /dev/shm; head -c 1M /dev/zero > /dev/shm/full 2>&-; exec "$@"'

    done = field.run([sys.executable, script(field)], wrap=["unshare", "-m", "sh", "-c", mounts, "sh"])

    assert done.code == 0, done.errors
    assert any("adapters cannot be laid" in line for line in done.ours)


def test_a_clean_up_takes_them_away(field: Field) -> None:
    """They are laid again while the job runs, for the processes that start later."""
    text = """
        import os, pathlib, shutil, subprocess, sys, time
        folder = pathlib.Path(os.environ["PYTHONPATH"].split(":")[0])
        assert folder.parent == pathlib.Path(os.environ["EERL_SOCKET"]).parent
        shutil.rmtree(folder.parent, ignore_errors=True)  # it may be laid again in the middle of this
        deadline = time.monotonic() + 60
        while not (folder / "sitecustomize.py").exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        sys.exit(subprocess.run([sys.executable, sys.argv[1]]).returncode)
    """
    field.options.clear()
    field.stub(gpus=1)

    done = field.run([sys.executable, script(field, text, "cleaner.py"), script(field)])

    assert done.code == 0, done.errors
    assert labels(done) == [0, 1, 2]


def test_nothing_is_left(field: Field) -> None:
    """After the run the private folder is gone, the adapters with it."""
    before = private_folders()

    field.run([sys.executable, script(field)])

    assert private_folders() <= before
