/* Two records in a job's folder: the grant, and the dirty marks. */
#ifndef EERL_GRANT_H
#define EERL_GRANT_H

#include "state.h"

#include <sys/types.h>

/* The grant. Its file is locked (flock) as long as any process of the broker lives, which is the only test of
 * life that zombies, pid reuse and a lost pid file cannot fool. */
struct grant {
    uint32_t job, uid;
    char restart[16]; /* "-": not told */
    char boot_id[64];
    pid_t pid, group; /* the supervisor, and the process group of all the broker's processes */
    uint64_t start_ticks;
    char nvml[4096]; /* empty: the system's */
    uint32_t site_max_mhz, drain;
};
int grant_lock(int job_fd, bool create, int wait_ms); /* descriptor, or -1: EWOULDBLOCK when a broker lives */
bool grant_alive(int job_fd);
bool grant_write(int grant_fd, const struct grant *g);
bool grant_read(int job_fd, struct grant *g); /* false: no grant, or not readable as one */

/* Dirty marks: on disk before the first write to a GPU, gone when its reset has succeeded. */
struct mark {
    bool application;                  /* application clocks were set, not a lock */
    uint32_t memory_mhz, before_mhz;   /* application clocks found; 0: unknown */
    uint32_t set_mhz;                  /* application clock we set last */
};
bool mark_write(int job_fd, const char *uuid, const struct mark *m);
bool mark_read(int job_fd, const char *uuid, struct mark *m);
bool mark_clear(int job_fd, const char *uuid);
int mark_list(int job_fd, char (*uuid)[EERL_UUID_LEN], int max);

#endif
