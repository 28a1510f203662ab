#include "reset.h"

#include "grant.h"
#include "lanes.h"
#include "report.h"
#include "trust.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <syslog.h>
#include <time.h>

#define SECOND_NS INT64_C(1000000000)
#define OPEN_DEADLINE_S 4
#define RESET_DEADLINE_NS (3 * SECOND_NS)

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
