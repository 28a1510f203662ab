#include "hooks.h"

#include "config.h"
#include "spawn.h"
#include "text.h"
#include "trust.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef LIBEXECDIR
#define LIBEXECDIR "/usr/libexec"
#endif
#define CLOCKD LIBEXECDIR "/eerl/eerl-clockd"
#define STATE_ROOT "/run/eerl"

/* How long a job may wait for us, worst case; stated in README.md. */
#define SWEEP_WAIT_MS 8000 /* NVML that opens slowly, then one reset; a few ms when nothing is stale */
#define READY_WAIT_MS 3000
#define EPILOG_WAIT_MS 18000 /* broker 4 + 1, its kill, NVML 4, reset 3 */

#define WORDS 12
#define WORD_LEN 4608 /* holds a path */

/* An eerl-clockd command line: our own words, then plugstack's as they are. */
struct command {
    char word[WORDS][WORD_LEN];
    char *argv[WORDS + 66];
    int n, words;
    bool bad;
};

static void add(struct command *c, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void add(struct command *c, const char *format, ...)
{
    va_list args;

    if (c->words == WORDS) {
        c->bad = true;
        return;
    }
    va_start(args, format);
    int n = vsnprintf(c->word[c->words], WORD_LEN, format, args);
    va_end(args);
    if (n < 0 || n >= WORD_LEN)
        c->bad = true;
    c->argv[c->n++] = c->word[c->words++];
}

/* Absent in this Slurm: left out, so that eerl-clockd knows it was not told. */
static void add_environment(struct command *c, const char *key, const char *variable)
{
    const char *value = getenv(variable);

    if (value != NULL && strlen(value) < 512)
        add(c, "%s=%s", key, value);
}

static void add_settings(struct command *c, int ac, char *av[])
{
    add(c, "--");
    for (int i = 0; i < ac && i < 64; i++)
        c->argv[c->n++] = av[i];
    c->argv[c->n] = NULL;
    c->bad = c->bad || ac > 64;
}

/* False, and said so, where the program is not root's alone: it would run as root. */
static bool begin(struct command *c, const struct config *config, const char *form)
{
    char why[EERL_WHY_LEN];
    const char *path = config->clockd != NULL ? config->clockd : CLOCKD;

    memset(c, 0, sizeof(*c));
    if (!trusted_file(path, why, sizeof(why))) {
        slurm_error("eerl: eerl-clockd is not run: %s", why);
        return false;
    }
    add(c, "%s", path);
    add(c, "%s", form);
    return true;
}

static void log_lines(char *said)
{
    for (char *line = said, *rest; line != NULL && *line != '\0'; line = rest) {
        rest = strchr(line, '\n');
        if (rest != NULL)
            *rest++ = '\0';
        slurm_info("eerl: %s", line);
    }
}

static void run(struct command *c, int wait_ms, const char *what)
{
    char said[2048];

    if (c->bad) {
        slurm_error("eerl: %s: more settings than fit", what);
        return;
    }
    enum spawn_result result = spawn_and_hear(c->argv, wait_ms, said, sizeof(said));
    log_lines(said);
    if (result == SPAWN_TOO_LATE)
        slurm_error("eerl: %s: eerl-clockd has not finished in %d s and was killed", what, wait_ms / 1000);
    else if (result == SPAWN_FAILED)
        slurm_error("eerl: %s: eerl-clockd cannot be started", what);
}

static const char *node_name(void)
{
    const char *node = getenv("SLURMD_NODENAME");

    if (node_name_ok(node))
        return node;
    slurm_error("eerl: node name '%.100s' cannot be a folder name of at most %d characters: no clock control",
                node != NULL ? node : "", EERL_NODE_NAME_MAX);
    return NULL;
}

static bool exists(const char *node, uint32_t job)
{
    char path[sizeof(STATE_ROOT) + EERL_NODE_NAME_MAX + 16];
    int n = job > 0 ? snprintf(path, sizeof(path), "%s/%s/%u", STATE_ROOT, node, job)
                    : snprintf(path, sizeof(path), "%s/%s", STATE_ROOT, node);

    return n > 0 && (size_t)n < sizeof(path) && access(path, F_OK) == 0;
}

static bool wanted(spank_t sp, const struct config *config)
{
    char *argument = NULL;

    if (spank_option_getopt(sp, &eerl_option, &argument) != ESPANK_SUCCESS)
        return config->default_on != 0;
    return argument == NULL || strcmp(argument, "off") != 0;
}

static bool read_settings(struct config *config, int ac, char *av[])
{
    char why[EERL_WHY_LEN] = "";

    if (config_parse(config, ac, av, why, sizeof(why)))
        return true;
    slurm_error("eerl: plugstack.conf: %s; eerl does nothing on this node until that is mended", why);
    return false;
}

void node_started(int ac, char *av[])
{
    static struct command c; /* large, and slurmd's stack is not ours to judge */
    struct config config;

    (void)read_settings(&config, ac, av); /* cleaning up goes on with what can be read */
    if (geteuid() != 0 || access(STATE_ROOT, F_OK) != 0 || !begin(&c, &config, "--reset-stale"))
        return;
    add_settings(&c, ac, av);
    if (!c.bad)
        (void)spawn_and_leave(c.argv); /* slurmd does not wait for us */
}

static void heal(const struct config *config, const char *node, int ac, char *av[])
{
    static struct command c;

    if (!exists(node, 0) || !begin(&c, config, "--reset-stale"))
        return;
    add(&c, "node=%s", node);
    add(&c, "report=3");
    add_settings(&c, ac, av);
    run(&c, SWEEP_WAIT_MS, "reset of what earlier jobs left");
}

void job_begins(spank_t sp, int ac, char *av[])
{
    static struct command c;
    struct config config;
    uint32_t job = 0, restart = 0;
    uid_t uid = 0;
    const char *gpus = getenv("SLURM_JOB_GPUS"), *node, *gid = getenv("SLURM_JOB_GID");

    if (!read_settings(&config, ac, av) || (node = node_name()) == NULL)
        return;
    bool asked = wanted(sp, &config);
    if (geteuid() != 0) {
        if (asked)
            slurm_error("eerl: slurmd does not run as root here: no clock control");
        return;
    }
    heal(&config, node, ac, av);
    if (gpus == NULL || gpus[0] == '\0' || (!asked && config.shared_gpus == 0))
        return;
    if (spank_get_item(sp, S_JOB_ID, &job) != ESPANK_SUCCESS || spank_get_item(sp, S_JOB_UID, &uid) != ESPANK_SUCCESS) {
        slurm_error("eerl: Slurm does not tell the job's id and user: no clock control");
        return;
    }
    if (!begin(&c, &config, asked ? "--serve" : "--claim"))
        return;
    add(&c, "node=%s", node);
    add(&c, "job=%u", job);
    add(&c, "uid=%u", (unsigned)uid);
    add(&c, "gid=%s", gid != NULL && strlen(gid) < 16 ? gid : "65534");
    add(&c, "gpus=%.255s", gpus);
    add_environment(&c, "user", "SLURM_JOB_USER");
    add_environment(&c, "partition", "SLURM_JOB_PARTITION");
    add_environment(&c, "account", "SLURM_JOB_ACCOUNT");
    if (spank_get_item(sp, S_SLURM_RESTART_COUNT, &restart) == ESPANK_SUCCESS)
        add(&c, "restart=%u", restart);
    else
        add_environment(&c, "restart", "SLURM_RESTART_COUNT"); /* 22.05 tells the prolog neither: "-" is recorded */
    add(&c, "report=3");
    add_settings(&c, ac, av);
    run(&c, READY_WAIT_MS, asked ? "no clock control" : "GPUs of this job are not noted");
}

void job_ends(spank_t sp, int ac, char *av[])
{
    static struct command c;
    struct config config;
    uint32_t job = 0;
    const char *node = getenv("SLURMD_NODENAME");

    (void)read_settings(&config, ac, av); /* what was granted is taken back, whatever the settings are now */
    if (geteuid() != 0 || !node_name_ok(node) || spank_get_item(sp, S_JOB_ID, &job) != ESPANK_SUCCESS || job == 0 ||
        !exists(node, job) || !begin(&c, &config, "--reset"))
        return;
    add(&c, "node=%s", node);
    add(&c, "report=3");
    add(&c, "%u", job);
    add_settings(&c, ac, av);
    run(&c, EPILOG_WAIT_MS, "end of job");
}

void step_begins(spank_t sp)
{
    char node[EERL_NODE_NAME_MAX + 1], value[16], path[160];
    uint32_t job = 0;

    /* Slurm's prolog cannot tell a share of a GPU from a whole one; a step's environment can. */
    if (spank_getenv(sp, "SLURM_SHARDS_ON_NODE", value, sizeof(value)) != ESPANK_SUCCESS || spank_get_item(sp, S_JOB_ID, &job) != ESPANK_SUCCESS || geteuid() != 0 ||
        spank_getenv(sp, "SLURMD_NODENAME", node, sizeof(node)) != ESPANK_SUCCESS || !node_name_ok(node))
        return;
    int n = snprintf(path, sizeof(path), "%s/%s/%u/shared", STATE_ROOT, node, job);
    int fd = n > 0 && (size_t)n < sizeof(path) ? open(path, O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0644) : -1;
    if (fd >= 0)
        close(fd);
}
