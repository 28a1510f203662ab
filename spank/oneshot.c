#include "oneshot.h"

#include "grant.h"
#include "proc.h"
#include "report.h"
#include "reset.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <syslog.h>
#include <time.h>
#include <unistd.h>

#define TERM_WAIT_MS 6000 /* the worker gives itself 4 s, the supervisor 5 s */
#define KILL_WAIT_MS 1500
#define FORGET_AGE_S 600 /* a prolog, or a job that has no step yet, is younger */

/* Send through a descriptor of the process, checked after it is open: a pid that comes again is never hit. */
static void signal_supervisor(const struct grant *g, int signal)
{
    int process = (int)syscall(SYS_pidfd_open, g->pid, 0);

    if (process < 0)
        return;
    if (proc_start_ticks(g->pid) == g->start_ticks)
        syscall(SYS_pidfd_send_signal, process, signal, NULL, 0);
    close(process);
}

bool stop_broker(int job_fd, uint32_t job)
{
    struct grant g;

    if (!grant_alive(job_fd))
        return true;
    if (!grant_read(job_fd, &g)) {
        report(LOG_ERR, "job %u: the broker's own record cannot be read; its processes must be ended by hand", job);
        return false;
    }
    signal_supervisor(&g, SIGTERM);
    int fd = grant_lock(job_fd, false, TERM_WAIT_MS);
    if (fd < 0 && errno == EWOULDBLOCK) {
        if (g.group > 1 && proc_group_is_ours(g.group))
            kill(-g.group, SIGKILL);
        fd = grant_lock(job_fd, false, KILL_WAIT_MS);
    }
    if (fd < 0 && errno == EWOULDBLOCK) {
        report(LOG_ERR, "job %u: the broker still holds NVML: a call hangs in the driver", job);
        return false;
    }
    if (fd >= 0)
        close(fd);
    return true;
}

/* The settings the grant was made under, or those on our own command line. */
static void config_of(int job_fd, const struct config *fallback, struct grant *g, struct config *config)
{
    *config = *fallback;
    if (!grant_read(job_fd, g))
        return;
    config->nvml = g->nvml[0] != '\0' ? g->nvml : NULL;
    config->site_max_mhz = g->site_max_mhz;
    config->drain = g->drain;
}

static int reset_job(int node_fd, uint32_t job, const struct config *fallback)
{
    static struct grant g; /* large */
    struct config config;
    int job_fd = state_job_folder(node_fd, job, false);

    if (job_fd < 0)
        return 0; /* nothing was ever granted: nothing is reset */
    if (!stop_broker(job_fd, job)) {
        close(job_fd);
        return 1;
    }
    int lock = grant_lock(job_fd, false, KILL_WAIT_MS);
    config_of(job_fd, fallback, &g, &config);
    int failed = reset_marks(node_fd, job_fd, job, &config, true);
    state_forget(node_fd, job, failed > 0);
    if (lock >= 0)
        close(lock);
    close(job_fd);
    return failed;
}

static int sweep_job(int node_fd, uint32_t job, const struct config *fallback)
{
    static struct grant g;
    struct config config;
    struct stat st;
    char boot_id[64];
    int failed = 0, job_fd = state_job_folder(node_fd, job, false);

    if (job_fd < 0)
        return 0;
    int lock = grant_lock(job_fd, false, 0);
    if (lock < 0 && errno == EWOULDBLOCK) { /* its broker lives: its own affair */
        close(job_fd);
        return 0;
    }
    config_of(job_fd, fallback, &g, &config);
    proc_boot_id(boot_id, sizeof(boot_id));
    bool other_boot = g.boot_id[0] != '\0' && boot_id[0] != '\0' && strcmp(g.boot_id, boot_id) != 0;
    if (!other_boot) /* a lock does not outlive the driver */
        failed = reset_marks(node_fd, job_fd, job, &config, true);
    if (other_boot || (failed == 0 && fstat(job_fd, &st) == 0 && time(NULL) - st.st_mtime > FORGET_AGE_S &&
                       !proc_job_has_stepd(job)))
        state_forget(node_fd, job, false);
    if (lock >= 0)
        close(lock);
    close(job_fd);
    return failed;
}

/* Every job folder of a node. */
static int sweep_node(int node_fd, const struct config *fallback)
{
    int failed = 0;
    DIR *d = state_list(node_fd);
    uint32_t job;

    for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;)
        if (parse_u32(e->d_name, 1, UINT32_MAX, &job))
            failed += sweep_job(node_fd, job, fallback);
    if (d != NULL)
        closedir(d);
    return failed;
}

static int at_node(const char *node, const uint32_t *job, int jobs, const struct config *fallback, int root)
{
    int failed = 0, node_fd = state_folder(root, node, false);

    if (node_fd < 0)
        return 0;
    if (job == NULL)
        failed = sweep_node(node_fd, fallback);
    for (int i = 0; job != NULL && i < jobs; i++)
        failed += reset_job(node_fd, job[i], fallback);
    close(node_fd);
    return failed;
}

static int everywhere(const char *node, const uint32_t *job, int jobs, const struct config *fallback)
{
    int failed = 0, root = state_root(false);

    if (root < 0)
        return 0;
    if (node != NULL) {
        failed = at_node(node, job, jobs, fallback, root);
    } else {
        DIR *d = state_list(root);
        for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;)
            if (node_name_ok(e->d_name))
                failed += at_node(e->d_name, job, jobs, fallback, root);
        if (d != NULL)
            closedir(d);
    }
    close(root);
    return failed > 0 ? 1 : 0;
}

int reset_jobs(const char *node, const uint32_t *job, int jobs, const struct config *fallback)
{
    return everywhere(node, job, jobs, fallback);
}

int reset_stale(const char *node, const struct config *fallback)
{
    return everywhere(node, NULL, 0, fallback);
}
