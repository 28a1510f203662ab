/* What /proc tells of other processes. */
#ifndef EERL_PROC_H
#define EERL_PROC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Start time in clock ticks since boot: with the pid it names a process for good, as pids come again.
 * 0 when there is no such process, or only its zombie. */
uint64_t proc_start_ticks(pid_t pid);

/* Does slurmd still run any step of this job here? Root's processes with slurmstepd's title only, as a user
 * can give a process any title. */
bool proc_job_has_stepd(uint32_t job);

/* Does one of our own processes (names beginning so) live in this process group? Asked before a group is
 * signalled: its number may have come again since it was noted. */
#define PROC_NAMES "eerl-"
bool proc_group_is_ours(pid_t group);

void proc_boot_id(char *id, size_t size);

#endif
