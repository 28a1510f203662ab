/* The worker's state, and what it answers to its clients (broker.c); its loop is worker.c. */
#ifndef EERL_BROKER_H
#define EERL_BROKER_H

#include "conn.h"
#include "gate.h"
#include "protocol.h"

#define SECOND_NS INT64_C(1000000000)
#define SET_DEADLINE_NS (3 * SECOND_NS)

struct worker {
    const struct job *job;
    int listen_fd, job_fd, event_fd, signal_fd;
    bool measure_only, ended, first_lock_told;
    struct gate gate;
    struct conn conn[CONN_MAX];
    struct conn *writer;
    struct op *house; /* a reset of our own: writer gone, lease over, end of job */
    const char *house_why;
    bool house_again; /* asked for once more while one was under way: a lock may have slipped in between */
    int64_t house_next_ns; /* not before: a failed reset is tried again, not hammered */
    int64_t alone_since_ns; /* no client since then; 0: there is one */
    char told[EERL_WHY_LEN]; /* the reason last put into the log */
};

/* All that one client can get done now: finished work answered, next lines read. */
void broker_serve(struct worker *w, struct conn *c);

/* For syslog: every GPU of this reset that was changed, or could not be. */
void worker_log_result(struct worker *w, const struct op *op, const char *why);
/* The client has gone; with the writer go its clocks. */
void worker_drop(struct worker *w, struct conn *c);

#endif
