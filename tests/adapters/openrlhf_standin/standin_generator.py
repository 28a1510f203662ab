"""The actor that generates, as it is asked on standard input."""

from __future__ import annotations

import json
import sys

from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator
from standin_job import arguments


def main() -> None:
    generator = SamplesGenerator(arguments(sys.argv[1]))
    for line in sys.stdin:
        generator.generate_samples(update=int(line))
        generated, generator.generated = generator.generated, []
        print(json.dumps({"update": int(line), "generated": generated}), flush=True)
    generator.generate_eval_samples()


main()
