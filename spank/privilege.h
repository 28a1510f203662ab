#ifndef EERL_PRIVILEGE_H
#define EERL_PRIVILEGE_H

#include <stdbool.h>
#include <stddef.h>

/* Give up all of root but CAP_SYS_ADMIN, which the NVIDIA driver asks of whoever sets clocks, for this process
 * and all it will ever start: securebits locked, bounding set emptied, no_new_privs. False with `why`. */
bool privilege_drop(char *why, size_t why_size);

#endif
