/* What a lane does to its GPU. Runs on the lane's thread; only `dirty` and `method` are read by others. */
#include "lanes.h"

#include <string.h>

#define LIMIT_PERIOD_NS 1000000000

static void set_dirty(struct lane *lane, bool dirty)
{
    pthread_mutex_lock(&lane->all->mutex);
    lane->dirty = dirty;
    pthread_mutex_unlock(&lane->all->mutex);
}

static void set_method(struct lane *lane, enum method method)
{
    pthread_mutex_lock(&lane->all->mutex);
    lane->method = method;
    pthread_mutex_unlock(&lane->all->mutex);
}

/* The SM clocks the GPU supports at its highest memory clock, ascending. */
static void read_clocks(struct lane *lane)
{
    const struct nvml *n = lane->all->nvml;
    uint32_t memory[32], clocks[LANE_CLOCKS], count = sizeof(memory) / sizeof(memory[0]);

    if (n->memory_clocks == NULL || n->graphics_clocks == NULL)
        return;
    if (n->memory_clocks(lane->gpu.device, &count, memory) != NVML_OK || count == 0 || count > 32)
        return;
    for (uint32_t i = 0; i < count; i++)
        if (memory[i] > lane->memory_mhz)
            lane->memory_mhz = memory[i];
    count = LANE_CLOCKS;
    if (n->graphics_clocks(lane->gpu.device, lane->memory_mhz, &count, clocks) != NVML_OK || count > LANE_CLOCKS)
        return;
    for (uint32_t i = 0; i < count; i++) { /* NVML lists them descending, but does not promise to */
        int at = lane->clocks++;
        for (; at > 0 && lane->clocks_mhz[at - 1] > clocks[i]; at--)
            lane->clocks_mhz[at] = lane->clocks_mhz[at - 1];
        lane->clocks_mhz[at] = clocks[i];
    }
}

void gpu_setup(struct lane *lane)
{
    const struct nvml *n = lane->all->nvml;
    enum method method = METHOD_NONE;

    read_clocks(lane);
    if (n->set_locked_clocks != NULL && n->reset_locked_clocks != NULL)
        method = METHOD_LOCKED;
    else if (n->set_application_clocks != NULL && n->reset_application_clocks != NULL)
        method = METHOD_APPLICATION;
    pthread_mutex_lock(&lane->all->mutex);
    lane->method = lane->clocks > 0 ? method : METHOD_NONE;
    lane->ready = true;
    pthread_mutex_unlock(&lane->all->mutex);
}

/* The supported clock nearest to `mhz` inside [low, high]; of two as near, the lower. 0: there is none. */
static uint32_t snap(const struct lane *lane, uint32_t mhz, uint32_t low, uint32_t high)
{
    uint32_t best = 0, best_distance = UINT32_MAX;

    for (int i = 0; i < lane->clocks; i++) {
        uint32_t c = lane->clocks_mhz[i];
        uint32_t distance = c > mhz ? c - mhz : mhz - c;
        if (c >= low && c <= high && distance < best_distance) {
            best = c;
            best_distance = distance;
        }
    }
    return best;
}

static uint32_t application_clock(const struct lane *lane, int type)
{
    const struct nvml *n = lane->all->nvml;
    uint32_t mhz = 0;

    return n->application_clock != NULL && n->application_clock(lane->gpu.device, type, &mhz) == NVML_OK ? mhz : 0;
}

static int set_clock(struct lane *lane, enum method method, uint32_t mhz)
{
    const struct nvml *n = lane->all->nvml;
    struct mark mark = lane->mark;

    if (method == METHOD_APPLICATION) {
        if (n->set_application_clocks == NULL)
            return NVML_FUNCTION_NOT_FOUND;
        if (!mark.application) {
            mark.application = true;
            mark.memory_mhz = application_clock(lane, NVML_CLOCK_MEM);
            mark.before_mhz = application_clock(lane, NVML_CLOCK_GRAPHICS);
        }
        if (mark.memory_mhz == 0)
            mark.memory_mhz = lane->memory_mhz;
        mark.set_mhz = mhz;
    }
    /* On disk before the first write to the GPU: whoever comes after a kill -9 finds it. */
    if ((!lane->dirty || method == METHOD_APPLICATION) && !mark_write(lane->all->job_fd, lane->gpu.uuid, &mark))
        return NVML_UNKNOWN;
    lane->mark = mark;
    set_dirty(lane, true);
    if (method == METHOD_APPLICATION)
        return n->set_application_clocks(lane->gpu.device, mark.memory_mhz, mhz);
    return n->set_locked_clocks(lane->gpu.device, lane->clocks_mhz[0], mhz);
}

static bool refused(int code)
{
    return code == NVML_NO_PERMISSION || code == NVML_INVALID_ARGUMENT || nvml_missing(code);
}

static void forget_mark(struct lane *lane)
{
    if (!mark_clear(lane->all->job_fd, lane->gpu.uuid))
        return;
    memset(&lane->mark, 0, sizeof(lane->mark));
    set_dirty(lane, false);
}

int gpu_lock(struct lane *lane, uint32_t mhz, bool *changed)
{
    const struct config *c = lane->all->config;
    uint32_t low = c->idle_min_mhz > 0 && c->idle_min_mhz < c->min_mhz ? c->idle_min_mhz : c->min_mhz;
    uint32_t high = c->max_mhz > 0 ? c->max_mhz : UINT32_MAX;
    bool was_dirty = lane->dirty;

    if (c->site_max_mhz > 0 && c->site_max_mhz < high)
        high = c->site_max_mhz;
    mhz = snap(lane, mhz, low, high);
    if (lane->method == METHOD_NONE)
        return NVML_NOT_SUPPORTED;
    if (mhz == 0)
        return NVML_FREQ_NOT_SUPPORTED;
    if (lane->dirty && lane->locked_mhz == mhz)
        return NVML_OK; /* setting a clock again stalls NCCL for nothing (NVIDIA/nccl #1551) */
    *changed = true;
    int code = set_clock(lane, lane->method, mhz);
    if (lane->method == METHOD_LOCKED && nvml_missing(code)) {
        /* The symbol is there, the GPU or driver says no: the older way is the second try, and the last. */
        int second = set_clock(lane, METHOD_APPLICATION, mhz);
        set_method(lane, nvml_missing(second) ? METHOD_NONE : METHOD_APPLICATION);
        code = nvml_missing(second) ? code : second;
    }
    if (code == NVML_OK)
        lane->locked_mhz = mhz;
    else if (!was_dirty && refused(code))
        forget_mark(lane); /* nothing was changed, so there is nothing to give back */
    else
        lane->locked_mhz = 0; /* unknown now: the next lock is sent whatever it asks for */
    return code;
}

/* Application clocks go back to what was found, if that was anything but the default. */
static int give_application_back(struct lane *lane, bool *changed)
{
    const struct nvml *n = lane->all->nvml;
    uint32_t site_max = lane->all->config->site_max_mhz, before = lane->mark.before_mhz, standard = 0;
    uint32_t now = application_clock(lane, NVML_CLOCK_GRAPHICS);

    if (now != 0 && now != lane->mark.set_mhz)
        return NVML_OK; /* someone else has set it since: theirs now, not ours to undo */
    *changed = true;
    if (n->default_application_clock != NULL)
        (void)n->default_application_clock(lane->gpu.device, NVML_CLOCK_GRAPHICS, &standard);
    if (site_max != 0 && (before == 0 || before > site_max))
        before = site_max;
    if (before != 0 && before != standard && n->set_application_clocks != NULL)
        return n->set_application_clocks(lane->gpu.device, lane->mark.memory_mhz, before);
    return n->reset_application_clocks != NULL ? n->reset_application_clocks(lane->gpu.device)
                                               : NVML_FUNCTION_NOT_FOUND;
}

static int give_back(struct lane *lane, bool *changed)
{
    const struct nvml *n = lane->all->nvml;
    uint32_t site_max = lane->all->config->site_max_mhz;

    if (lane->mark.application)
        return give_application_back(lane, changed);
    *changed = true;
    if (site_max > 0 && n->set_locked_clocks != NULL) {
        uint32_t high = snap(lane, site_max, 0, site_max), low = lane->clocks > 0 ? lane->clocks_mhz[0] : 0;
        /* No list, or none that low: pinned to the limit rather than left above it. */
        return high != 0 ? n->set_locked_clocks(lane->gpu.device, low, high)
                         : n->set_locked_clocks(lane->gpu.device, site_max, site_max);
    }
    return n->reset_locked_clocks != NULL ? n->reset_locked_clocks(lane->gpu.device) : NVML_FUNCTION_NOT_FOUND;
}

int gpu_reset(struct lane *lane, bool *changed)
{
    if (!lane->dirty)
        return NVML_OK; /* a job that set nothing resets nothing */
    int code = give_back(lane, changed);
    lane->locked_mhz = 0;
    if (code == NVML_OK)
        forget_mark(lane);
    return code;
}

static int read_power(const struct nvml *n, nvml_device device, uint32_t *mw)
{
    struct nvml_field field = {.field_id = NVML_FI_DEV_POWER_INSTANT, .scope_id = NVML_POWER_SCOPE_GPU};
    int code = NVML_FUNCTION_NOT_FOUND;

    /* The instantaneous field first: nvmlDeviceGetPowerUsage is a trailing 1 s mean on recent GPUs. */
    if (n->field_values != NULL && n->field_values(device, 1, &field) == NVML_OK && field.code == NVML_OK)
        *mw = field.value.u32;
    if (*mw == 0 && n->power_mw != NULL)
        code = n->power_mw(device, mw);
    return *mw != 0 ? NVML_OK : code; /* 0 mW is what NVML says when it is asked too often */
}

/* It changes by an operator's hand, not by itself: one call a second is enough. */
static uint32_t enforced_limit(struct lane *lane, int64_t now_ns)
{
    const struct nvml *n = lane->all->nvml;

    if (n->enforced_limit_mw == NULL || (lane->limit_ns != 0 && now_ns - lane->limit_ns < LIMIT_PERIOD_NS))
        return lane->limit_mw;
    lane->limit_ns = now_ns;
    if (n->enforced_limit_mw(lane->gpu.device, &lane->limit_mw) != NVML_OK)
        lane->limit_mw = 0;
    return lane->limit_mw;
}

int gpu_sample(struct lane *lane, struct reading *r)
{
    const struct nvml *n = lane->all->nvml;
    nvml_device device = lane->gpu.device;
    struct nvml_utilization utilization = {0};
    int code = NVML_FUNCTION_NOT_FOUND;

    r->t_ns = clock_now_ns();
    if (n->energy_mj != NULL)
        code = n->energy_mj(device, &r->energy_mj);
    if (code == NVML_GPU_IS_LOST)
        return code;
    r->has_energy = code == NVML_OK;
    r->has_clock = n->clock_mhz != NULL && n->clock_mhz(device, NVML_CLOCK_SM, &r->sm_mhz) == NVML_OK;
    int power_code = read_power(n, device, &r->power_mw);
    r->has_power = power_code == NVML_OK;
    r->has_utilization = n->utilization != NULL && n->utilization(device, &utilization) == NVML_OK;
    r->utilization_pct = utilization.gpu;
    r->has_reasons = n->event_reasons != NULL && n->event_reasons(device, &r->reasons) == NVML_OK;
    r->limit_mw = enforced_limit(lane, r->t_ns);
    if (r->has_energy || r->has_clock || r->has_power || r->has_utilization || r->has_reasons)
        return NVML_OK;
    return nvml_missing(code) && power_code != NVML_OK ? power_code : code;
}
