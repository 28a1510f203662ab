"""A program that needs its terminal, and what is said to it (field case W04)."""

from __future__ import annotations

import pexpect


def program(patience_s: int) -> str:
    """Python source: tells what is a terminal, echoes a line, and counts interrupts for at most ``patience_s``."""
    return (
        "import os,signal,time;print([os.isatty(i) for i in range(3)]);print('got',input());"
        "n=[0];signal.signal(2,lambda *a:n.__setitem__(0,n[0]+1));print('ready',flush=True);"
        f"\nend=time.time()+{patience_s}\nwhile not n[0] and time.time()<end: time.sleep(0.05)\n"
        "time.sleep(0.5);print('count',n[0])"
    )


def hold(child: pexpect.spawn) -> None:
    """Three terminals, a line in, one Ctrl-C that interrupts once, and a clean end."""
    child.expect(r"\[True, True, True\]")
    child.sendline("hello")
    child.expect("got hello")
    child.expect("ready")
    child.sendintr()

    child.expect(r"count (\d+)")
    assert child.match is not None and child.match.group(1) == b"1"
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0
