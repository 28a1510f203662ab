/* One client of the broker: lines in, lines out, nothing in between. */
#ifndef EERL_CONN_H
#define EERL_CONN_H

#include "lanes.h"
#include "protocol.h"

#define CONN_MAX 16
#define CONN_OUT 16384 /* the longest answer, a hello for 32 GPUs, has some 10 KB */

struct conn {
    int fd; /* -1: free */
    char in[REQUEST_MAX + 2];
    size_t in_len;
    char out[CONN_OUT];
    size_t out_len, out_sent;
    struct op *op;       /* what the client waits for … */
    bool hello_waits;    /* … or that NVML is open */
    int64_t deadline_ns; /* of hello_waits */
    bool greeted;
    bool closing;          /* close once the answer is out */
    int64_t last_line_ns; /* for the lease */
};

void conn_start(struct conn *c, int fd);
bool conn_ready(const struct conn *c); /* has no answer to wait for or to send */
/* Read what is there; false when the client has gone. */
bool conn_fill(struct conn *c);
/* Take the next whole line into `r`; false when there is none. Over-long lines become ASK_WRONG, and closing. */
bool conn_next(struct conn *c, struct request *r);
/* Begin an answer / send as much as the client takes; conn_flush is false when the client has gone. */
void conn_answer(struct conn *c, struct text *t);
void conn_queue(struct conn *c, const struct text *t);
bool conn_flush(struct conn *c);

#endif
