/* For whom the admin has switched eerl on. */
#ifndef EERL_ADMIT_H
#define EERL_ADMIT_H

#include "job.h"

/* True when the job's user (users= or groups=), partition and account are among those allowed; lists that are
 * not given allow everyone. Asks NSS for groups, which may be slow: never call it in slurmd's child. */
bool admitted(const struct job *job, char *why, size_t why_size);

#endif
