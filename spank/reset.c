#include "reset.h"

#include "lanes.h"
#include "proc.h"
#include "report.h"
#include "state.h"
#include "trust.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <syslog.h>
#include <time.h>
#include <unistd.h>

#define SECOND_NS INT64_C(1000000000)
#define OPEN_DEADLINE_S 4
#define RESET_DEADLINE_NS (3 * SECOND_NS)
#define TERM_WAIT_MS 6000 /* the worker gives itself 4 s, the supervisor 5 s */
#define KILL_WAIT_MS 1500
#define FORGET_AGE_S 600 /* a prolog, or a job that has no step yet, is younger */

/* NVML of this process, opened at most once: it may take seconds where persistence mode is off. */
static struct {
    struct nvml nvml;
    char path[4096];
    int code;
    bool tried, silent; /* silent: nvmlInit did not return, and its thread may still write here */
    char why[EERL_WHY_LEN];
} driver;

static void *open_driver(void *path)
{
    driver.code = nvml_open(&driver.nvml, path, driver.why, sizeof(driver.why));
    return NULL;
}

static int driver_ready(const char *path)
{
    struct timespec until;
    pthread_t thread;
    const char *wanted = path != NULL ? path : "";
    char why[EERL_WHY_LEN];

    if (driver.silent)
        return NVML_TIMEOUT;
    if (driver.tried && strcmp(driver.path, wanted) == 0)
        return driver.code;
    if (driver.tried && driver.code == NVML_OK)
        nvml_close(&driver.nvml);
    memset(&driver, 0, sizeof(driver));
    driver.tried = true;
    snprintf(driver.path, sizeof(driver.path), "%s", wanted);
    if (path != NULL && !trusted_file(path, why, sizeof(why))) {
        snprintf(driver.why, sizeof(driver.why), "nvml= is not used: %.200s", why);
        return driver.code = NVML_NO_PERMISSION;
    }
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += OPEN_DEADLINE_S;
    if (pthread_create(&thread, NULL, open_driver, path != NULL ? driver.path : NULL) != 0)
        return driver.code = NVML_UNKNOWN;
    if (pthread_timedjoin_np(thread, NULL, &until) == 0)
        return driver.code;
    report(LOG_ERR, "nvmlInit has not answered in %d s", OPEN_DEADLINE_S);
    driver.silent = true;
    return NVML_TIMEOUT;
}

static void tell(int node_fd, uint32_t job, const char *uuid, int code, const struct config *config, bool flag_unreset)
{
    char line[EERL_WHY_LEN];
    const char *words = code == NVML_OK ? "done" : nvml_text(&driver.nvml, code);

    if (code == NVML_OK) {
        report(LOG_INFO, "job %u: reset of %s: done", job, uuid);
        if (flag_unreset)
            unreset_clear(node_fd, uuid);
        return;
    }
    report(LOG_ERR, "job %u: clocks of %s are NOT reset: code %d, %s", job, uuid, code, words);
    if (!flag_unreset || !config->drain)
        return;
    snprintf(line, sizeof(line), "job %u: clocks of %s not reset: code %d, %.100s\n", job, uuid, code, words);
    unreset_write(node_fd, uuid, line);
}

static int reset_gpus(int job_fd, const struct config *config, const struct gpu *gpu, int n, int *code)
{
    struct lanes *lanes = lanes_start(&driver.nvml, config, job_fd, -1, gpu, n);
    struct op *op = NULL;

    if (lanes == NULL)
        return -1;
    /* The site's standing limit is set from the GPU's own clock list. */
    for (enum verb verb = config->site_max_mhz > 0 ? VERB_SETUP : VERB_RESET;; verb = VERB_RESET) {
        op = lanes_ask(lanes, verb, lanes_all(lanes), 0, clock_now_ns() + RESET_DEADLINE_NS);
        if (op == NULL)
            return -1;
        op_wait(lanes, op);
        if (verb == VERB_RESET)
            break;
        op_release(lanes, op);
    }
    memcpy(code, op->code, (size_t)n * sizeof(*code));
    op_release(lanes, op);
    lanes_stop(lanes); /* stays when a GPU hangs; the process ends soon */
    return 0;
}

int reset_marks(int node_fd, int job_fd, uint32_t job, const struct config *config, bool flag_unreset)
{
    char uuid[EERL_MAX_GPUS][EERL_UUID_LEN];
    struct gpu gpu[EERL_MAX_GPUS] = {0};
    int code[EERL_MAX_GPUS], n = mark_list(job_fd, uuid, EERL_MAX_GPUS), found = 0, failed = 0;

    if (n == 0)
        return 0;
    int driver_code = driver_ready(config->nvml);
    if (driver_code == NVML_OK && driver.nvml.by_uuid == NULL)
        driver_code = NVML_FUNCTION_NOT_FOUND;
    for (int i = 0; i < n; i++) {
        struct gpu *g = &gpu[found];
        int why = driver_code == NVML_OK ? driver.nvml.by_uuid(uuid[i], &g->device) : driver_code;
        if (why == NVML_OK) {
            memcpy(g->uuid, uuid[i], sizeof(g->uuid));
            found++;
        } else {
            tell(node_fd, job, uuid[i], why, config, flag_unreset);
            failed++;
        }
    }
    if (driver_code != NVML_OK && driver_code != NVML_TIMEOUT && driver.why[0] != '\0')
        report(LOG_ERR, "job %u: %s", job, driver.why);
    if (found > 0 && reset_gpus(job_fd, config, gpu, found, code) != 0)
        for (int i = 0; i < found; i++)
            code[i] = NVML_UNKNOWN;
    for (int i = 0; i < found; i++) {
        tell(node_fd, job, gpu[i].uuid, code[i], config, flag_unreset);
        failed += code[i] != NVML_OK;
    }
    return failed;
}

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
        if (g.group > 1 && proc_group_runs(g.group, "eerl-clockd"))
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
    int failed = 0, fd = openat(node_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
    uint32_t job;

    if (d == NULL && fd >= 0)
        close(fd);
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
        int fd = openat(root, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
        if (d == NULL && fd >= 0)
            close(fd);
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
