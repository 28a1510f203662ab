"""A run of the stand-in: the user's script. Its configuration is JSON, the only argument."""

from __future__ import annotations

import json
import subprocess
import sys


def main() -> None:
    config = json.loads(sys.argv[1])
    if config.get("single_controller"):
        from nemo_rl.algorithms.single_controller_utils.setup import setup_single_controller

        made, _ = setup_single_controller(config)
        first = made.save_state.current_step + 1
        subprocess.run(
            [sys.executable, "-m", "standin_controller", str(first), str(config["grpo"]["max_num_steps"])],
            check=True,
        )
        return
    from nemo_rl.algorithms import grpo

    policy, generation, _, _, _, _, logger, _, state, config = grpo.setup(config)
    loop = grpo.async_grpo_train if config["grpo"]["async_grpo"]["enabled"] else grpo.grpo_train
    loop(policy, generation, logger, state, config)


if __name__ == "__main__":
    main()
