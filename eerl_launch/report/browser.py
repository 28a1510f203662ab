"""Chromium or Chrome as a printer of pages: started for one page, without a window, spoken to over two pipes.

The protocol is Chrome's DevTools Protocol as ``--remote-debugging-pipe`` speaks it: JSON messages ended by a zero
byte, ours to descriptor 3, its own from descriptor 4. No port is opened and nothing is installed.
"""

from __future__ import annotations

import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from base64 import b64decode
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from eerl_launch.errors import EerlError

#: The commands by which Chromium and its relatives are installed; ``EERL_BROWSER`` comes before them.
COMMANDS = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "chrome",
    "microsoft-edge",
)
#: Seconds until a browser that does not answer is given up.
PATIENCE_S = 60.0
#: Seconds in which it ends by itself once nobody speaks to it.
_FAREWELL_S = 5.0

_SWITCHES = (
    "--headless",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-sync",
    "--hide-scrollbars",
    "--no-default-browser-check",
    "--no-first-run",
    "--no-proxy-server",
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--remote-debugging-pipe",
)

#: Puts the pipes where the protocol wants them, whatever numbers they have here, and becomes the browser.
_PLACE = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(number), fcntl.F_DUPFD, 10) for number in sys.argv[1:3]]
for end, wanted in zip(ends, (3, 4)):
    os.dup2(end, wanted)
os.closerange(5, 256)
os.execv(sys.argv[3], sys.argv[3:])
"""

Message = dict[str, Any]


class BrowserError(EerlError):
    """There is no browser, or it does not do what it is told; the text says which and what helps."""


def find_browser() -> str:
    """The path of the browser; :class:`BrowserError` when none is installed."""
    asked = os.environ.get("EERL_BROWSER")
    for name in (asked,) if asked else COMMANDS:
        path = shutil.which(name)
        if path is not None:
            return path
    looked = f"EERL_BROWSER={asked}" if asked else ", ".join(COMMANDS)
    raise BrowserError(
        f"PDF and PNG are made by Chromium or Chrome, and none was found (looked for {looked}); install one or set "
        "EERL_BROWSER, or open report.html in any browser and print it"
    )


class Browser:
    """A browser with one page; a context manager that leaves nothing running and nothing on disk.

    ``heard`` takes every event the page sends (its method and parameters).
    """

    def __init__(self, heard: Callable[[str, Message], None] | None = None) -> None:
        self._heard = heard
        self._number = 0
        self._unread = b""
        self._lost: str | None = None
        self._session: str | None = None
        command = find_browser()
        self._folder = tempfile.TemporaryDirectory(prefix="eerl-browser-", ignore_cleanup_errors=True)
        ours, self._write = os.pipe()
        self._read, theirs = os.pipe()
        try:
            self._process = self._start(command, ours, theirs)
        except OSError as error:
            for descriptor in (self._write, self._read):
                os.close(descriptor)
            self._folder.cleanup()
            raise BrowserError(f"the browser does not start: {error}") from error
        finally:
            os.close(ours)
            os.close(theirs)
        self._answers = selectors.DefaultSelector()
        self._answers.register(self._read, selectors.EVENT_READ)

    def _start(self, command: str, ours: int, theirs: int) -> subprocess.Popen[bytes]:
        switches = [*_SWITCHES, f"--user-data-dir={self._folder.name}", "--no-startup-window"]
        if os.geteuid() == 0:
            switches.append(
                "--no-sandbox"
            )  # as root Chromium refuses to start otherwise; the page is our own
        return subprocess.Popen(
            [sys.executable, "-I", "-S", "-B", "-c", _PLACE, str(ours), str(theirs), command, *switches],
            pass_fds=(ours, theirs),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, "HOME": self._folder.name},
        )

    def __enter__(self) -> Browser:
        try:
            self._attach()
        except BaseException:
            self._end()  # __exit__ is not for those who never came in
            raise
        return self

    def _attach(self) -> None:
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.ask(f"{domain}.enable")
        self.ask("Page.setLifecycleEventsEnabled", enabled=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        with suppress(OSError):
            os.close(self._write)  # Chromium ends when nobody speaks to it any more
        try:
            self._process.wait(_FAREWELL_S)
        except subprocess.TimeoutExpired:
            pass
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # its helpers, too
        self._process.wait()
        self._answers.close()
        os.close(self._read)
        self._folder.cleanup()

    def open(self, page: Path, width_px: int, height_px: int, *, scale: int = 1, dark: bool = False) -> None:
        """Show a file, with this much room for it; pictures have ``scale`` pixels for one of the page."""
        size = {"width": width_px, "height": height_px, "deviceScaleFactor": scale, "mobile": False}
        self.ask("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme])
        document = self.ask("Page.navigate", url=page.absolute().as_uri())["loaderId"]
        deadline = time.monotonic() + PATIENCE_S
        while True:
            found = self._next(deadline)
            event = found.get("params", {}) if found.get("method") == "Page.lifecycleEvent" else {}
            if (event.get("loaderId"), event.get("name")) == (document, "load"):
                return

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression on the page, as JSON has it."""
        found = self.ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise BrowserError(f"the page fails: {found['exceptionDetails']}")
        return found["result"].get("value")

    def pdf(self) -> bytes:
        """The page as it is printed, on the paper that it asks for (A4 where it does not)."""
        paper = {"paperWidth": 8.27, "paperHeight": 11.69, "preferCSSPageSize": True}
        return b64decode(self.ask("Page.printToPDF", printBackground=True, **paper)["data"])

    def png(self, *, whole: bool = True) -> bytes:
        """The page as a picture: all of it, or what a window shows."""
        return b64decode(
            self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        )

    def ask(self, method: str, **parameters: Any) -> Message:
        """The result of one call of the protocol; :class:`BrowserError` when it fails."""
        self._number += 1
        message: Message = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        try:
            os.write(self._write, json.dumps(message).encode() + b"\0")
        except OSError as error:
            raise BrowserError(f"the browser has ended ({method}: {error})") from error
        deadline = time.monotonic() + PATIENCE_S
        while True:
            answer = self._next(deadline)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise BrowserError(f"the browser does not do {method}: {answer['error'].get('message')}")
                result: Message = answer["result"]
                return result

    def _next(self, deadline: float) -> Message:
        """The next message; events go to ``heard`` as well."""
        if self._lost is not None:
            raise BrowserError(self._lost)  # nor are the next pages waited for
        try:
            message = self._read_message(deadline)
        except BrowserError as error:
            self._lost = str(error)
            raise
        if self._heard is not None and "method" in message:
            self._heard(message["method"], message.get("params", {}))
        return message

    def _read_message(self, deadline: float) -> Message:
        while (left_s := deadline - time.monotonic()) > 0:
            line, end, rest = self._unread.partition(b"\0")
            if end:
                self._unread = rest
                return _message(line)
            if self._answers.select(left_s):
                read = os.read(self._read, 1 << 20)
                if not read:
                    raise BrowserError(
                        "the browser ended unexpectedly; as an ordinary user it may lack its sandbox"
                    )
                self._unread += read
        raise BrowserError(f"the browser has not answered for {PATIENCE_S:.0f} s")


def _message(line: bytes) -> Message:
    try:
        found = json.loads(line)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise BrowserError(
            "what was started does not speak as Chromium does; set EERL_BROWSER to one that does"
        )
    return found
