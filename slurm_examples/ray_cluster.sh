# A Ray cluster over the nodes of a job, to be sourced by a batch script that stands under eerl-run.
#
# Nothing here is about eerl, and that is the point: srun hands its environment on, so Ray's workers on every node start
# under the hooks by themselves. A cluster that somebody starts without eerl-run in front works too (eerl takes its
# environment along in ray.init and in `ray job submit`).
#
# CONTAINER is an image for pyxis, and MOUNTS its mounts; without CONTAINER the nodes' own python and ray are used.
# shellcheck shell=bash

#: How a step is started on one node: on the node itself, or in the container.
on_node() {
    local node=$1
    shift
    local options=(--overlap --nodes=1 --ntasks=1 --nodelist="$node")
    if [ -n "${CONTAINER:-}" ]; then
        # An image's own PYTHONPATH wins over the job's, and with it eerl's hooks are lost: the job's is forced, and
        # IMAGE_PYTHONPATH, what the image has there, is appended. EERL_* come through by themselves, and the socket is
        # in /dev/shm, which enroot shows in the container. `eerl doctor --adapter` checks it from inside.
        options+=(--container-image="$CONTAINER" --container-env=PYTHONPATH)
        options+=(${MOUNTS:+--container-mounts="$MOUNTS"})
        PYTHONPATH="${PYTHONPATH:-}${IMAGE_PYTHONPATH:+:$IMAGE_PYTHONPATH}" srun "${options[@]}" "$@"
        return
    fi
    srun "${options[@]}" "$@"
}

#: Start it: $1 GPUs on each node. Sets RAY_ADDRESS and ray_head, the node of the head.
start_ray() {
    local gpus=$1 node port=${RAY_PORT:-6379}
    local nodes=()
    mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
    ray_head=${nodes[0]}
    export RAY_ADDRESS=$ray_head:$port
    for node in "${nodes[@]}"; do
        if [ "$node" = "$ray_head" ]; then
            on_node "$node" ray start --block --disable-usage-stats --num-gpus="$gpus" --head --port="$port" &
        else
            on_node "$node" ray start --block --disable-usage-stats --num-gpus="$gpus" --address="$RAY_ADDRESS" &
        fi
    done
    # Wait until all of them have joined; ten minutes is what a large image may take to unpack.
    on_node "$ray_head" python3 - "${#nodes[@]}" <<'PYTHON'
import sys
import time

import ray

deadline = time.monotonic() + 600
while time.monotonic() < deadline:
    try:
        ray.init(address="auto", logging_level="ERROR", ignore_reinit_error=True)
        if sum(node["Alive"] for node in ray.nodes()) >= int(sys.argv[1]):
            sys.exit(0)
    except ConnectionError:
        pass
    time.sleep(2)
sys.exit("the Ray cluster did not come up")
PYTHON
}
