"""The session's side of the framework adapters: keeps their folder, passes on what they say, explains a silence."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eerl_launch import adapter_folder
from eerl_launch.adapters import registry
from eerl_launch.markers import Marker
from eerl_launch.nodes import Nodes
from eerl_launch.telling import Voice

#: Different notes of one run that are passed on; a sender gone wild must not fill the ledger.
_MAX_NOTES = 50


class Adapters:
    """Knows whether adapters are on, and in which folder of this node."""

    def __init__(self, config: Mapping[str, Any], voice: Voice) -> None:
        self._name = str(config.get("adapter_folder") or "")
        self._private = Path(config["private_folder"])
        self._voice = voice
        self._launcher_waits = bool(config.get("waits_for_agents"))
        self._notes: set[str] = set()
        #: Senders that adapters speak through for a whole trainer, in the order in which they began.
        self._trainers: list[str] = []
        self._silenced: set[str] = set()

    def keep(self) -> None:
        """Lay the adapters again where a clean-up took them: processes start all through a job."""
        if not self._name:
            return
        try:
            adapter_folder.lay(self._private, self._name)
        except OSError as error:
            self._voice.say_once(
                "adapters", f"the framework adapters vanished and cannot be laid again ({error})"
            )

    def tell_launcher(self, nodes: Nodes) -> None:
        """Once every agent has been heard of, the launcher waits no longer: a byte on standard output."""
        if self._launcher_waits and nodes.all_heard:
            self._launcher_waits = False
            try:
                os.write(1, b".")
            except OSError:  # a launcher that is gone is noticed elsewhere
                pass

    def accepts(self, marker: Marker) -> bool:
        """False for the markers of a second trainer that runs beside the first: together they would be wrong numbers.

        On one node the adapters see to it themselves. Trainers one after the other are fine; that two run at once is
        known when one sends something after the other has begun.
        """
        sender = marker.sender
        if marker.event == "run" and "framework_version" in marker.fields and sender not in self._trainers:
            self._trainers.append(sender)
        elif len(self._trainers) > 1 and sender in self._trainers[:-1] and sender not in self._silenced:
            later = self._trainers[self._trainers.index(sender) + 1 :]
            if not self._silenced.issuperset(later):
                self._silenced |= set(later)
                self._voice.say_once(
                    "trainers",
                    "trainers on several nodes of this job mark their phases; from here on only the first one's "
                    "count: give each its own job",
                )
        return sender not in self._silenced

    def note(self, marker: Marker) -> None:
        """Say to the user what an adapter has to say, once, however many processes said it."""
        text = marker.fields.get("text")
        if isinstance(text, str) and text.strip():
            plain = "".join(c if c.isprintable() else "?" for c in text)
            if len(self._notes) < _MAX_NOTES:
                self._notes.add(plain)
                self._voice.say_once(f"adapter: {plain}", plain)

    def why_silent(self) -> str:
        """What is known of why no markers came, to go on with the sentence that says so."""
        if not self._name:
            return ""
        if not (self._private / self._name / adapter_folder.LOADED_NAME).exists():
            return (
                ": no Python of this node loaded the framework adapters (python -I, -S and -E keep them out, "
                "and so does a PYTHONPATH that was set anew)"
            )
        return (
            f": no supported framework ({', '.join(registry.ADAPTERS)}) was used in a Python with the framework "
            "adapters; one whose environment was cleared, or that was started with -I, -S or -E, has none"
        )
