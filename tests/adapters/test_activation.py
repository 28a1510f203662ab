"""How the hooks get into the job's Pythons: first on the path, hiding nothing, importing nothing, failing quietly."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from launch.marker_listener import Listener, wait_until

from eerl_launch import adapter_folder, adapters
from eerl_launch.adapters import registry

#: A framework of our own at the place of TRL's trainer.
TRAINER = "class GRPOTrainer:\n    pass\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The adapters as eerl-run lays them."""
    return adapter_folder.lay(tmp_path, "adapters")


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[Listener]:
    """The job's marker socket, beside the adapters."""
    listener = Listener(tmp_path / "s")
    yield listener
    listener.close()


def python(code: str, *paths: Path | str, options: tuple[str, ...] = (), **env: str) -> str:
    """Output of a Python with these folders on PYTHONPATH; it must not fail."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("EERL_", "PYTHON"))}
    done = subprocess.run(
        [sys.executable, *options, "-c", code],
        env={**clean, "PYTHONPATH": os.pathsep.join(map(str, paths)), **env},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def framework(folder: Path, body: str = TRAINER) -> Path:
    """A package ``trl`` with such a trainer."""
    package = folder / "site" / "trl" / "trainer"
    package.mkdir(parents=True)
    for name in ("trl/__init__.py", "trl/trainer/__init__.py"):
        (folder / "site" / name).touch()
    (package / "grpo_trainer.py").write_text(body)
    return folder / "site"


def notes(listener: Listener) -> list[str]:
    """What adapters told the user, once every sender has gone."""
    listener.drain()
    return [m["text"] for m in map(json.loads, listener.lines) if m["ev"] == "note"]


def test_registry_and_adapters_agree() -> None:
    """Every module an adapter waits for has its row, every row an adapter, and ``--adapter`` names all of them."""
    ours = set(registry.MODULES.values())

    assert {name for names in registry.ADAPTERS.values() for name in names} | set(registry.SHARED) == ours
    for name in ours:
        adapter = __import__(f"{adapters.__name__}.{name}", fromlist=["adapter"]).adapter
        assert set(adapter.modules) == {module for module, to in registry.MODULES.items() if to == name}


def test_the_users_own_sitecustomize_runs(folder: Path, tmp_path: Path) -> None:
    """The one that ours hides is imported in its place, under its own name."""
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import sys\nSEEN = list(sys.path)\nsys.path.append('/added')\n")
    code = "import sys, sitecustomize as s; print(s.__file__, sys.meta_path[0].__module__, sys.path[-1], sys.path[1])"

    seen = python(code, folder, own).split()

    watch = f"{adapter_folder.PACKAGE_NAME}.adapters.watch"
    assert seen == [str(own / "sitecustomize.py"), watch, "/added", str(folder)]


@pytest.mark.parametrize("own", ["raise RuntimeError('theirs')", "import no_such_module", "def broken("])
def test_a_broken_sitecustomize_says_what_it_would(folder: Path, tmp_path: Path, own: str) -> None:
    """Python's message about the user's own file is the same with and without us, and the program runs."""
    place = tmp_path / "own"
    place.mkdir()
    (place / "sitecustomize.py").write_text(own + "\n")

    assert python("print('runs')", folder, place) == python("print('runs')", place)


def test_nothing_is_imported_at_the_start(folder: Path) -> None:
    """A Python that uses no framework gets our watch, and no module beyond what it imports anyway."""
    code = "import sys; print(*sys.modules)"
    plain, hooked = (set(python(code, *paths).split()) for paths in ((), (folder,)))

    package = adapter_folder.PACKAGE_NAME
    assert {name for name in hooked - plain if not name.startswith(package)} <= {
        "sitecustomize",
        "__future__",
    }
    assert {name for name in hooked if name.startswith(package)} == {
        package,
        f"{package}.adapters",
        f"{package}.adapters.registry",
        f"{package}.adapters.watch",
    }


def test_an_imported_module_is_hooked(folder: Path, tmp_path: Path, listener: Listener) -> None:
    """The adapter is loaded with the module, not before, and tells what this version has not."""
    site = framework(tmp_path)
    code = (
        "import sys, trl; before = 'eerl_trainer.adapters.trl' in sys.modules\n"
        "from trl.trainer.grpo_trainer import GRPOTrainer\n"
        "print(before, 'eerl_trainer.adapters.trl' in sys.modules, type(sys.modules['trl'].__loader__).__name__,"
        "'exec_module' in vars(sys.modules['trl.trainer.grpo_trainer'].__loader__))"
    )

    assert python(code, folder, site).split() == ["False", "True", "SourceFileLoader", "False"]
    wait_until(lambda: len(listener.lines) >= 6)
    texts = notes(listener)
    assert "trl of unknown version: GRPOTrainer._generate is not there; generation and generated tokens" in (
        " ".join(texts)
    )


def test_the_socket_is_found_without_environment(folder: Path, tmp_path: Path, listener: Listener) -> None:
    """A process whose EERL_* were taken away, but not PYTHONPATH, finds the socket beside the adapters."""
    assert python("import os; print(os.environ['EERL_SOCKET'])", folder).strip() == str(tmp_path / "s")


@pytest.mark.parametrize("body", ["raise ImportError('theirs')", "1 / 0"])
def test_a_framework_that_fails_to_import(folder: Path, tmp_path: Path, body: str) -> None:
    """Its own exception arrives, and a second import tries again as ever."""
    site = framework(tmp_path, body)
    code = (
        "for _ in range(2):\n"
        "    try:\n        import trl.trainer.grpo_trainer\n"
        "    except Exception as error:\n        print(repr(error), error.__cause__, error.__context__)\n"
    )

    assert python(code, folder, site) == python(code, site)


def test_a_framework_in_a_zip_file(folder: Path, tmp_path: Path, listener: Listener) -> None:
    """One loader serves all its modules; each is run once and only ours to see is hooked."""
    site = framework(tmp_path, TRAINER + "import trl.other\n")
    (site / "trl" / "other.py").write_text("print('other')\n")
    with zipfile.ZipFile(tmp_path / "trl.zip", "w") as archive:
        for path in site.rglob("*.py"):
            archive.write(path, path.relative_to(site))

    code = "import trl.trainer.grpo_trainer as t; print(t.__file__.endswith('trl.zip/trl/trainer/grpo_trainer.py'))"
    assert python(code, folder, tmp_path / "trl.zip").split() == ["other", "True"]
    wait_until(lambda: bool(listener.lines))


def test_an_adapter_of_ours_that_cannot_be_imported(folder: Path, tmp_path: Path, listener: Listener) -> None:
    """The framework is imported all the same; one message says what is missing."""
    broken = folder / adapter_folder.PACKAGE_NAME / "adapters" / "trl.py"
    broken.write_text("raise ValueError('ours')\n")
    site = framework(tmp_path)

    assert python(
        "import trl.trainer.grpo_trainer as t; print(t.GRPOTrainer.__name__)", folder, site
    ).strip() == ("GRPOTrainer")
    wait_until(lambda: bool(listener.lines))
    assert ["eerl's adapter for trl.trainer.grpo_trainer failed" in text for text in notes(listener)] == [
        True
    ]


def test_a_folder_that_vanishes(folder: Path, tmp_path: Path) -> None:
    """A Python that starts when the folder is gone, or half there, is a plain Python."""
    plain = python("import sys; print(*map(type, sys.meta_path))")
    (folder / adapter_folder.PACKAGE_NAME / "adapters" / "watch.py").unlink()

    assert python("import sys; print(*map(type, sys.meta_path))", folder) == plain
    assert python("import sys; print(*map(type, sys.meta_path))", tmp_path / "gone") == plain
    adapter_folder.remove(tmp_path, "adapters")
    assert adapter_folder.lay(tmp_path, "adapters") == folder
    assert "watch.Watch" in python("import sys; print(*map(type, sys.meta_path))", folder)


def test_one_framework_only(folder: Path, tmp_path: Path) -> None:
    """``--adapter`` with another name leaves this framework alone."""
    site = framework(tmp_path)
    code = "import sys, trl.trainer.grpo_trainer; print('eerl_trainer.adapters.trl' in sys.modules)"

    assert python(code, folder, site, EERL_ADAPTER="verl").strip() == "False"
    assert python(code, folder, site, EERL_ADAPTER="trl").strip() == "True"


@pytest.mark.parametrize("version", ["2.7", "3.6", "3.8", "3.9", "3.10", "3.12", "3.13"])
def test_other_pythons_of_the_job(folder: Path, tmp_path: Path, version: str) -> None:
    """Older ones start as ever, with their own sitecustomize; the supported ones get the watch."""
    found = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    if not found:
        pytest.skip(f"no Python {version} under ~/.pyenv")
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("OWN = 1\n")
    code = (
        "import sys, sitecustomize; print(sitecustomize.OWN, [type(f).__name__ for f in sys.meta_path][:1])"
    )

    done = subprocess.run(
        [str(found[-1]), "-c", code],
        env={"PYTHONPATH": f"{folder}:{own}"},
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("1" if version != "2.7" else "(1")
    assert ("Watch" in done.stdout) == (version in ("3.10", "3.12", "3.13"))


@pytest.mark.parametrize(
    ("command", "off"),
    [
        (["python", "-I", "train.py"], True),
        (["/usr/bin/python3.11", "-uS", "train.py"], True),
        (["python3", "-X", "dev", "-E", "-m", "train"], True),
        (["python", "train.py", "-I"], False),
        (["python", "-c", "-I"], False),
        (["python", "-mtrain", "-S"], False),
        (["python", "-W", "I", "train.py"], False),
        (["python", "-s", "-u", "train.py"], False),
        (["torchrun", "-I"], False),
        (["bash", "-E", "job.sh"], False),
        (["python"], False),
    ],
)
def test_options_that_keep_the_hooks_out(command: list[str], off: bool) -> None:
    """Python's own -I, -S and -E are found; the same letters elsewhere mean something else."""
    assert (adapter_folder.why_off(command) is not None) == off


def test_environment(tmp_path: Path) -> None:
    """Ours comes first and theirs stays; nothing that a Python without our folder could stumble on."""
    made = adapter_folder.environment({"PYTHONPATH": "/a:/b"}, tmp_path, "trl")

    assert made == {"PYTHONPATH": f"{tmp_path}:/a:/b", "EERL_ADAPTER": "trl"}
    assert adapter_folder.environment({"PYTHONPATH": ""}, tmp_path, "auto")["PYTHONPATH"] == str(tmp_path)


def test_an_installation_that_is_read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is copied can be removed again, whatever the modes of what was installed."""
    installed = tmp_path / "eerl_launch"
    shutil.copytree(
        Path(adapters.__file__).parents[1], installed, ignore=shutil.ignore_patterns("__pycache__")
    )
    for path in [*installed.rglob("*"), installed]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    monkeypatch.setattr(adapters, "__file__", str(installed / "adapters" / "__init__.py"))

    folder = adapter_folder.lay(tmp_path, "laid")

    assert all(path.stat().st_mode & 0o200 for path in [folder, *folder.rglob("*")])
    assert "Watch" in python("import sys; print(*map(type, sys.meta_path))", folder)
    for path in [installed, *installed.rglob("*")]:
        path.chmod(0o755)
