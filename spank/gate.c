#include "gate.h"

#include <stdio.h>
#include <string.h>
#include <syslog.h>
#include <unistd.h>

#define SETUP_DEADLINE_NS (3 * INT64_C(1000000000))

void gate_init(struct gate *g, const struct job *job, int job_fd, int event_fd)
{
    memset(g, 0, sizeof(*g));
    pthread_mutex_init(&g->mutex, NULL);
    g->state = GATE_SHUT;
    g->job = job;
    g->job_fd = job_fd;
    g->event_fd = event_fd;
}

enum gate_state gate_state(struct gate *g)
{
    pthread_mutex_lock(&g->mutex);
    enum gate_state state = g->state;
    pthread_mutex_unlock(&g->mutex);
    return state;
}

static void become(struct gate *g, enum gate_state state)
{
    uint64_t one = 1;

    pthread_mutex_lock(&g->mutex);
    g->state = state;
    pthread_mutex_unlock(&g->mutex);
    (void)!write(g->event_fd, &one, sizeof(one));
}

static struct lanes *opened_lanes(struct gate *g)
{
    const struct job *job = g->job;
    struct gpu gpu[EERL_MAX_GPUS];

    int n = identity_map(&g->nvml, job->position, job->positions, job->config.gpu_order, job->config.gpus_per_node,
                         gpu, g->missing, sizeof(g->missing), g->reason, sizeof(g->reason));
    if (n < 0)
        return NULL;
    if (g->missing[0] != '\0')
        syslog(LOG_WARNING, "job %u: GPUs that do not answer (Slurm's number:code): %s", job->id, g->missing);
    if (n == 0)
        snprintf(g->reason, sizeof(g->reason), "none of the job's GPUs answers (Slurm's number:code %s)", g->missing);
    struct lanes *lanes = lanes_start(&g->nvml, &job->config, g->job_fd, g->event_fd, gpu, n);
    if (lanes == NULL) {
        snprintf(g->reason, sizeof(g->reason), "no memory or threads left for the broker");
        return NULL;
    }
    struct op *setup = lanes_ask(lanes, VERB_SETUP, lanes_all(lanes), 0, clock_now_ns() + SETUP_DEADLINE_NS);
    if (setup != NULL) {
        op_wait(lanes, setup);
        op_release(lanes, setup);
    }
    return lanes;
}

static void *opening(void *argument)
{
    struct gate *g = argument;

    g->reason[0] = g->missing[0] = g->driver[0] = '\0';
    if (nvml_open(&g->nvml, g->job->config.nvml, g->reason, sizeof(g->reason)) != NVML_OK) {
        become(g, GATE_SHUT);
        return NULL;
    }
    if (g->nvml.driver_version == NULL || g->nvml.driver_version(g->driver, sizeof(g->driver)) != NVML_OK)
        g->driver[0] = '\0';
    g->driver[sizeof(g->driver) - 1] = '\0';
    g->lanes = opened_lanes(g);
    if (g->lanes == NULL)
        nvml_close(&g->nvml);
    become(g, g->lanes != NULL ? GATE_OPEN : GATE_SHUT);
    return NULL;
}

static void *closing(void *argument)
{
    struct gate *g = argument;

    if (!lanes_stop(g->lanes)) {
        become(g, GATE_OPEN);
        return NULL;
    }
    g->lanes = NULL;
    nvml_close(&g->nvml);
    become(g, GATE_SHUT);
    return NULL;
}

static void begin(struct gate *g, enum gate_state from, enum gate_state during, void *(*body)(void *))
{
    pthread_t thread;

    if (gate_state(g) != from)
        return;
    become(g, during);
    if (pthread_create(&thread, NULL, body, g) != 0) {
        snprintf(g->reason, sizeof(g->reason), "no thread left for the broker");
        become(g, from);
        return;
    }
    pthread_detach(thread);
}

void gate_open(struct gate *g)
{
    begin(g, GATE_SHUT, GATE_OPENING, opening);
}

void gate_close(struct gate *g)
{
    begin(g, GATE_OPEN, GATE_CLOSING, closing);
}
