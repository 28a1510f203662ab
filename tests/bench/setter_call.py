"""Times one NVML setter call as root through pynvml; prints the durations in seconds as JSON.

python setter_call.py CALLS
"""

from __future__ import annotations

import json
import sys
import time

import pynvml

pynvml.nvmlInit()
device = pynvml.nvmlDeviceGetHandleByIndex(0)
taken = []
for number in range(int(sys.argv[1])):
    begin = time.monotonic()
    pynvml.nvmlDeviceSetGpuLockedClocks(device, 345, 1500 if number % 2 else 1200)
    taken.append(time.monotonic() - begin)
pynvml.nvmlDeviceResetGpuLockedClocks(device)
pynvml.nvmlShutdown()
print(json.dumps(taken))
