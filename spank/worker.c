#include "worker.h"

#include "broker.h"
#include "proc.h"

#include <malloc.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syslog.h>
#include <unistd.h>

#define TERM_DEADLINE_NS (4 * SECOND_NS) /* leaves the epilog time for its own try inside 15 s */
#define ABANDONED_NS (60 * SECOND_NS)
#define RETRY_NS (5 * SECOND_NS)

static struct worker worker; /* one per process; large, and zero until touched */

void worker_log_result(struct worker *w, const struct op *op, const char *why)
{
    const struct lanes *lanes = w->gate.lanes;

    for (int i = 0; i < lanes->n; i++)
        if ((op->wanted & (UINT64_C(1) << i)) != 0 && (op->changed[i] || op->code[i] != NVML_OK))
            syslog(op->code[i] == NVML_OK ? LOG_INFO : LOG_ERR, "job %u: %s: reset of %s: %s (code %d)", w->job->id, why,
                   lanes->lane[i].gpu.uuid, op->code[i] == NVML_OK ? "done" : nvml_text(&w->gate.nvml, op->code[i]),
                   op->code[i]);
}

/* Give every GPU back that is dirty; at most one such reset is under way. */
static void house_reset(struct worker *w, const char *why, int64_t deadline_ns)
{
    if (gate_state(&w->gate) != GATE_OPEN)
        return;
    if (w->house != NULL) {
        w->house_again = true;
        return;
    }
    /* All lanes, not the dirty ones only: a lock may still be on its way, and clean lanes make no call. */
    w->house_again = false;
    w->house = lanes_ask(w->gate.lanes, VERB_RESET, lanes_all(w->gate.lanes), 0, clock_now_ns() + deadline_ns);
    w->house_why = why;
    w->house_next_ns = clock_now_ns() + RETRY_NS;
}

static void writer_gone(struct worker *w, const char *why)
{
    w->writer = NULL;
    house_reset(w, why, SET_DEADLINE_NS);
}

void worker_drop(struct worker *w, struct conn *c)
{
    if (c->op != NULL)
        op_release(w->gate.lanes, c->op);
    c->op = NULL;
    close(c->fd);
    c->fd = -1;
    if (w->writer == c)
        writer_gone(w, "the agent's connection closed");
}

static int clients(const struct worker *w)
{
    int n = 0;

    for (int i = 0; i < CONN_MAX; i++)
        n += w->conn[i].fd >= 0;
    return n;
}

static void accept_client(struct worker *w)
{
    struct ucred peer = {.uid = (uid_t)-1};
    socklen_t size = sizeof(peer);
    struct conn *c = NULL;
    static const char denied[] = "err 4 - this broker serves the job's owner only\n";
    static const char busy[] = "err 23 - too many connections to this broker\n";

    int fd = accept4(w->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0)
        return;
    bool owner = getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == w->job->uid;
    for (int i = 0; owner && c == NULL && i < CONN_MAX; i++)
        if (w->conn[i].fd < 0)
            c = &w->conn[i];
    if (c != NULL) {
        conn_start(c, fd);
        return;
    }
    (void)!send(fd, owner ? busy : denied, owner ? sizeof(busy) - 1 : sizeof(denied) - 1, MSG_NOSIGNAL);
    close(fd);
}

static int64_t lease_end(const struct worker *w)
{
    return w->writer->last_line_ns + (int64_t)w->job->config.lease_s * SECOND_NS;
}

/* GPUs that are still set although nobody holds the writer role: a reset has failed. */
static bool nobodys_clocks(struct worker *w)
{
    return w->writer == NULL && gate_state(&w->gate) == GATE_OPEN && lanes_dirty(w->gate.lanes) != 0;
}

static void housekeeping(struct worker *w)
{
    int64_t now = clock_now_ns();

    if (w->writer != NULL && w->writer->op == NULL && now >= lease_end(w)) {
        syslog(LOG_WARNING, "job %u: the agent was silent for %u s", w->job->id, w->job->config.lease_s);
        writer_gone(w, "lease over");
    }
    if (w->house != NULL && op_settled(w->gate.lanes, w->house)) {
        worker_log_result(w, w->house, w->house_why);
        op_release(w->gate.lanes, w->house);
        w->house = NULL;
        if (w->house_again)
            house_reset(w, w->house_why, SET_DEADLINE_NS);
    }
    if (w->house == NULL && nobodys_clocks(w) && now >= w->house_next_ns)
        house_reset(w, "tried again", SET_DEADLINE_NS);
    if (clients(w) > 0 || gate_state(&w->gate) != GATE_OPEN) {
        w->alone_since_ns = 0;
        return;
    }
    /* Nobody is there: NVML is shut as soon as all is given back, so that a driver reload or GPU reset by the
     * site is not held up; and with clocks not given back once the job itself is gone, as its epilog, which
     * has the marks, may be lost or late. */
    if (w->alone_since_ns == 0)
        w->alone_since_ns = now;
    if (w->house != NULL || !lanes_idle(w->gate.lanes))
        return;
    if (lanes_dirty(w->gate.lanes) == 0 ||
        (now - w->alone_since_ns >= ABANDONED_NS && !proc_job_has_stepd(w->job->id)))
        gate_close(&w->gate);
}

static void sooner(int64_t *when, int64_t candidate)
{
    if (candidate < *when)
        *when = candidate;
}

/* Milliseconds until something has to be done without anyone asking; -1: never. */
static int next_timeout(struct worker *w)
{
    int64_t when = INT64_MAX, now = clock_now_ns();

    for (int i = 0; i < CONN_MAX; i++) {
        const struct conn *c = &w->conn[i];
        if (c->fd >= 0 && c->op != NULL)
            sooner(&when, c->op->deadline_ns);
        if (c->fd >= 0 && c->hello_waits)
            sooner(&when, c->deadline_ns);
    }
    if (w->writer != NULL && w->writer->op == NULL)
        sooner(&when, lease_end(w));
    if (w->house != NULL)
        sooner(&when, w->house->deadline_ns);
    else if (nobodys_clocks(w))
        sooner(&when, w->house_next_ns);
    else if (clients(w) == 0 && gate_state(&w->gate) == GATE_OPEN)
        sooner(&when, now + SECOND_NS); /* a lane was busy when NVML was to be shut */
    if (when == INT64_MAX)
        return -1;
    return when <= now ? 0 : (int)((when - now) / 1000000 + 1);
}

static void wait_for_events(struct worker *w)
{
    struct pollfd p[CONN_MAX + 3];
    struct conn *of[CONN_MAX + 3] = {0};
    nfds_t n = 0;
    uint64_t drained;

    p[n++] = (struct pollfd){.fd = w->signal_fd, .events = POLLIN};
    p[n++] = (struct pollfd){.fd = w->event_fd, .events = POLLIN};
    p[n++] = (struct pollfd){.fd = w->listen_fd, .events = POLLIN};
    for (int i = 0; i < CONN_MAX; i++) {
        struct conn *c = &w->conn[i];
        if (c->fd < 0)
            continue;
        short events = c->out_len > 0 ? POLLOUT : 0;
        if (c->in_len < sizeof(c->in)) /* a client that sends faster than it is served waits in its socket */
            events |= POLLIN;
        of[n] = c;
        p[n++] = (struct pollfd){.fd = c->fd, .events = events};
    }
    if (poll(p, n, next_timeout(w)) <= 0)
        return;
    if ((p[0].revents & POLLIN) != 0)
        w->ended = true;
    if ((p[1].revents & POLLIN) != 0)
        (void)!read(w->event_fd, &drained, sizeof(drained));
    for (nfds_t i = 3; i < n; i++)
        if ((p[i].revents & (POLLHUP | POLLERR)) != 0 && of[i]->in_len == sizeof(of[i]->in))
            worker_drop(w, of[i]); /* gone, and what it left unread is of no use to it */
        else if ((p[i].revents & (POLLIN | POLLHUP | POLLERR)) != 0 && !conn_fill(of[i]))
            worker_drop(w, of[i]);
    if ((p[2].revents & POLLIN) != 0)
        accept_client(w);
}

/* Every GPU given back or its deadline over; the exit code for it. */
static int end(struct worker *w)
{
    int64_t until = clock_now_ns() + TERM_DEADLINE_NS;

    while (gate_state(&w->gate) == GATE_CLOSING && clock_now_ns() < until)
        poll(NULL, 0, 10);
    if (gate_state(&w->gate) != GATE_OPEN)
        return 0; /* nothing was set, or all is given back: NVML is not even open */
    if (w->house != NULL) {
        op_wait(w->gate.lanes, w->house);
        op_release(w->gate.lanes, w->house);
        w->house = NULL;
    }
    house_reset(w, "end of the broker", until - clock_now_ns());
    if (w->house == NULL)
        return 1;
    op_wait(w->gate.lanes, w->house);
    worker_log_result(w, w->house, w->house_why);
    return lanes_dirty(w->gate.lanes) == 0 ? 0 : 1;
}

_Noreturn void worker_run(const struct job *job, int listen_fd, int job_fd, bool measure_only)
{
    struct worker *w = &worker;
    pid_t supervisor = getppid();
    sigset_t term;

    prctl(PR_SET_NAME, "eerl-worker"); /* what ps shows; PROC_NAMES */
    mallopt(M_ARENA_MAX, 1); /* an arena per lane would cost memory for nothing */
    w->job = job;
    w->listen_fd = listen_fd;
    w->job_fd = job_fd;
    w->measure_only = measure_only;
    for (int i = 0; i < CONN_MAX; i++)
        w->conn[i].fd = -1;
    sigemptyset(&term);
    sigaddset(&term, SIGTERM);
    sigprocmask(SIG_BLOCK, &term, NULL);
    w->signal_fd = signalfd(-1, &term, SFD_CLOEXEC | SFD_NONBLOCK);
    w->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    /* A supervisor that is killed takes nobody's clocks with it: we hear of it, give back and end. */
    if (w->signal_fd < 0 || w->event_fd < 0 || prctl(PR_SET_PDEATHSIG, SIGTERM) != 0 || getppid() != supervisor)
        _exit(1);
    gate_init(&w->gate, job, job_fd, w->event_fd);
    while (!w->ended) {
        housekeeping(w);
        wait_for_events(w);
        for (int i = 0; i < CONN_MAX; i++)
            if (w->conn[i].fd >= 0)
                broker_serve(w, &w->conn[i]);
    }
    _exit(end(w)); /* not exit(): a lane may hang inside the driver */
}
