"""Stands in for vLLM in a trainer that only talks to a server of it: the names that TRL imports, and no engine.

TRL is then as it is where vLLM is installed, and no line of it or of the script is patched. On CPU it also asks for
the name of the GPU that it trains on; there is one to ask here.
"""

from __future__ import annotations

import torch

__version__ = "0.28.0"

torch.cuda.get_device_name = lambda device=None: "no GPU"
