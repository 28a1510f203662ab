"""Runs the user's command as if nothing stood before it, and returns its exit code.

The launcher does no measuring: it starts the session (a process of its own, so that nothing in it can touch
the command), forks the command with the environment, descriptors, signal mask and group it would have had anyway,
passes signals on and waits. Whatever of ours fails, the command goes on.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eerl_launch.own_modules import OWN_PYTHON
from eerl_launch.signals import FORWARDED, Witness, forward, has_terminal
from eerl_launch.telling import say

#: How long the session may take for agents and report once the command has ended.
_FAREWELL_S = 60.0
_SILENT_S = 8.0
#: With framework adapters the command waits this long for the agents, which lay them on their nodes.
_AGENTS_S = 2.0
_NOT_FOUND, _NOT_EXECUTABLE = 127, 126
#: The session's code when it has said itself what went wrong.
_SAID_SO = 70


@dataclass(slots=True)
class SessionProcess:
    """The session as the launcher sees it: it hears one JSON line per news and shows that it is alive."""

    process: subprocess.Popen[bytes]

    @classmethod
    def start(cls, config: Mapping[str, Any], pass_fds: Sequence[int]) -> SessionProcess | None:
        """The started session, or None with a message when it cannot be started."""
        try:
            process = subprocess.Popen(
                [*OWN_PYTHON, "-m", "eerl_launch.session"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=pass_fds,
                start_new_session=True,  # a terminal's signals and hang-up are not for it
            )
        except OSError as error:
            say(f"the session cannot be started ({error}); the command runs unmeasured")
            return None
        session = cls(process)
        session.tell(config)
        return session

    def tell(self, news: Mapping[str, Any]) -> None:
        """Send one line; a session that is gone is noticed elsewhere."""
        stdin = self.process.stdin
        if stdin is None:
            return
        try:
            stdin.write(json.dumps(news).encode() + b"\n")
            stdin.flush()
        except BrokenPipeError:
            # Signals are blocked to be passed on; this one is of our own making and not for the command.
            signal.sigtimedwait({signal.SIGPIPE}, 0)
        except (OSError, ValueError):
            pass

    def wait_for_agents(self) -> None:
        """Until every node has been heard of, within bounds: a trainer may start processes there at once."""
        stdout = self.process.stdout
        if stdout is None:
            return
        if select.select([stdout], [], [], _AGENTS_S)[0]:
            os.read(stdout.fileno(), 1)
        else:
            say(
                f"not every node's agent has answered within {_AGENTS_S:.0f} s; the command starts, and what it "
                "starts there before they do runs without framework adapters"
            )

    def farewell(self, news: Mapping[str, Any]) -> None:
        """Tell the command's end, wait within bounds for the report, and leave nothing behind."""
        self.tell(news)
        with contextlib.suppress(OSError):
            if self.process.stdin is not None:
                self.process.stdin.close()
        self._wait_while_alive()
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
            say("the report was not finished in time; make it with `eerl report` and the run folder")
        elif self.process.returncode != 0:
            say(
                f"the session ended with code {self.process.returncode}; "
                "`eerl report` makes the report from the ledger it left"
            )

    def _wait_while_alive(self) -> None:
        """Until the session ends, falls silent (it writes a byte a second), or takes too long."""
        stdout = self.process.stdout
        if stdout is None:
            return
        deadline = time.monotonic() + _FAREWELL_S
        while time.monotonic() < deadline:
            ready = select.select([stdout], [], [], _SILENT_S)[0]
            if not ready:
                return
            if not os.read(stdout.fileno(), 4096):
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.process.wait(_SILENT_S)
                return


def reserve_standard_descriptors() -> None:
    """Keep 0, 1 and 2 taken in this process where the caller had closed them; the command sees them closed.

    To be called before anything of ours is opened, or the marker socket becomes somebody's standard output.
    """
    while True:
        fd = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        if fd > 2:
            os.close(fd)
            return


def _exec_command(
    command: Sequence[str], environment: Mapping[str, str], group: int | None, mask: set[int | signal.Signals]
) -> None:
    """In the forked child: become the command, or exit as a shell would when it cannot be run."""
    if group is not None:
        with contextlib.suppress(OSError):
            os.setpgid(0, group)
    # The interpreter had set these two to be ignored; everything else is as it was inherited.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    try:
        os.execvpe(command[0], list(command), dict(environment))
    except FileNotFoundError:
        say(f"{command[0]}: command not found")
        os._exit(_NOT_FOUND)
    except OSError as error:
        say(f"{command[0]}: {error.strerror}")
        os._exit(_NOT_EXECUTABLE)


def run(
    command: Sequence[str],
    environment: Mapping[str, str],
    config: Mapping[str, Any] | None,
    pass_fds: Sequence[int] = (),
) -> int:
    """Run ``command`` and return its exit code (128 + N when signal N killed it).

    ``config`` starts a session beside it; None runs the command alone.
    """
    reserve_standard_descriptors()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED | {signal.SIGCHLD})
    new_group = not has_terminal()
    witness = Witness(new_group)
    session = None if config is None else SessionProcess.start(config, pass_fds)
    for fd in pass_fds:
        os.close(fd)
    if session is not None and config is not None and config["waits_for_agents"]:
        session.wait_for_agents()
    group = witness.pid if new_group and witness.pid > 0 else None
    pid = os.fork()
    if pid == 0:
        try:
            _exec_command(command, environment, group, mask)
        finally:
            os._exit(_NOT_EXECUTABLE)
    if group is not None:
        with contextlib.suppress(OSError):
            os.setpgid(pid, group)  # whichever of the two comes first
    if session is not None:
        session.tell({"ev": "started", "pid": pid})
    status = _wait(pid, group, witness, session)
    code = os.waitstatus_to_exitcode(status)
    witness.stop()
    if session is not None:
        session.farewell({"ev": "exit", "code": code if code >= 0 else 128 - code, "signal": max(0, -code)})
        if config is not None and session.process.returncode != 0:  # it could not take away its own folder
            shutil.rmtree(config["private_folder"], ignore_errors=True)
    return code if code >= 0 else 128 - code


def _wait(pid: int, group: int | None, witness: Witness, session: SessionProcess | None) -> int:
    """Pass signals on until the command has ended; its wait status."""
    watched = FORWARDED | {signal.SIGCHLD}
    warned = session is None
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return status
        if not warned and session is not None and session.process.poll() is not None:
            if session.process.returncode != _SAID_SO:
                say("the session ended early; the clocks are handed back and the command goes on unmeasured")
            warned = True
        info = signal.sigtimedwait(watched, 5.0)
        if info is None or info.si_signo == signal.SIGCHLD:
            continue
        if not witness.saw(info.si_signo):
            forward(info.si_signo, pid, group)
