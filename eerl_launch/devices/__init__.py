"""Ways to read and set GPUs: the broker, NVML read directly, the simulator; one protocol for all."""
