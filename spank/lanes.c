#include "lanes.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

int64_t clock_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static uint64_t bit(int lane)
{
    return UINT64_C(1) << lane;
}

static void unref(struct op *op) /* mutex held */
{
    if (--op->references == 0)
        free(op);
}

static void answer(struct lanes *all, struct op *op, int lane, int code) /* mutex held */
{
    op->code[lane] = code;
    op->done |= bit(lane);
    if (op->done != op->wanted)
        return;
    pthread_cond_broadcast(&all->settled);
    if (all->event_fd >= 0) {
        uint64_t one = 1;
        (void)!write(all->event_fd, &one, sizeof(one));
    }
}

static int work(struct lane *lane, struct op *op, struct reading *r, bool *changed)
{
    switch (op->verb) {
    case VERB_SETUP:
        gpu_setup(lane);
        return NVML_OK;
    case VERB_SAMPLE:
        return gpu_sample(lane, r);
    case VERB_LOCK:
        return gpu_lock(lane, op->mhz, changed);
    case VERB_RESET:
        return gpu_reset(lane, changed);
    }
    return NVML_UNKNOWN;
}

static void *lane_main(void *argument)
{
    struct lane *lane = argument;
    struct lanes *all = lane->all;

    pthread_mutex_lock(&all->mutex);
    while (!all->quit || lane->queued > 0) {
        if (lane->queued == 0) {
            pthread_cond_wait(&lane->wake, &all->mutex);
            continue;
        }
        struct op *op = lane->queue[lane->first];
        lane->first = (lane->first + 1) % LANE_QUEUE;
        lane->queued--;
        /* Told to the asker as failed already: doing it now would be a surprise, except giving clocks back. */
        if ((op->done & bit(lane->number)) == 0 || op->verb == VERB_RESET) {
            struct reading r = {0};
            bool changed = false;
            lane->busy = true;
            pthread_mutex_unlock(&all->mutex);
            int code = work(lane, op, &r, &changed);
            pthread_mutex_lock(&all->mutex);
            lane->busy = false;
            lane->hung = false;
            if ((op->done & bit(lane->number)) == 0) {
                op->reading[lane->number] = r;
                op->changed[lane->number] = changed;
                answer(all, op, lane->number, code);
            }
        }
        unref(op);
    }
    pthread_mutex_unlock(&all->mutex);
    return NULL;
}

static bool start_thread(struct lane *lane)
{
    pthread_attr_t attributes;

    if (pthread_attr_init(&attributes) != 0)
        return false;
    /* Enough for NVML's deepest calls; only touched pages count. */
    bool ok = pthread_attr_setstacksize(&attributes, 512 * 1024) == 0 &&
              pthread_create(&lane->thread, &attributes, lane_main, lane) == 0;
    pthread_attr_destroy(&attributes);
    return ok;
}

struct lanes *lanes_start(const struct nvml *nvml, const struct config *config, int job_fd, int event_fd,
                          const struct gpu *gpu, int n)
{
    pthread_condattr_t monotonic;
    struct lanes *all = calloc(1, sizeof(*all));

    if (all == NULL)
        return NULL;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&all->mutex, NULL);
    pthread_cond_init(&all->settled, &monotonic);
    pthread_condattr_destroy(&monotonic);
    all->nvml = nvml;
    all->config = config;
    all->job_fd = job_fd;
    all->event_fd = event_fd;
    for (all->n = 0; all->n < n; all->n++) {
        struct lane *lane = &all->lane[all->n];
        lane->all = all;
        lane->number = all->n;
        lane->gpu = gpu[all->n];
        lane->method = METHOD_NONE;
        lane->dirty = mark_read(job_fd, lane->gpu.uuid, &lane->mark); /* left by a worker that died */
        pthread_cond_init(&lane->wake, NULL);
        if (!start_thread(lane)) {
            lanes_stop(all);
            return NULL;
        }
    }
    return all;
}

bool lanes_stop(struct lanes *all)
{
    if (!lanes_idle(all))
        return false;
    pthread_mutex_lock(&all->mutex);
    all->quit = true;
    for (int i = 0; i < all->n; i++)
        pthread_cond_signal(&all->lane[i].wake);
    pthread_mutex_unlock(&all->mutex);
    for (int i = 0; i < all->n; i++) {
        pthread_join(all->lane[i].thread, NULL);
        pthread_cond_destroy(&all->lane[i].wake);
    }
    pthread_cond_destroy(&all->settled);
    pthread_mutex_destroy(&all->mutex);
    free(all);
    return true;
}

struct op *lanes_ask(struct lanes *all, enum verb verb, uint64_t wanted, uint32_t mhz, int64_t deadline_ns)
{
    struct op *op = calloc(1, sizeof(*op));

    if (op == NULL)
        return NULL;
    op->verb = verb;
    op->mhz = mhz;
    op->wanted = wanted & lanes_all(all);
    op->deadline_ns = deadline_ns;
    op->references = 1;
    pthread_mutex_lock(&all->mutex);
    for (int i = 0; i < all->n; i++) {
        struct lane *lane = &all->lane[i];
        if ((op->wanted & bit(i)) == 0)
            continue;
        bool room = lane->queued < LANE_QUEUE;
        if (room && (!lane->hung || verb == VERB_RESET)) {
            lane->queue[(lane->first + lane->queued) % LANE_QUEUE] = op;
            lane->queued++;
            op->references++;
            pthread_cond_signal(&lane->wake);
        }
        if (lane->hung || !room) /* known: no need to wait for the deadline again */
            answer(all, op, i, NVML_TIMEOUT);
    }
    pthread_mutex_unlock(&all->mutex);
    return op;
}

static bool settled(struct lanes *all, struct op *op) /* mutex held */
{
    if (op->done != op->wanted && clock_now_ns() >= op->deadline_ns)
        for (int i = 0; i < all->n; i++)
            if ((op->wanted & ~op->done & bit(i)) != 0) {
                all->lane[i].hung = true;
                answer(all, op, i, NVML_TIMEOUT);
            }
    return op->done == op->wanted;
}

bool op_settled(struct lanes *all, struct op *op)
{
    pthread_mutex_lock(&all->mutex);
    bool yes = settled(all, op);
    pthread_mutex_unlock(&all->mutex);
    return yes;
}

void op_wait(struct lanes *all, struct op *op)
{
    struct timespec until = {.tv_sec = op->deadline_ns / 1000000000, .tv_nsec = op->deadline_ns % 1000000000};

    pthread_mutex_lock(&all->mutex);
    while (!settled(all, op))
        pthread_cond_timedwait(&all->settled, &all->mutex, &until);
    pthread_mutex_unlock(&all->mutex);
}

void op_release(struct lanes *all, struct op *op)
{
    pthread_mutex_lock(&all->mutex);
    unref(op);
    pthread_mutex_unlock(&all->mutex);
}

uint64_t lanes_all(const struct lanes *all)
{
    return (UINT64_C(1) << all->n) - 1; /* n is at most EERL_MAX_GPUS = 32 */
}

uint64_t lanes_dirty(struct lanes *all)
{
    uint64_t dirty = 0;

    pthread_mutex_lock(&all->mutex);
    for (int i = 0; i < all->n; i++)
        if (all->lane[i].dirty)
            dirty |= bit(i);
    pthread_mutex_unlock(&all->mutex);
    return dirty;
}

uint64_t lanes_ready(struct lanes *all)
{
    uint64_t ready = 0;

    pthread_mutex_lock(&all->mutex);
    for (int i = 0; i < all->n; i++)
        if (all->lane[i].ready)
            ready |= bit(i);
    pthread_mutex_unlock(&all->mutex);
    return ready;
}

bool lanes_idle(struct lanes *all)
{
    bool idle = true;

    pthread_mutex_lock(&all->mutex);
    for (int i = 0; i < all->n; i++)
        idle = idle && !all->lane[i].busy && all->lane[i].queued == 0;
    pthread_mutex_unlock(&all->mutex);
    return idle;
}

int lanes_find(const struct lanes *all, const char *uuid)
{
    for (int i = 0; i < all->n; i++)
        if (strcmp(all->lane[i].gpu.uuid, uuid) == 0)
            return i;
    return -1;
}

enum method lanes_method(struct lanes *all)
{
    enum method best = METHOD_NONE;

    pthread_mutex_lock(&all->mutex);
    for (int i = 0; i < all->n; i++)
        if (all->lane[i].method < best)
            best = all->lane[i].method;
    pthread_mutex_unlock(&all->mutex);
    return best;
}
