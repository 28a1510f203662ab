/* From Slurm's GPU numbers to NVML devices, or a reason why they cannot be told. */
#ifndef EERL_IDENTITY_H
#define EERL_IDENTITY_H

#include "config.h"
#include "nvml.h"
#include "text.h"

struct gpu {
    nvml_device device;
    uint32_t nvml_index;
    char uuid[EERL_UUID_LEN];
    char name[EERL_NAME_LEN];
};

/* Fill `gpu` with the devices behind SLURM_JOB_GPUS' numbers, which are positions in the node's gres list.
 * Number of GPUs, or -1 with `why` when one of them is not proven.
 *
 * The list's order is the site's: AutoDetect=nvml makes it PCI order (position = NVML index), a hand-written
 * File=/dev/nvidia[0-3] makes it minor order. `order` says which; ORDER_AUTO accepts a position only where
 * both give the same device. A node with any GPU in MIG mode is refused whole, as slices are then positions.
 * A GPU that is lost is left out and named in `missing` ("3:15": Slurm's number, nvmlReturn_t). */
int identity_map(const struct nvml *n, const uint32_t *position, int positions, enum gpu_order order,
                 uint32_t gpus_per_node, struct gpu *gpu, char *missing, size_t missing_size, char *why,
                 size_t why_size);

#endif
