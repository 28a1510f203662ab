#include "identity.h"

#include <stdio.h>
#include <string.h>

struct seen { /* one device of the node, the job's or not */
    nvml_device device;
    int code; /* nvmlReturn_t of asking for it */
    bool has_minor;
    uint32_t minor;
    struct nvml_pci pci;
};

static bool pci_before(const struct nvml_pci *a, const struct nvml_pci *b)
{
    if (a->domain != b->domain)
        return a->domain < b->domain;
    if (a->bus != b->bus)
        return a->bus < b->bus;
    return a->device < b->device;
}

/* Look at every device of the node; false when the node as a whole rules a mapping out. */
static bool survey(const struct nvml *n, uint32_t count, struct seen *seen, char *why, size_t why_size)
{
    const struct seen *before = NULL;

    for (uint32_t i = 0; i < count; i++) {
        uint32_t mig = 0, pending = 0;
        seen[i].code = n->by_index(i, &seen[i].device);
        if (seen[i].code != NVML_OK)
            continue;
        if (n->mig_mode != NULL && n->mig_mode(seen[i].device, &mig, &pending) == NVML_OK && mig == 1) {
            snprintf(why, why_size,
                     "GPU %u of this node is in MIG mode, so Slurm's GPU numbers count slices and the clock of "
                     "one slice is the clock of all: no clock is touched here", i);
            return false;
        }
        seen[i].has_minor = n->minor != NULL && n->minor(seen[i].device, &seen[i].minor) == NVML_OK;
        if (n->pci == NULL || n->pci(seen[i].device, &seen[i].pci) != NVML_OK)
            continue;
        if (before != NULL && !pci_before(&before->pci, &seen[i].pci)) {
            snprintf(why, why_size, "NVML does not count the GPUs in PCI order (GPU %u): say gpu_order=minor "
                     "if gres.conf lists device files in order", i);
            return false;
        }
        before = &seen[i];
    }
    return true;
}

/* The device whose file is /dev/nvidia<position>; -1 when there is none, or two claim to be. */
static int with_minor(const struct seen *seen, uint32_t count, uint32_t position)
{
    int found = -1;

    for (uint32_t i = 0; i < count; i++)
        if (seen[i].code == NVML_OK && seen[i].has_minor && seen[i].minor == position) {
            if (found >= 0)
                return -1;
            found = (int)i;
        }
    return found;
}

/* NVML index of a position; -1 with `why` when not proven. */
static int resolve(const struct seen *seen, uint32_t count, uint32_t position, enum gpu_order order, char *why,
                   size_t why_size)
{
    int minor = with_minor(seen, count, position);

    if (order == ORDER_MINOR && minor < 0)
        snprintf(why, why_size, "no GPU, or more than one, has minor number %u, which Slurm gave to the job", position);
    if (order == ORDER_MINOR)
        return minor;
    if (order == ORDER_PCI || minor == (int)position || seen[position].code != NVML_OK)
        return (int)position;
    snprintf(why, why_size,
             "Slurm's GPU %u is NVML's GPU %u by PCI order and %d by device file: say gpu_order=pci (AutoDetect=nvml) "
             "or gpu_order=minor (File=/dev/nvidia[0-…]) in plugstack.conf", position, position, minor);
    return -1;
}

static int describe(const struct nvml *n, struct gpu *g, char *why, size_t why_size)
{
    int code = n->uuid(g->device, g->uuid, sizeof(g->uuid));

    if (code != NVML_OK)
        return code;
    g->uuid[sizeof(g->uuid) - 1] = '\0';
    if (!uuid_ok(g->uuid)) {
        snprintf(why, why_size, "GPU %u has a UUID of unknown form", g->nvml_index);
        return NVML_UNKNOWN;
    }
    if (n->name == NULL || n->name(g->device, g->name, sizeof(g->name)) != NVML_OK)
        g->name[0] = '\0';
    g->name[sizeof(g->name) - 1] = '\0';
    return NVML_OK;
}

int identity_map(const struct nvml *n, const uint32_t *position, int positions, enum gpu_order order,
                 uint32_t gpus_per_node, struct gpu *gpu, char *missing, size_t missing_size, char *why,
                 size_t why_size)
{
    struct seen seen[EERL_MAX_GPUS] = {0};
    struct text lost;
    uint32_t count = 0;
    int found = 0;

    text_start(&lost, missing, missing_size);
    why[0] = '\0';
    if (n->count == NULL || n->by_index == NULL || n->uuid == NULL) {
        snprintf(why, why_size, "this NVML cannot list devices or UUIDs");
        return -1;
    }
    int code = n->count(&count);
    if (code != NVML_OK || count == 0 || count > EERL_MAX_GPUS) {
        snprintf(why, why_size, "NVML sees %u GPUs on this node (code %d, %.60s)", count, code, nvml_text(n, code));
        return -1;
    }
    if (gpus_per_node > 0 && count != gpus_per_node) {
        snprintf(why, why_size, "NVML sees %u GPUs on this node, plugstack.conf says gpus_per_node=%u: Slurm's GPU "
                 "numbers cannot be trusted until they agree", count, gpus_per_node);
        return -1;
    }
    if (!survey(n, count, seen, why, why_size))
        return -1;
    for (int i = 0; i < positions; i++) {
        if (position[i] >= count) {
            snprintf(why, why_size, "Slurm gave GPU %u to the job, NVML sees only %u on this node", position[i], count);
            return -1;
        }
        int at = resolve(seen, count, position[i], order, why, why_size);
        if (at < 0)
            return -1;
        struct gpu *g = &gpu[found];
        g->device = seen[at].device;
        g->nvml_index = (uint32_t)at;
        code = seen[at].code != NVML_OK ? seen[at].code : describe(n, g, why, why_size);
        if (why[0] != '\0')
            return -1;
        if (code == NVML_OK)
            found++;
        else
            text_add(&lost, "%s%u:%d", lost.len > 0 ? "," : "", position[i], code);
    }
    return found;
}
