#ifndef EERL_SERVE_H
#define EERL_SERVE_H

#include "job.h"

/* Grant the job its broker and become it, or say why not. Exit code when there is no grant. */
int serve(const struct job *job);

/* shared_gpus=yes: note which GPUs a job without eerl has, and revoke grants that overlap. Exit code. */
int claim(const struct job *job);

#endif
