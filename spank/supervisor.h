#ifndef EERL_SUPERVISOR_H
#define EERL_SUPERVISOR_H

#include "job.h"

/* Watch the worker; holds no NVML itself. A worker that dies is followed by a reset of what it left and by a new
 * worker; the second time by one that only measures; the third time by nothing. SIGTERM ends both. */
_Noreturn void supervisor_run(const struct job *job, int listen_fd, int node_fd, int job_fd);

#endif
