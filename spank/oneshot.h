/* The one-shot forms of eerl-clockd, and ending a broker from outside. */
#ifndef EERL_ONESHOT_H
#define EERL_ONESHOT_H

#include "config.h"

#include <stdbool.h>
#include <stdint.h>

/* End a job's broker and wait until no process of it lives. False when one cannot be ended (a call hangs in
 * the driver). True at once when there is none. */
bool stop_broker(int job_fd, uint32_t job);

/* `eerl-clockd --reset JOB…`: end the broker, reset, forget. `node` NULL: every node folder here. Exit code. */
int reset_jobs(const char *node, const uint32_t *job, int jobs, const struct config *fallback);

/* `eerl-clockd --reset-stale`: reset what dead brokers left, forget jobs that are long gone. Exit code. */
int reset_stale(const char *node, const struct config *fallback);

#endif
