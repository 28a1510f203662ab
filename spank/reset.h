/* Clocks come home: one-shot resets from what is marked dirty on disk, whoever left it so. */
#ifndef EERL_RESET_H
#define EERL_RESET_H

#include "config.h"

#include <stdbool.h>
#include <stdint.h>

/* Reset every GPU with a dirty mark in the job's folder; the number that could not be. Each GPU on its own
 * thread with a deadline, never stopping at the first failure. `flag_unreset`: leave or clear unreset-<uuid>
 * in the node's folder as on_reset_failure asks. */
int reset_marks(int node_fd, int job_fd, uint32_t job, const struct config *config, bool flag_unreset);

#endif
