"""A syslog for every node of a cluster: appends what arrives at each node's /dev/log to a file."""

from __future__ import annotations

import selectors
import socket
import sys
from pathlib import Path


def main() -> None:
    """Bind ``<base>/syslog/<node>`` for the nodes named, say so, and write until killed."""
    base = Path(sys.argv[1])
    selector = selectors.DefaultSelector()
    for node in sys.argv[2:]:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        path = base / "syslog" / node
        listener.bind(str(path))
        path.chmod(0o666)
        selector.register(listener, selectors.EVENT_READ, base / "log" / f"{node}.syslog")
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while True:
        for key, _ in selector.select():
            text = key.fileobj.recv(65536)  # type: ignore[union-attr]
            with key.data.open("ab") as file:
                file.write(text.rstrip(b"\0\n") + b"\n")


if __name__ == "__main__":
    main()
