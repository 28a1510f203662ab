/* What eerl remembers on a node, in /run/eerl/<node>/<job>/: root's, relative to folder descriptors, and gone
 * with a reboot, as clock locks are. */
#ifndef EERL_STATE_H
#define EERL_STATE_H

#include "config.h"
#include "text.h"

#include <stdbool.h>
#include <sys/types.h>

#define STATE_ROOT "/run/eerl"
#define STATE_SOCKET "clock"  /* the broker's socket, the job owner's */
#define STATE_REASON "reason" /* why there is no grant, for the job to read */
#define STATE_GPUS "gpus"     /* Slurm's GPU numbers of the job */
#define STATE_SHARED "shared" /* a step was seen to have a share of a GPU only */

/* An open folder of the state tree, made when `create`; -1 with errno. `name` must be a checked word. */
int state_root(bool create);
int state_folder(int parent, const char *name, bool create);
int state_job_folder(int node_fd, uint32_t job, bool create);

/* Replace a small file as a whole. False with errno. */
bool state_write(int folder, const char *name, mode_t mode, const char *text);
/* Length, or -1; the text ends with NUL and is cut at the buffer. */
ssize_t state_read(int folder, const char *name, char *buffer, size_t size);
void state_reason(int job_fd, const char *reason);

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

/* unreset-<uuid> in the node's folder: the shipped Epilog snippet drains the node on it. */
void unreset_write(int node_fd, const char *uuid, const char *text);
void unreset_clear(int node_fd, const char *uuid);

/* Remove a job's folder with all that is in it; keep it, and its dirty marks, when `keep_marks`. */
void state_forget(int node_fd, uint32_t job, bool keep_marks);

#endif
