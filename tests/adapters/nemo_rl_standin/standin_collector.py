"""The asynchronous collector: does as it is told on standard input, one prompt group in a thread."""

from __future__ import annotations

import sys
import threading

from nemo_rl import plan
from nemo_rl.experience.rollouts import prompts, run_async_multi_turn_rollout
from nemo_rl.utils.timer import Timer


def main() -> None:
    timer, total, threads = Timer(), 0, []
    for line in sys.stdin:
        word, *rest = line.split()
        if word == "generate":
            update, groups = map(int, rest)
            with timer.time("generation"):  # a worker's own timers mean nothing
                for group in range(groups):
                    lengths = plan.lengths(update, group, groups=1)
                    total += sum(lengths)
                    thread = threading.Thread(
                        target=run_async_multi_turn_rollout, args=(None, prompts(len(lengths)), lengths)
                    )
                    thread.start()
                    threads.append(thread)
            print("ok", flush=True)
        elif word in ("drain", "stop"):
            for thread in threads:
                thread.join()
            print(total, flush=True)
            if word == "stop":
                return


main()
