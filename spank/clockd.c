/* eerl-clockd: which form is asked for, with which job and which settings. */
#include "job.h"
#include "oneshot.h"
#include "report.h"
#include "serve.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <syslog.h>
#include <unistd.h>

#define MAX_JOBS 64

static const char usage[] =
    "usage: eerl-clockd --reset [node=NAME] JOB… [-- KEY=VALUE…]\n"
    "       eerl-clockd --reset-stale [node=NAME] [-- KEY=VALUE…]\n"
    "       eerl-clockd --serve|--claim node=NAME job=ID uid=N gid=N gpus=LIST [user= partition= account= restart=]\n"
    "                   [-- KEY=VALUE…]                     (started by eerl_spank.so)\n"
    "KEY=VALUE as in plugstack.conf. Exit code: 0, 1 (something is not reset, or no grant), 2 (usage)\n";

struct arguments {
    struct job job;
    bool has_uid, has_gid;
    uint32_t report_fd;
    uint32_t jobs[MAX_JOBS];
    int n_jobs;
};

static bool job_word(struct arguments *a, const char *key, const char *value)
{
    const struct {
        const char *key;
        const char **text;
    } texts[] = {{"user", &a->job.user},       {"partition", &a->job.partition}, {"account", &a->job.account},
                 {"restart", &a->job.restart}, {"gpus", &a->job.position_text}};
    uint32_t number;

    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
        if (strcmp(key, texts[i].key) == 0) {
            *texts[i].text = value;
            return true;
        }
    if (strcmp(key, "node") == 0) {
        a->job.node = value;
        return node_name_ok(value);
    }
    if (strcmp(key, "job") == 0)
        return parse_u32(value, 1, UINT32_MAX, &a->job.id);
    if (strcmp(key, "report") == 0)
        return parse_u32(value, 3, 1023, &a->report_fd);
    if (strcmp(key, "uid") == 0 && parse_u32(value, 0, UINT32_MAX - 1, &number)) {
        a->job.uid = number;
        return a->has_uid = true;
    }
    if (strcmp(key, "gid") == 0 && parse_u32(value, 0, UINT32_MAX - 1, &number)) {
        a->job.gid = number;
        return a->has_gid = true;
    }
    return false;
}

/* Words up to `--`; false at the first that is not known. */
static bool read_words(struct arguments *a, int ac, char *av[], int *next)
{
    for (int i = 2; i < ac; i++) {
        char key[16];
        const char *equals = strchr(av[i], '=');
        *next = i + 1;
        if (strcmp(av[i], "--") == 0)
            return true;
        if (equals == NULL) {
            if (a->n_jobs == MAX_JOBS || !parse_u32(av[i], 1, UINT32_MAX, &a->jobs[a->n_jobs]))
                return false;
            a->n_jobs++;
            continue;
        }
        size_t n = (size_t)(equals - av[i]);
        if (n >= sizeof(key))
            return false;
        memcpy(key, av[i], n);
        key[n] = '\0';
        if (!job_word(a, key, equals + 1))
            return false;
    }
    return true;
}

/* Whatever slurmd's child had open is no business of ours, least of all its sockets. */
static void close_others(int keep)
{
    DIR *d = opendir("/proc/self/fd");

    if (d == NULL)
        return;
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        uint32_t fd;
        if (parse_u32(e->d_name, 3, INT32_MAX, &fd) && (int)fd != keep && (int)fd != dirfd(d))
            close((int)fd);
    }
    closedir(d);
}

static void settle_down(int keep, bool stays)
{
    sigset_t none;
    struct sigaction fresh = {.sa_handler = SIG_DFL};

    for (int s = 1; s < SIGRTMAX; s++)
        sigaction(s, &fresh, NULL); /* not all may be changed, and those need not */
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    signal(SIGPIPE, SIG_IGN);
    clearenv();
    umask(022);
    (void)!chdir("/");
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    for (int fd = 0; null >= 0 && fd < 3; fd++)
        if (stays || fcntl(fd, F_GETFD) < 0)
            dup2(null, fd);
    close_others(keep);
}

/* Are the words there that this form needs, and no others? */
static bool complete(const char *form, const struct arguments *a)
{
    if (strcmp(form, "--reset") == 0)
        return a->n_jobs > 0;
    if (strcmp(form, "--reset-stale") == 0)
        return a->n_jobs == 0;
    return (strcmp(form, "--serve") == 0 || strcmp(form, "--claim") == 0) && a->job.node != NULL && a->job.id != 0 &&
           a->has_uid && a->has_gid && a->job.position_text != NULL && a->n_jobs == 0;
}

static int run(const char *form, struct arguments *a)
{
    if (strcmp(form, "--reset") == 0)
        return reset_jobs(a->job.node, a->jobs, a->n_jobs, &a->job.config);
    if (strcmp(form, "--reset-stale") == 0)
        return reset_stale(a->job.node, &a->job.config);
    a->job.positions = parse_index_list(a->job.position_text, a->job.position, EERL_MAX_GPUS);
    return strcmp(form, "--serve") == 0 ? serve(&a->job) : claim(&a->job);
}

int main(int ac, char *av[])
{
    static struct arguments a;
    char why[EERL_WHY_LEN] = "";
    int next = ac;

    if (ac < 2 || !read_words(&a, ac, av, &next) || !complete(av[1], &a)) {
        (void)!write(STDERR_FILENO, usage, sizeof(usage) - 1);
        return 2;
    }
    bool serves = strcmp(av[1], "--serve") == 0;
    if (serves)
        (void)setsid(); /* a group of its own, by which all of the broker can be ended */
    settle_down(a.report_fd > 0 ? (int)a.report_fd : -1, serves);
    if (a.report_fd > 0) {
        fcntl((int)a.report_fd, F_SETFD, FD_CLOEXEC);
        report_to((int)a.report_fd);
    }
    openlog("eerl-clockd", LOG_PID | LOG_NDELAY, LOG_DAEMON);
    /* Cleaning up goes on with the settings that can be read; a grant needs all of them. */
    if (!config_parse(&a.job.config, ac - next, av + next, why, sizeof(why)) && (serves || strcmp(av[1], "--claim") == 0)) {
        report(LOG_ERR, "%s", why);
        return 2;
    }
    return run(av[1], &a);
}
