/* NVML opened and shut on a thread of its own: nvmlInit may take seconds, or never return, and the broker's
 * loop must answer meanwhile. */
#ifndef EERL_GATE_H
#define EERL_GATE_H

#include "job.h"
#include "lanes.h"

enum gate_state { GATE_SHUT, GATE_OPENING, GATE_OPEN, GATE_CLOSING };

struct gate {
    pthread_mutex_t mutex;
    enum gate_state state;
    const struct job *job;
    int job_fd, event_fd;
    struct nvml nvml;
    /* Valid while SHUT after a failed opening (reason) or while OPEN (the rest). */
    struct lanes *lanes;
    char reason[EERL_WHY_LEN];
    char missing[128];
    char driver[80];
};

void gate_init(struct gate *g, const struct job *job, int job_fd, int event_fd);
enum gate_state gate_state(struct gate *g);
void gate_open(struct gate *g);  /* SHUT → OPENING → OPEN, or SHUT with a reason; event_fd tells */
void gate_close(struct gate *g); /* OPEN → CLOSING → SHUT; stays OPEN while a GPU is inside a call */

#endif
