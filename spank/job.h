/* The job a broker serves. */
#ifndef EERL_JOB_H
#define EERL_JOB_H

#include "config.h"
#include "text.h"

#include <sys/types.h>

struct job {
    uint32_t id;
    uid_t uid;
    gid_t gid;
    const char *node, *user, *partition, *account, *restart; /* NULL: not told */
    uint32_t position[EERL_MAX_GPUS]; /* Slurm's GPU numbers, from SLURM_JOB_GPUS */
    int positions;
    const char *position_text;
    struct config config;
};

#endif
