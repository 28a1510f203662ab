"""An agent's device calls, off its main thread: a call that hangs in the driver stops only its own kind.

One thread samples, one locks and resets. Standard library only.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping

from eerl_launch.agent_uplink import Uplink
from eerl_launch.channel import Message
from eerl_launch.devices.base import DeviceError, GpuFailure, GpuSample, GpuSource
from eerl_launch.sample_rows import pack

#: The session pings once a second; silent for this long it counts as gone and the clocks go home.
SESSION_SILENCE_S = 10.0
_RETRY_S = 2.0
#: nvmlReturn_t for what went wrong without a code of its own.
_UNKNOWN_CODE = 999
#: How long the last reset and sample may take once the end has come; a hanging driver is left to the broker.
_FAREWELL_S = 4.0


class Hands:
    """Runs device calls off the main thread: one thread samples, one locks; a hanging call stops only its own."""

    def __init__(
        self, source: GpuSource, uplink: Uplink, clock_ns: Callable[[], int], period_s: float
    ) -> None:
        self._source = source
        self._uplink = uplink
        self._clock_ns = clock_ns
        self._period_s = period_s
        self._uuids = [gpu.uuid for gpu in source.gpus()]
        # The simple kind: its put may interrupt itself, as it does when TERM comes while an order is queued.
        self._orders: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._wake = threading.Event()
        self._requests: list[int] = []
        self._ended = threading.Event()
        self._locked: set[str] = set()
        self._sent_home = False
        self.session_heard = time.monotonic()
        self._sampler = threading.Thread(target=self._sample_forever, daemon=True)
        self._setter = threading.Thread(target=self._obey_forever, daemon=True)
        self._sampler.start()
        self._setter.start()

    def order(self, message: Message) -> None:
        """Queue a lock or reset."""
        self._orders.put(message)

    def go_home(self) -> None:
        """Reset now, and lock nothing any more; may be called from a signal handler."""
        self._sent_home = True
        self._orders.put({"op": "reset", "id": None, "uuids": None})

    def sample_now(self, request: int) -> None:
        """Sample without waiting for the next period."""
        self._requests.append(request)
        self._wake.set()

    def _sample_forever(self) -> None:
        complaint = ""
        while True:
            self._wake.wait(self._period_s)
            self._wake.clear()
            requests, self._requests = self._requests, []
            ended = self._ended.is_set()
            try:
                samples = self._source.sample()
            except Exception as error:  # the samples must go on, whatever a driver or a broker answers
                text = str(error) if isinstance(error, DeviceError) else f"sampling failed: {error!r}"
                if text != complaint:
                    complaint = text
                    self._uplink.send({"ev": "note", "kind": "warning", "text": text[:500]})
                self._ended.wait(_RETRY_S)
            else:
                complaint = ""
                self._uplink.send(self._telemetry(samples, requests))
            if ended:
                return

    def _telemetry(self, samples: Mapping[str, GpuSample], requests: list[int]) -> Message:
        t_ns = max((sample.t_ns for sample in samples.values()), default=0) or self._clock_ns()
        rows = [pack(samples.get(uuid), t_ns) for uuid in self._uuids]
        message: Message = {"ev": "s", "t": t_ns, "g": rows}
        if requests:
            message["re"] = requests[-1]
        return message

    def _obey_forever(self) -> None:
        keep_alive_s = getattr(self._source, "lease_s", SESSION_SILENCE_S) / 4
        while True:
            try:
                order = self._orders.get(timeout=keep_alive_s)
            except queue.Empty:
                self._keep_alive()
                continue
            if order is None:
                if self._locked:
                    self._try({"op": "reset", "id": None, "uuids": None})
                return
            self._try(order)

    def _try(self, order: Message) -> None:
        """Obey; an order that cannot be obeyed is answered, and the next one is."""
        try:
            self._obey(order)
        except Exception as error:
            failures = [[uuid, _UNKNOWN_CODE, f"{error!r}"[:120]] for uuid in self._uuids]
            self._uplink.send({"ev": "done", "re": order.get("id"), "set": 0, "failures": failures})

    def _keep_alive(self) -> None:
        """Renew the lease while the session lives; a session that hangs loses its lock like one that died."""
        if not self._locked:
            return
        if time.monotonic() - self.session_heard > SESSION_SILENCE_S:
            self._try({"op": "reset", "id": None, "uuids": None})
            if not self._locked:
                self._uplink.send(
                    {"ev": "note", "kind": "control_off", "text": "the session fell silent: reset"}
                )
            return
        try:
            self._source.keep_alive()
        except DeviceError as error:
            self._locked.clear()
            self._uplink.send({"ev": "note", "kind": "broker_lost", "text": str(error)})

    def _own(self, order: Message) -> list[str]:
        """The GPUs of this node that an order concerns; orders go to all nodes, pools live on some of them."""
        if order.get("uuids") is None:
            return self._uuids
        wanted = set(order["uuids"])
        return [uuid for uuid in self._uuids if uuid in wanted]

    def _obey(self, order: Message) -> None:
        begin_ns = time.monotonic_ns()
        failures: list[GpuFailure] = []
        own = self._own(order)
        # All at once where all are meant: the broker sets them in parallel.
        target = None if order.get("uuids") is None or len(own) == len(self._uuids) else own
        if order["op"] == "lock" and self._sent_home:
            self._uplink.send(
                {"ev": "note", "kind": "control_off", "text": "ended by TERM: no lock any more"}
            )
        elif target is not None and not target:
            pass  # none of these GPUs is here
        elif order["op"] == "lock":
            self._locked.update(own)
            failures = list(self._source.lock(int(order["mhz"]), target))
        else:
            failures = list(self._source.reset(target))
            self._locked.difference_update(set(own) - {failure.uuid for failure in failures})
        self._uplink.send(
            {
                "ev": "done",
                "re": order.get("id"),
                "t": self._clock_ns(),
                "took_s": (time.monotonic_ns() - begin_ns) / 1e9,
                "set": len(own) - len(failures),
                "failures": [[f.uuid, f.code, f.text[:120]] for f in failures],
            }
        )

    def finish(self) -> Message:
        """Reset what was locked, take a last sample, and say how it went; bounded by the farewell time."""
        was_locked = bool(self._locked)
        self._orders.put(None)
        self._setter.join(_FAREWELL_S)
        self._ended.set()
        self._wake.set()
        self._sampler.join(1.0)
        hangs = self._setter.is_alive()
        return {"ev": "bye", "locked": was_locked, "hangs": hangs, "left_locked": bool(self._locked) or hangs}
