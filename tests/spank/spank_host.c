/* Stands in for slurmd, slurmstepd or srun: loads a SPANK plugin as they do, and calls one hook.
 *
 *   spank_host PLUGIN CONTEXT HOOK JOB UID OPTION [plugstack arguments]
 *
 * OPTION: `-` the user gave none; otherwise its text ("(null)" for --eerl alone, as Slurm has it). The hook's log
 * goes to stdout, then `rc=N`. Environment variables are the hook's. */
#include <dlfcn.h>
#include <slurm/spank.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static enum spank_context context;
static uint32_t job_id;
static uid_t job_uid;
static const char *option_text;
static struct spank_option *registered;

spank_context_t spank_context(void)
{
    return context;
}

spank_err_t spank_option_register(spank_t sp, struct spank_option *option)
{
    (void)sp;
    registered = option;
    printf("registered: --%s\n", option->name);
    return ESPANK_SUCCESS;
}

spank_err_t spank_option_getopt(spank_t sp, struct spank_option *option, char **argument)
{
    static char copy[4096];

    (void)sp;
    (void)option;
    if (strcmp(option_text, "-") == 0)
        return ESPANK_ERROR;
    snprintf(copy, sizeof(copy), "%s", option_text);
    *argument = copy;
    return ESPANK_SUCCESS;
}

spank_err_t spank_get_item(spank_t sp, spank_item_t item, ...)
{
    va_list args;
    spank_err_t rc = ESPANK_SUCCESS;

    (void)sp;
    va_start(args, item);
    if (item == S_JOB_ID && job_id != 0)
        *va_arg(args, uint32_t *) = job_id;
    else if (item == S_JOB_UID && job_id != 0)
        *va_arg(args, uid_t *) = job_uid;
    else
        rc = ESPANK_NOT_AVAIL;
    va_end(args);
    return rc;
}

/* As in slurmstepd: the job's environment, not this process's; here they are the same. */
spank_err_t spank_getenv(spank_t sp, const char *name, char *value, int size)
{
    const char *found = getenv(name);

    (void)sp;
    if (found == NULL)
        return ESPANK_ENV_NOEXIST;
    return snprintf(value, (size_t)size, "%s", found) < size ? ESPANK_SUCCESS : ESPANK_NOSPACE;
}

static void log_line(const char *level, const char *format, va_list args)
{
    printf("%s: ", level);
    vprintf(format, args);
    putchar('\n');
}

#define LOGGER(name, level)                                                                                            \
    void name(const char *format, ...)                                                                                 \
    {                                                                                                                  \
        va_list args;                                                                                                  \
        va_start(args, format);                                                                                        \
        log_line(level, format, args);                                                                                 \
        va_end(args);                                                                                                  \
    }

LOGGER(slurm_info, "info")
LOGGER(slurm_error, "error")
LOGGER(slurm_debug, "debug")
LOGGER(slurm_spank_log, "user")

static enum spank_context context_named(const char *name)
{
    static const char *const names[] = {"error", "local", "remote", "allocator", "slurmd", "job_script"};

    for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (strcmp(name, names[i]) == 0)
            return (enum spank_context)i;
    return S_CTX_ERROR;
}

int main(int argc, char *argv[])
{
    char symbol[64];
    int rc;

    if (argc < 7)
        return 2;
    setvbuf(stdout, NULL, _IONBF, 0);
    void *plugin = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (plugin == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        return 2;
    }
    context = context_named(argv[2]);
    job_id = (uint32_t)strtoul(argv[4], NULL, 10);
    job_uid = (uid_t)strtoul(argv[5], NULL, 10);
    option_text = argv[6];
    snprintf(symbol, sizeof(symbol), "slurm_spank_%s", argv[3]);
    spank_f *hook = NULL;
    void *found = dlsym(plugin, strcmp(argv[3], "option") == 0 ? "slurm_spank_init" : symbol);
    if (found == NULL)
        return 3;
    memcpy(&hook, &found, sizeof(hook));
    rc = hook(NULL, argc - 7, argv + 7);
    if (strcmp(argv[3], "option") == 0 && registered != NULL)
        rc = registered->cb(registered->val, option_text, context == S_CTX_REMOTE);
    printf("rc=%d\n", rc);
    return 0;
}
