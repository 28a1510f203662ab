/* eerl_spank.so: which of Slurm's contexts does what. The work is in hooks.c, and the risky work in eerl-clockd. */
#include "hooks.h"

#include <string.h>

/* Slurm finds plugins by these names, and nothing else of ours shall be seen in its processes (eerl_spank.map). */
#pragma GCC visibility push(default)
SPANK_PLUGIN(eerl, 1)
int slurm_spank_init(spank_t sp, int ac, char *av[]);
int slurm_spank_init_post_opt(spank_t sp, int ac, char *av[]);
int slurm_spank_job_prolog(spank_t sp, int ac, char *av[]);
int slurm_spank_job_epilog(spank_t sp, int ac, char *av[]);
#pragma GCC visibility pop

static int check_option(int val, const char *argument, int remote)
{
    (void)val;
    if (remote || argument == NULL || argument[0] == '\0' || strcmp(argument, "(null)") == 0 ||
        strcmp(argument, "on") == 0 || strcmp(argument, "off") == 0)
        return 0; /* a value that came this far on a node is judged in the prolog, never by failing a step */
    slurm_error("eerl: --eerl=%.40s is not known; it is --eerl, --eerl=on or --eerl=off", argument);
    return -1;
}

struct spank_option eerl_option = {
    .name = "eerl",
    .arginfo = "on|off",
    .usage = "[eerl] let eerl-run set the clocks of this job's GPUs (off: not, where it is the default)",
    .has_arg = 2,
    .val = 0,
    .cb = check_option,
};

int slurm_spank_init(spank_t sp, int ac, char *av[])
{
    /* Registered even where plugstack.conf is wrong: the plugin is inert then, but a job script that asks for it
     * is still accepted. */
    if (spank_context() == S_CTX_SLURMD)
        node_started(ac, av);
    else if (spank_option_register(sp, &eerl_option) != ESPANK_SUCCESS)
        slurm_error("eerl: option --eerl cannot be registered");
    return 0;
}

int slurm_spank_init_post_opt(spank_t sp, int ac, char *av[])
{
    (void)ac;
    (void)av;
    if (spank_context() == S_CTX_REMOTE)
        step_begins(sp);
    return 0;
}

int slurm_spank_job_prolog(spank_t sp, int ac, char *av[])
{
    job_begins(sp, ac, av);
    return 0;
}

int slurm_spank_job_epilog(spank_t sp, int ac, char *av[])
{
    job_ends(sp, ac, av);
    return 0;
}
