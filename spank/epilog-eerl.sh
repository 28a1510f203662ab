#!/bin/sh
# For Slurm's Epilog (Epilog=…/epilog.d/*): drains the node when GPUs of an ended job could not be given back
# to the site's clocks. Only has something to find with on_reset_failure=drain in plugstack.conf.
# The reason must be written before the epilog fails: Slurm keeps the first one it gets.
set -u

node=${SLURMD_NODENAME:-}
case $node in
    '' | .* | *[!A-Za-z0-9._-]*) exit 0 ;;
esac

gpus=
for mark in "/run/eerl/$node/unreset-"GPU-*; do
    [ -f "$mark" ] && gpus="$gpus ${mark##*/unreset-}"
done
[ -n "$gpus" ] || exit 0

logger -t eerl-epilog -p daemon.err "clocks not reset:$gpus" 2>/dev/null
timeout 5 scontrol update "nodename=$node" state=drain "reason=eerl: clocks not reset:$gpus" >/dev/null 2>&1
exit 1
