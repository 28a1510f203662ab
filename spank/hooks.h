/* What the plugin does on the node, in the short-lived child that slurmd makes for prolog and epilog, and in
 * slurmd itself at its start. Every function returns to its caller whatever happens; nothing here may crash, as
 * that would drain the node. */
#ifndef EERL_HOOKS_H
#define EERL_HOOKS_H

#include <slurm/spank.h>

extern struct spank_option eerl_option; /* --eerl[=on|off] */

void node_started(int ac, char *av[]);                 /* slurmd starts: reset what is stale */
void job_begins(spank_t sp, int ac, char *av[]);       /* prolog: heal, grant, start the broker */
void job_ends(spank_t sp, int ac, char *av[]);         /* epilog: end the broker, reset, forget */
void step_begins(spank_t sp);                          /* slurmstepd: is this job one of shares only? */

#endif
