/* Running eerl-clockd from Slurm's processes: closed descriptors, empty environment, bounded waits. */
#ifndef EERL_SPAWN_H
#define EERL_SPAWN_H

#include <stddef.h>

enum spawn_result {
    SPAWN_DONE,     /* it said what it had to say and closed its report (a one-shot has ended, too) */
    SPAWN_TOO_LATE, /* it had not within the time given, and was killed */
    SPAWN_FAILED,   /* it could not be started */
};

/* Start `argv` in a session of its own and collect what it reports on descriptor 3 (`said`, cut if long) until it
 * closes it or `wait_ms` are over. A broker that has been granted lives on; everything else has ended. */
enum spawn_result spawn_and_hear(char *const argv[], int wait_ms, char *said, size_t said_size);

/* Start `argv` and do not wait at all. */
enum spawn_result spawn_and_leave(char *const argv[]);

#endif
