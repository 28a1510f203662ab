"""A private place for sockets, whatever is in the way (field cases S17–S19, R12, R13)."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from eerl_launch import sockets
from eerl_launch.sockets import InstanceLock, NoPlaceError, listen, peer_is_us, private_folder

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of another user")


@pytest.fixture
def root(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only root in which folders are looked for; short enough for sockets."""
    folder = tmp_path_factory.mktemp("r")
    monkeypatch.setattr(sockets, "_ROOTS", (str(folder),))
    return folder


def name() -> str:
    return f"eerl-{os.geteuid()}-7"


def is_private(folder: Path) -> bool:
    info = folder.lstat()
    return stat.S_ISDIR(info.st_mode) and stat.S_IMODE(info.st_mode) == 0o700 and info.st_uid == os.geteuid()


@pytest.mark.parametrize("umask", [0o022, 0o000, 0o777])
def test_folder_is_made_private(root: Path, umask: int) -> None:
    """Whatever the umask, the folder has mode 0700, our uid, and the name made of uid and job."""
    before = os.umask(umask)
    try:
        folder = private_folder("7")
    finally:
        os.umask(before)

    assert folder == root / name()
    assert is_private(folder)
    assert list(folder.iterdir()) == []


def test_own_private_folder_is_used_again(root: Path) -> None:
    """A requeued job finds its folder and uses it."""
    assert private_folder("7") == private_folder("7")


@pytest.mark.parametrize("mode", [0o755, 0o777, 0o1777, 0o750, 0o500])
def test_open_folder_in_the_way(root: Path, mode: int) -> None:
    """A folder that others may read or write is left as it is; ours gets a random suffix."""
    (root / name()).mkdir()
    (root / name()).chmod(mode)

    folder = private_folder("7")

    assert folder.name.startswith(f"{name()}-")
    assert is_private(folder)
    assert stat.S_IMODE((root / name()).stat().st_mode) == mode


@pytest.mark.parametrize("kind", ["file", "symlink to a folder", "dangling symlink", "fifo"])
def test_something_else_in_the_way(root: Path, kind: str) -> None:
    """A file, symlink or fifo at the name is neither followed nor removed."""
    target = root / "elsewhere"
    target.mkdir(mode=0o700)
    place = root / name()
    if kind == "file":
        place.write_text("precious")
    elif kind == "fifo":
        os.mkfifo(place)
    else:
        place.symlink_to(target if "folder" in kind else root / "nothing")

    folder = private_folder("7")

    assert folder.name.startswith(f"{name()}-")
    assert os.path.lexists(place)
    assert list(target.iterdir()) == []
    if kind == "file":
        assert place.read_text() == "precious"


@ROOT_ONLY
def test_folder_of_another_user(root: Path) -> None:
    """A folder that another user made beforehand is not trusted, even with the right mode."""
    (root / name()).mkdir(mode=0o700)
    os.chown(root / name(), 65534, 65534)

    assert private_folder("7").name.startswith(f"{name()}-")


def test_unusable_roots_are_passed_over(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Missing roots, files and long paths are passed over for the first root that works."""
    long = root / ("x" * 110)
    long.mkdir()
    (root / "file").write_text("")
    good = root / "good"
    good.mkdir()
    monkeypatch.setattr(
        sockets, "_ROOTS", (str(root / "missing"), str(root / "file"), str(long), "/proc", str(good))
    )

    folder = private_folder("7")

    assert folder.parent == good
    assert list(long.iterdir()) == []


def test_root_that_holds_no_sockets(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S18: where a socket cannot be bound or connected, the next root is taken, and no folder stays behind."""
    bad, good = root / "bad", root / "good"
    bad.mkdir()
    good.mkdir()
    monkeypatch.setattr(sockets, "_ROOTS", (str(bad), str(good)))
    monkeypatch.setattr(sockets, "_holds_a_socket", lambda folder: folder.parent == good)

    assert private_folder("7").parent == good
    assert list(bad.iterdir()) == []


def test_no_place_at_all(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing works the error lists what was tried."""
    monkeypatch.setattr(sockets, "_ROOTS", (str(root / "a"), str(root / ("b" * 120))))

    with pytest.raises(NoPlaceError, match=r"No such file or directory.*too long for a socket"):
        private_folder("7")


def test_long_tmpdir_does_not_matter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """S17: a TMPDIR of 130 characters leaves the socket path short."""
    monkeypatch.setenv("TMPDIR", str(tmp_path / ("t" * 130)))

    folder = private_folder(f"test{os.getpid()}")
    try:
        assert len(str(folder / sockets.SOCKET_NAME)) <= 107
        listen(folder / sockets.SOCKET_NAME).close()
    finally:
        (folder / sockets.SOCKET_NAME).unlink(missing_ok=True)
        folder.rmdir()


def test_listening_socket_takes_connections(root: Path) -> None:
    """The socket has mode 0600, does not block, and its peers are known by uid."""
    server = listen(root / "s")

    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(root / "s"))
        connection, _ = server.accept()

    assert stat.S_IMODE((root / "s").stat().st_mode) == 0o600
    assert not server.getblocking()
    assert peer_is_us(connection)
    with pytest.raises(BlockingIOError):
        server.accept()
    connection.close()
    server.close()


def test_dead_socket_is_replaced(root: Path) -> None:
    """R12: the socket of a killed run is removed and bound again."""
    script = (
        "import socket,sys,os; s=socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen(); os._exit(9)"
    )
    subprocess.run([sys.executable, "-c", script, str(root / "s")], check=False)
    assert (root / "s").is_socket()

    listen(root / "s").close()


def test_live_socket_is_never_taken(root: Path) -> None:
    """R12: a socket somebody listens on is refused and goes on working."""
    server = listen(root / "s")

    with pytest.raises(OSError, match="running eerl-run"):
        listen(root / "s")

    server.accept()[0].close()  # the probe
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(root / "s"))
    server.close()


def test_foreign_things_at_the_path_stay(root: Path) -> None:
    """R13: regular files and symlinks at the socket's path are never deleted."""
    (root / "file").write_text("precious")
    (root / "link").symlink_to(root / "file")
    (root / "folder").mkdir()

    for place in ("file", "link", "folder"):
        with pytest.raises(OSError, match="in the way"):
            listen(root / place)

    assert (root / "file").read_text() == "precious"
    assert (root / "link").is_symlink()


@ROOT_ONLY
def test_dead_socket_of_another_user_stays(root: Path) -> None:
    """R13: not even a dead socket is removed when it is not ours."""
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(root / "s"))
    os.chown(root / "s", 65534, 65534)

    with pytest.raises(OSError, match="not a socket of ours"):
        listen(root / "s")

    assert (root / "s").is_socket()


@ROOT_ONLY
def test_peer_of_another_user() -> None:
    """R13: a connection made by another uid is known as such."""
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as server:
        Path(folder).chmod(0o755)
        path = Path(folder) / "s"
        server.bind(str(path))
        path.chmod(0o666)
        server.listen()
        script = (
            "import socket,sys,os; s=socket.socket(socket.AF_UNIX); os.setuid(65534); s.connect(sys.argv[1])"
        )

        subprocess.run([sys.executable, "-c", script, str(path)], check=True)
        connection, _ = server.accept()

        with connection:
            assert not peer_is_us(connection)


def test_one_instance_at_a_time(root: Path) -> None:
    """The lock is held once; whoever inherits its descriptor keeps it after the first holder has let go."""
    first, second = InstanceLock(root), InstanceLock(root)
    inherited = os.dup(first.fd)

    first.close()
    assert first.held and not second.held
    assert not InstanceLock(root).held

    os.close(inherited)
    assert InstanceLock(root).held
    with pytest.raises(ValueError, match="closed"):
        _ = first.fd


def test_lock_is_gone_with_its_process(root: Path) -> None:
    """A killed holder leaves no lock behind."""
    script = "import sys,os,pathlib; from eerl_launch.sockets import InstanceLock; "
    script += "l=InstanceLock(pathlib.Path(sys.argv[1])); os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", script, str(root)], check=False)

    assert InstanceLock(root).held


def test_folders_of_killed_runs_are_swept_and_no_others(root: Path) -> None:
    """Dead folders of ours go; one whose lock is held, whose socket answers, or which is not ours alone stays."""
    dead, locked, answering, open_to_all = (private_folder(job) for job in ("1", "2", "3", "4"))
    InstanceLock(dead).close()
    lock = InstanceLock(locked)
    server = listen(answering / sockets.SOCKET_NAME)
    open_to_all.chmod(0o755)
    (root / "eerl-other").mkdir()

    young = sockets.sweep_dead_folders(older_than_s=3600.0)
    swept = sockets.sweep_dead_folders(older_than_s=-1.0)

    lock.close()
    server.close()
    assert (young, swept) == (0, 1)
    assert not dead.exists()
    assert all(folder.exists() for folder in (locked, answering, open_to_all, root / "eerl-other"))
