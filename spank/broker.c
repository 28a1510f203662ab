#include "broker.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <syslog.h>
#include <unistd.h>

#define HELLO_DEADLINE_NS (8 * SECOND_NS) /* agents wait 10 s for an answer */
#define SAMPLE_DEADLINE_NS (1 * SECOND_NS)

static void refuse(struct conn *c, int code, const char *why)
{
    struct text t;

    conn_answer(c, &t);
    answer_refusal(&t, code, why);
    conn_queue(c, &t);
}

static void greet(struct worker *w, struct conn *c)
{
    bool open = gate_state(&w->gate) == GATE_OPEN;
    struct hello h = {.lanes = open ? w->gate.lanes : NULL,
                      .reason = w->measure_only ? "the broker's worker died twice: measuring only" : w->gate.reason,
                      .missing = w->gate.missing,
                      .driver = w->gate.driver,
                      .measure_only = w->measure_only};
    struct text t;

    if (faccessat(w->job_fd, STATE_SHARED, F_OK, 0) == 0) {
        h.measure_only = true;
        h.reason = "a step of this job has a share of a GPU only (shard or mps): its clock is not the job's alone";
    }
    conn_answer(c, &t);
    answer_hello(&t, &h, &w->job->config);
    conn_queue(c, &t);
    c->greeted = true;
    c->hello_waits = false;
    if (!open && strcmp(w->told, h.reason) != 0) {
        snprintf(w->told, sizeof(w->told), "%s", h.reason);
        syslog(LOG_WARNING, "job %u: no clock control on %s: %s", w->job->id, w->job->node, h.reason);
        state_reason(w->job_fd, h.reason);
    }
}

static bool may_write(struct worker *w, struct conn *c, const struct request *r)
{
    const struct config *cfg = &w->job->config;
    uint32_t low = cfg->idle_min_mhz > 0 && cfg->idle_min_mhz < cfg->min_mhz ? cfg->idle_min_mhz : cfg->min_mhz;
    uint32_t high = cfg->max_mhz;

    if (cfg->site_max_mhz > 0 && (high == 0 || cfg->site_max_mhz < high))
        high = cfg->site_max_mhz;
    if (w->writer != NULL && w->writer != c) {
        refuse(c, NVML_IN_USE, "another connection of this job sets the clocks");
    } else if (w->measure_only || faccessat(w->job_fd, STATE_SHARED, F_OK, 0) == 0) {
        refuse(c, NVML_NOT_SUPPORTED, "this broker measures only: say hello to hear why");
    } else if (r->kind == ASK_LOCK && (r->number < low || (high > 0 && r->number > high))) {
        char why[EERL_WHY_LEN];
        snprintf(why, sizeof(why), "%u MHz is outside what the site allows (%u..%u MHz)", r->number, low, high);
        refuse(c, NVML_INVALID_ARGUMENT, why);
    } else {
        return true;
    }
    return false;
}

static void ask(struct worker *w, struct conn *c, const struct request *r)
{
    struct lanes *lanes = w->gate.lanes;
    uint64_t wanted = lanes_all(lanes);
    enum verb verb = r->kind == ASK_LOCK ? VERB_LOCK : r->kind == ASK_RESET ? VERB_RESET : VERB_SAMPLE;

    if (verb != VERB_SAMPLE) {
        if (!may_write(w, c, r))
            return;
        if (!r->every) {
            int lane = lanes_find(lanes, r->uuid);
            if (lane < 0) {
                refuse(c, NVML_NOT_FOUND, "not a GPU of this job");
                return;
            }
            wanted = UINT64_C(1) << lane;
        }
        if (verb == VERB_LOCK)
            w->writer = c;
    }
    c->op = lanes_ask(lanes, verb, wanted, r->number,
                      clock_now_ns() + (verb == VERB_SAMPLE ? SAMPLE_DEADLINE_NS : SET_DEADLINE_NS));
    if (c->op == NULL)
        refuse(c, NVML_UNKNOWN, "no memory left for the broker");
}

static void answer_request(struct worker *w, struct conn *c, const struct request *r)
{
    struct text t;

    switch (r->kind) {
    case ASK_WRONG:
        refuse(c, r->code, r->wrong);
        return;
    case ASK_PING:
        conn_answer(c, &t);
        text_add(&t, "ok\n");
        conn_queue(c, &t);
        return;
    case ASK_HELLO:
        c->hello_waits = true;
        c->deadline_ns = clock_now_ns() + HELLO_DEADLINE_NS;
        gate_open(&w->gate);
        return;
    case ASK_LOCK:
    case ASK_RESET:
    case ASK_SAMPLE:
        break;
    }
    if (!c->greeted || gate_state(&w->gate) != GATE_OPEN)
        refuse(c, NVML_UNINITIALIZED, c->greeted ? "NVML is not open: hello 1 tells why" : "say hello 1 first");
    else
        ask(w, c, r);
}

static void finish_op(struct worker *w, struct conn *c)
{
    struct lanes *lanes = w->gate.lanes;
    struct op *op = c->op;
    struct text t;

    conn_answer(c, &t);
    if (op->verb == VERB_SAMPLE)
        answer_sample(&t, lanes, op);
    else
        answer_result(&t, lanes, op);
    conn_queue(c, &t);
    for (int i = 0; op->verb == VERB_LOCK && !w->first_lock_told && i < lanes->n; i++)
        if (op->changed[i] && op->code[i] == NVML_OK) {
            syslog(LOG_INFO, "job %u uid %u: first clock lock, %u MHz asked", w->job->id, (unsigned)w->job->uid, op->mhz);
            w->first_lock_told = true;
        }
    if (op->verb == VERB_RESET)
        worker_log_result(w, op, "asked by the agent");
    c->op = NULL;
    op_release(lanes, op);
}

void broker_serve(struct worker *w, struct conn *c)
{
    struct request r;

    for (bool more = true; more && c->fd >= 0;) {
        more = false;
        if (c->op != NULL && op_settled(w->gate.lanes, c->op))
            finish_op(w, c);
        if (c->hello_waits) {
            enum gate_state state = gate_state(&w->gate);
            if (state == GATE_OPEN || (state == GATE_SHUT && w->gate.reason[0] != '\0')) {
                greet(w, c);
            } else if (clock_now_ns() >= c->deadline_ns) {
                c->hello_waits = false;
                refuse(c, NVML_TIMEOUT, "NVML has not answered yet; say hello again later");
            } else if (state == GATE_SHUT) {
                gate_open(&w->gate);
            }
        }
        if (!conn_flush(c)) {
            worker_drop(w, c);
            return;
        }
        if (conn_ready(c) && conn_next(c, &r)) {
            answer_request(w, c, &r);
            more = true;
        }
    }
}
