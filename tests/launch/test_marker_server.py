"""The marker socket under load, half lines and clean-ups (field cases S19, R10, R13)."""

from __future__ import annotations

import contextlib
import os
import resource
import selectors
import shutil
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from eerl_launch import marker_server
from eerl_launch.marker_server import MarkerServer
from eerl_launch.sockets import listen

HANG_S = 30.0


class Hearing:
    """A marker server with its loop, and what it heard."""

    def __init__(self, path: Path, server: socket.socket | None = None) -> None:
        self.path = path
        self.lines: list[tuple[str, bytes]] = []
        self.bad = 0
        self.selector = selectors.DefaultSelector()
        self.server = MarkerServer(path, self.selector, self._line, self._bad, server)

    def _line(self, sender: str, line: bytes) -> None:
        self.lines.append((sender, line))

    def _bad(self, count: int) -> None:
        self.bad += count

    def turn(self, until: Callable[[], bool]) -> None:
        """Serve until something is true."""
        deadline = time.monotonic() + HANG_S
        while not until():
            assert time.monotonic() < deadline, f"heard {len(self.lines)} lines, {self.bad} bad"
            self.once()

    def once(self, wait_s: float = 0.05) -> None:
        for key, _ in self.selector.select(wait_s):
            key.data()

    def connect(self) -> socket.socket:
        client = socket.socket(socket.AF_UNIX)
        client.settimeout(HANG_S)
        client.connect(str(self.path))
        return client


@pytest.fixture
def hearing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hearing]:
    """A server that listens in a folder of its own."""
    hearing = Hearing(tmp_path_factory.mktemp("m") / "folder" / "s")
    assert hearing.server.ensure() is None
    yield hearing
    hearing.server.close()
    hearing.selector.close()


def test_lines_of_several_senders(hearing: Hearing) -> None:
    """Senders are told apart, and each one's lines come in order."""
    clients = [hearing.connect() for _ in range(3)]
    for number in range(10):
        for which, client in enumerate(clients):
            client.sendall(b"%d %d\n" % (which, number))

    hearing.turn(lambda: len(hearing.lines) == 30)

    by_sender: dict[str, list[bytes]] = {}
    for sender, line in hearing.lines:
        by_sender.setdefault(sender, []).append(line)
    assert len(by_sender) == 3
    assert all([int(line.split()[1]) for line in lines] == list(range(10)) for lines in by_sender.values())


def test_flood_of_one_does_not_starve_another(hearing: Hearing) -> None:
    """While senders flood without end, a quiet sender's line is heard within a few turns."""
    stop = threading.Event()

    def flood(client: socket.socket) -> None:
        while not stop.is_set():
            try:
                client.sendall(b"x" * 80 + b"\n")
            except OSError:
                return

    floods = [hearing.connect() for _ in range(4)]
    threads = [threading.Thread(target=flood, args=(client,), daemon=True) for client in floods]
    for thread in threads:
        thread.start()
    hearing.turn(lambda: len(hearing.lines) > 2000)
    hearing.connect().sendall(b"quiet\n")

    for _ in range(10):
        hearing.once()
        if any(line == b"quiet" for _, line in hearing.lines):
            break
    else:
        pytest.fail("the quiet sender was not heard")
    stop.set()
    for client in floods:
        client.close()


def test_half_lines(hearing: Hearing) -> None:
    """A line may come in pieces; the rest without a line end comes when its sender hangs up."""
    client = hearing.connect()
    client.sendall(b"first h")
    hearing.turn(lambda: len(hearing.server._open) == 1)
    hearing.once()
    assert hearing.lines == []

    client.sendall(b"alf\nrest")
    client.close()
    hearing.turn(lambda: not hearing.server._open)

    assert [line for _, line in hearing.lines] == [b"first half", b"rest"]


def test_long_lines_are_counted(hearing: Hearing) -> None:
    """Lines over the limit are dropped and counted, in whatever pieces they come."""
    client = hearing.connect()
    client.sendall(b"x" * 5000 + b"\ngood\n" + b"y" * 4097 + b"\n")

    hearing.turn(lambda: hearing.bad == 2 and len(hearing.lines) == 1)

    assert hearing.lines[0][1] == b"good"


def test_more_than_the_limit(hearing: Hearing, monkeypatch: pytest.MonkeyPatch) -> None:
    """Senders beyond the limit are turned away; those inside it are served on, and places become free."""
    monkeypatch.setattr(marker_server, "_MAX_SENDERS", 3)
    inside = [hearing.connect() for _ in range(3)]
    hearing.turn(lambda: len(hearing.server._open) == 3)
    outside = hearing.connect()
    hearing.once()

    assert outside.recv(1) == b""
    inside[0].sendall(b"served\n")
    hearing.turn(lambda: bool(hearing.lines))
    inside[1].close()
    hearing.turn(lambda: len(hearing.server._open) == 2)
    hearing.connect().sendall(b"late\n")
    hearing.turn(lambda: len(hearing.lines) == 2)


def test_peer_of_another_user_is_turned_away(hearing: Hearing, monkeypatch: pytest.MonkeyPatch) -> None:
    """R13: a connection that is not of our uid is closed unheard."""
    monkeypatch.setattr(marker_server, "peer_is_us", lambda connection: False)
    client = hearing.connect()
    client.sendall(b"injected\n")

    hearing.once()

    with pytest.raises(ConnectionResetError):
        while client.recv(1):
            pass
    assert hearing.lines == []


@pytest.mark.parametrize("what", ["folder", "socket", "replaced"])
def test_clean_up_of_the_folder(hearing: Hearing, what: str) -> None:
    """S19: when a cleaner takes folder or socket away, both come back, and old connections lived on."""
    old = hearing.connect()
    hearing.turn(lambda: len(hearing.server._open) == 1)
    if what == "folder":
        shutil.rmtree(hearing.path.parent)
    else:
        hearing.path.unlink()
    if what == "replaced":  # a dead socket of an earlier run, put back by some tool
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(hearing.path))

    assert hearing.server.ensure() is None
    new = hearing.connect()
    old.sendall(b"old\n")
    new.sendall(b"new\n")

    hearing.turn(lambda: len(hearing.lines) == 2)
    assert hearing.path.parent.stat().st_mode & 0o777 == 0o700


def test_ensure_leaves_a_working_socket_alone(hearing: Hearing) -> None:
    """Asking again and again changes nothing while all is well."""
    before = hearing.path.stat().st_ino

    assert [hearing.server.ensure() for _ in range(5)] == [None] * 5

    assert hearing.path.stat().st_ino == before


def test_folder_of_somebody_else(tmp_path: Path) -> None:
    """A folder that others can write to is not used, and the complaint says what is lost."""
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    hearing = Hearing(folder / "s")

    complaint = hearing.server.ensure()

    assert complaint is not None and "not a private folder of ours" in complaint and "lost" in complaint
    assert not hearing.path.exists()


def test_socket_of_a_running_job_is_not_taken(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A second server at the same path complains and leaves the first one's socket, at its close too."""
    folder = tmp_path_factory.mktemp("m")
    folder.chmod(0o700)
    first = Hearing(folder / "s", listen(folder / "s"))
    second = Hearing(folder / "s")

    complaint = second.server.ensure()
    second.server.close()

    assert complaint is not None and "running eerl-run" in complaint
    first.connect().sendall(b"heard\n")
    first.turn(lambda: [line for _, line in first.lines] == [b"heard"])
    first.server.close()


def test_close_takes_away_only_what_is_ours(hearing: Hearing) -> None:
    """The socket and its empty folder go; a file that somebody put there keeps the folder."""
    note = hearing.path.parent / "note"
    note.write_text("precious")

    hearing.server.close()

    assert note.read_text() == "precious"
    assert not hearing.path.exists()
    note.unlink()
    assert hearing.server.ensure() is None
    hearing.server.close()
    assert not hearing.path.parent.exists()


def test_drain_hears_what_was_written(hearing: Hearing) -> None:
    """At the end, lines of senders that connected, wrote and went are still heard."""
    taken_in = hearing.connect()
    hearing.turn(lambda: len(hearing.server._open) == 1)
    for number in range(3):
        client = hearing.connect()
        client.sendall(b"gone %d\n" % number)
        client.close()
    taken_in.sendall(b"".join(b"%d\n" % i for i in range(20_000)))

    hearing.server.drain()

    heard = Counter(line.split()[0] for _, line in hearing.lines)
    assert heard[b"gone"] == 3
    assert len(hearing.lines) == 20_003


def test_out_of_descriptors(hearing: Hearing) -> None:
    """When descriptors run out, the loop does not spin; it listens again as soon as it can."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    waiting = hearing.connect()
    taken = [os.dup(0)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (taken[0] + 20, hard))
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.dup(0))
        hearing.once()
        assert hearing.selector.select(0) == []
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in taken:
            os.close(fd)

    assert hearing.server.ensure() is None
    with pytest.raises(OSError, match=r"reset|[Bb]roken"):
        waiting.sendall(b"lost\n")
        waiting.sendall(b"lost\n")
    hearing.connect().sendall(b"heard\n")
    hearing.turn(lambda: [line for _, line in hearing.lines] == [b"heard"])
