/* What eerl remembers on a node, in /run/eerl/<node>/<job>/: root's, relative to folder descriptors, and gone
 * with a reboot, as clock locks are. */
#ifndef EERL_STATE_H
#define EERL_STATE_H

#include "text.h"

#include <dirent.h>
#include <stdbool.h>
#include <sys/types.h>

#define STATE_ROOT "/run/eerl"
#define STATE_SOCKET "clock"  /* the broker's socket, the job owner's */
#define STATE_REASON "reason" /* why there is no grant, for the job to read */
#define STATE_GPUS "gpus"     /* Slurm's GPU numbers of the job */
#define STATE_GRANT "grant"
#define STATE_MARK "dirty-" /* + UUID */
#define STATE_SHARED "shared" /* a step was seen to have a share of a GPU only */

/* An open folder of the state tree, made when `create`; -1 with errno. `name` must be a checked word. */
int state_root(bool create);
int state_folder(int parent, const char *name, bool create);
int state_job_folder(int node_fd, uint32_t job, bool create);

/* Replace a small file as a whole. False with errno. */
bool state_write(int folder, const char *name, mode_t mode, const char *text);
/* Length, or -1; the text ends with NUL and is cut at the buffer. */
ssize_t state_read(int folder, const char *name, char *buffer, size_t size);
/* prefix + UUID as a file name; false when it is no UUID. */
bool state_uuid_name(char *name, size_t size, const char *prefix, const char *uuid);
/* The folder's entries, on a descriptor of its own, as closedir closes the one it was given. */
DIR *state_list(int folder);
void state_reason(int job_fd, const char *reason);

/* unreset-<uuid> in the node's folder: the shipped Epilog snippet drains the node on it. */
void unreset_write(int node_fd, const char *uuid, const char *text);
void unreset_clear(int node_fd, const char *uuid);

/* Remove a job's folder with all that is in it; keep it, and its dirty marks, when `keep_marks`. */
void state_forget(int node_fd, uint32_t job, bool keep_marks);

#endif
