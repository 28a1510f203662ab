"""Stands in for ``vllm serve``: the HTTP interface that TRL's AsyncGRPOTrainer uses, with random tokens for answers.

    serve.py serve MODEL --port PORT [whatever else vLLM takes]

What is out of order (weights for a server that is not paused, say) is an error, as with vLLM. A pause holds what is
in flight. In a job of the rig its GPUs are busy while it may generate. Standard library and the rig only.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rig.pool_job import Gpus

ANSWER_S = 0.5
#: Steps of a weight update → those that may come before it.
ORDER = {
    "/pause": ("/resume",),
    "/init_weight_transfer_engine": ("/resume",),
    "/start_weight_update": ("/pause",),
    "/update_weights": ("/start_weight_update",),
    "/finish_weight_update": ("/update_weights",),
    "/resume": ("/finish_weight_update", "/pause"),
}


class Engine:
    """What the server is doing."""

    def __init__(self) -> None:
        self._gpus = Gpus() if "SLURM_JOB_ID" in os.environ else None
        self._lock = threading.Lock()
        self._last = "/resume"
        self._may_run = threading.Event()
        self._go(True)

    def step(self, name: str) -> bool:
        """A step of a weight update; False when it is out of order."""
        with self._lock:
            if self._last not in ORDER[name]:
                return False
            if name != "/init_weight_transfer_engine":
                self._last = name
            if name in ("/pause", "/resume"):
                self._go(name == "/resume")
            return True

    def _go(self, runs: bool) -> None:
        if self._gpus is not None:
            for index in self._gpus.indices:
                self._gpus.stub.set_load(index, generation=float(runs))
        (self._may_run.set if runs else self._may_run.clear)()

    def generate(self, most: int) -> dict[str, Any]:
        """An answer of a few tokens."""
        time.sleep(ANSWER_S)
        self._may_run.wait()
        ids = [random.randrange(3, 60) for _ in range(random.randint(3, most))]
        return {"choices": [{"token_ids": ids, "logprobs": {"token_logprobs": [-1.0] * len(ids)}}]}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    engine: Engine

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        answers: dict[str, Any] = {
            "/health": {},
            "/v1/models": {"data": [{"max_model_len": 128}]},
            "/server_info": {"vllm_config": {"model_config": {"dtype": "torch.float32"}}},
            "/get_world_size": {"world_size": 1},
        }
        self._answer(200 if path in answers else 404, answers.get(path, {}))

    def do_POST(self) -> None:
        told = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = self.path.partition("?")[0]
        if path == "/v1/completions":
            self._answer(200, self.engine.generate(json.loads(told)["max_tokens"]))
        elif path in ORDER:
            self._answer(200 if self.engine.step(path) else 500, {})
        else:
            self._answer(404, {})

    def _answer(self, status: int, content: dict[str, Any]) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        pass


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=["serve"])
    parser.add_argument("model")
    parser.add_argument("--port", type=int, default=8000)
    wish, _ = parser.parse_known_args()
    Handler.engine = Engine()
    server = ThreadingHTTPServer(("", wish.port), Handler)
    print(server.server_port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
