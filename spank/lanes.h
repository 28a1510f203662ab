/* One thread per GPU: calls for different GPUs run side by side, and one that hangs costs its own GPU only.
 * Work is handed over as operations with a deadline; nobody ever waits for a lane without one. */
#ifndef EERL_LANES_H
#define EERL_LANES_H

#include "config.h"
#include "grant.h"
#include "identity.h"
#include "nvml.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#define LANE_CLOCKS 512 /* supported SM clocks kept per GPU; GB300 has 261 */
#define LANE_QUEUE 64

enum verb { VERB_SETUP, VERB_SAMPLE, VERB_LOCK, VERB_RESET };
enum method { METHOD_LOCKED, METHOD_APPLICATION, METHOD_NONE };

struct reading { /* has_*: what NVML did not tell is unknown, never 0 */
    int64_t t_ns; /* CLOCK_MONOTONIC */
    bool has_energy, has_clock, has_power, has_utilization, has_reasons;
    uint64_t energy_mj, reasons;
    uint32_t sm_mhz, power_mw, utilization_pct;
    uint32_t limit_mw; /* enforced power limit; 0: not known */
};

/* Everything asked of some lanes at once. Fields are guarded by lanes->mutex until op_settled(). */
struct op {
    enum verb verb;
    uint32_t mhz;
    uint64_t wanted, done; /* a bit per lane */
    int64_t deadline_ns;
    int references;
    int code[EERL_MAX_GPUS]; /* nvmlReturn_t */
    bool changed[EERL_MAX_GPUS]; /* a clock call was made, not only agreed with */
    struct reading reading[EERL_MAX_GPUS];
};

struct lane {
    struct lanes *all;
    int number;
    struct gpu gpu;
    pthread_t thread;
    pthread_cond_t wake;
    struct op *queue[LANE_QUEUE];
    unsigned first, queued;
    bool busy, hung; /* hung: a deadline passed during the call it is in */
    bool ready; /* SETUP is done: what follows is read only from then on */
    uint32_t clocks_mhz[LANE_CLOCKS]; /* ascending; all the GPU supports */
    int clocks;
    uint32_t memory_mhz;
    uint32_t limit_mw; /* as last read, at limit_ns */
    int64_t limit_ns;
    /* The lane's own, guarded where others read them. */
    enum method method;
    bool dirty;
    struct mark mark;
    uint32_t locked_mhz;
};

struct lanes {
    pthread_mutex_t mutex;
    pthread_cond_t settled; /* CLOCK_MONOTONIC */
    const struct nvml *nvml;
    const struct config *config;
    int job_fd;
    int event_fd; /* written when an operation is settled; -1: nobody polls */
    bool quit;
    int n;
    struct lane lane[EERL_MAX_GPUS];
};

int64_t clock_now_ns(void);

/* Lanes for these GPUs, threads running; NULL when out of memory or threads. */
struct lanes *lanes_start(const struct nvml *nvml, const struct config *config, int job_fd, int event_fd,
                          const struct gpu *gpu, int n);
/* Join and free. False, and nothing freed, when a lane is still inside a call. */
bool lanes_stop(struct lanes *lanes);

/* Hand `wanted` lanes some work; the caller holds one reference and returns it with op_release(). */
struct op *lanes_ask(struct lanes *lanes, enum verb verb, uint64_t wanted, uint32_t mhz, int64_t deadline_ns);
/* True when every lane has answered. Past its deadline an operation is settled by force: lanes that have not
 * answered get NVML_TIMEOUT, a late lock is not begun any more, a late reset is still done. */
bool op_settled(struct lanes *lanes, struct op *op);
void op_wait(struct lanes *lanes, struct op *op);
void op_release(struct lanes *lanes, struct op *op);

uint64_t lanes_all(const struct lanes *lanes);
uint64_t lanes_dirty(struct lanes *lanes);
uint64_t lanes_ready(struct lanes *lanes);
bool lanes_idle(struct lanes *lanes);
int lanes_find(const struct lanes *lanes, const char *uuid);
enum method lanes_method(struct lanes *lanes); /* the best any lane has */

/* The work itself, on the lane's thread (gpu_work.c). */
void gpu_setup(struct lane *lane);
int gpu_lock(struct lane *lane, uint32_t mhz, bool *changed);
int gpu_reset(struct lane *lane, bool *changed);
int gpu_sample(struct lane *lane, struct reading *r);

#endif
