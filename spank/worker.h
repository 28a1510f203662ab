#ifndef EERL_WORKER_H
#define EERL_WORKER_H

#include "job.h"

#include <stdbool.h>

/* Serve the job's socket until SIGTERM, or until the supervisor dies. Never returns: exits with 0 when every
 * GPU is back at the site's clocks, 1 when one may not be (its dirty mark is then on disk). */
_Noreturn void worker_run(const struct job *job, int listen_fd, int job_fd, bool measure_only);

#endif
