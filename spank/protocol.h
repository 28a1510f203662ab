/* The broker's lines (protocol version 1): reading requests, writing answers. No I/O here. */
#ifndef EERL_PROTOCOL_H
#define EERL_PROTOCOL_H

#include "lanes.h"
#include "text.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PROTOCOL_VERSION 1
#define REQUEST_MAX 256 /* bytes of a request line, its newline not counted */

enum request_kind { ASK_HELLO, ASK_LOCK, ASK_RESET, ASK_SAMPLE, ASK_PING, ASK_WRONG };

struct request {
    enum request_kind kind;
    uint32_t number; /* hello: version; lock: MHz */
    bool every;      /* `*` */
    char uuid[EERL_UUID_LEN];
    int code;          /* ASK_WRONG: nvmlReturn_t-like code … */
    const char *wrong; /* … and what is wrong, as it goes into the answer */
};

/* `line` need not end with NUL and may hold any bytes. */
void request_parse(const char *line, size_t len, struct request *r);

/* "err <code> - <text>": a refusal that is about no GPU in particular. */
void answer_refusal(struct text *t, int code, const char *why);

struct hello {
    struct lanes *lanes; /* NULL: NVML is not usable, or the job's GPUs are not proven */
    const char *reason;  /* why backend is none */
    const char *missing; /* Slurm GPU numbers that do not answer, with codes */
    const char *driver;
    bool measure_only;
};
void answer_hello(struct text *t, const struct hello *h, const struct config *c);
void answer_sample(struct text *t, const struct lanes *lanes, const struct op *op);
void answer_result(struct text *t, const struct lanes *lanes, const struct op *op);

/* The SM clocks all GPUs support, inside the admin's clamp, ascending. */
int common_clocks(struct lanes *lanes, const struct config *c, uint32_t *mhz, int max);

#endif
