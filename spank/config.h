/* What the admin wrote after `eerl_spank.so` in plugstack.conf. */
#ifndef EERL_CONFIG_H
#define EERL_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum gpu_order { ORDER_AUTO, ORDER_PCI, ORDER_MINOR };

struct config {
    uint32_t default_on;       /* every GPU job gets the broker, not only those with --eerl */
    const char *users;         /* comma lists; NULL: no restriction */
    const char *groups;
    const char *partitions;
    const char *accounts;
    uint32_t min_mhz, max_mhz; /* clamp; 0: the GPU's own */
    uint32_t idle_min_mhz;     /* lower floor for a pool that waits; 0: min_mhz holds there too */
    uint32_t site_max_mhz;     /* the site's standing limit, applied again at each reset; 0: none */
    uint32_t lease_s;
    uint32_t shared_gpus;      /* the node has shard or mps gres */
    uint32_t drain;            /* on_reset_failure=drain */
    uint32_t gpu_order;        /* enum gpu_order: what Slurm's GPU numbers count */
    uint32_t gpus_per_node;    /* length of the node's gres list; 0: not said */
    const char *nvml;          /* NULL: the system's libnvidia-ml.so.1 */
    const char *clockd;        /* NULL: where `make install` put it */
};

/* Fill `c` from plugstack arguments. False at the first bad one, which `why` names together with what is
 * allowed; the rest is still read, so that clean-up can go on with what is usable. The strings of `c` point
 * into `av`. */
bool config_parse(struct config *c, int ac, char *const av[], char *why, size_t why_size);

#endif
