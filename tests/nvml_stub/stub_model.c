/* Clock tables and the synthetic power model: what a GPU does with its load, its lock and its power cap.
 *
 * Tables and idle draws are those of public nvidia-smi captures (H100 345..1980 MHz in 15 MHz steps, GB200
 * 120..2062 in steps of 7.5 shown as 8 and 7, A100 210..1410); the curves between them are invented. */
#include "stub_state.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *key, *name;
    uint32_t architecture, pci_device_id;
    double first_mhz, step_mhz;
    uint32_t n_clocks, memory_mhz[2], application_mhz;
    uint32_t limit_min_w, limit_w, memory_gib;
    struct stub_power power;
} models[] = {
    {"h100", "NVIDIA H100 80GB HBM3", 9, 0x233010de, 345, 15, 110, {2619, 1593}, 1980, 200, 700, 80,
     {68, 54, 80, 148, 120, 578, 0.556, 0.72}},
    {"a100", "NVIDIA A100-SXM4-40GB", 7, 0x20b010de, 210, 15, 81, {1215, 0}, 1095, 100, 400, 40,
     {50, 30, 50, 90, 70, 300, 0.574, 0.74}},
    {"b200", "NVIDIA B200", 10, 0x290110de, 120, 7.5, 247, {3996, 3402}, 1965, 200, 1000, 180,
     {198, 60, 110, 230, 180, 720, 0.556, 0.72}},
    {"gb200", "NVIDIA GB200", 10, 0x294110de, 120, 7.5, 260, {3996, 0}, 2062, 200, 1200, 186,
     {164, 66, 130, 270, 220, 900, 0.556, 0.72}},
};

bool stub_model_fill(struct stub_gpu *gpu, const char *key)
{
    for (size_t m = 0; m < sizeof(models) / sizeof(models[0]); m++) {
        if (strcmp(models[m].key, key) != 0)
            continue;
        snprintf(gpu->name, sizeof(gpu->name), "%s", models[m].name);
        gpu->architecture = models[m].architecture;
        gpu->pci_device_id = models[m].pci_device_id;
        gpu->n_clocks = models[m].n_clocks;
        for (uint32_t i = 0; i < gpu->n_clocks; i++)
            gpu->clocks_mhz[i] = (uint32_t)(models[m].first_mhz + models[m].step_mhz * i);
        gpu->n_memory = models[m].memory_mhz[1] != 0 ? 2 : 1;
        memcpy(gpu->memory_mhz, models[m].memory_mhz, sizeof(gpu->memory_mhz));
        gpu->default_application_mhz = models[m].application_mhz;
        gpu->limit_min_mw = models[m].limit_min_w * 1000;
        gpu->limit_default_mw = gpu->limit_max_mw = models[m].limit_w * 1000;
        gpu->memory_bytes = (uint64_t)models[m].memory_gib << 30;
        gpu->model = models[m].power;
        return true;
    }
    return false;
}

static double power_w(const struct stub_gpu *gpu, uint32_t mhz)
{
    const struct stub_power *model = &gpu->model;
    double share = (double)mhz / gpu->clocks_mhz[gpu->n_clocks - 1];
    double volt = model->v_min;
    if (share > model->flat_fraction)
        volt += (1 - model->v_min) * (share - model->flat_fraction) / (1 - model->flat_fraction);
    double s = volt * volt * share;
    return model->idle_w + model->clock_w * s
           + gpu->load_generation * (model->generation_w + model->generation_dyn_w * s)
           + gpu->load_training * (model->training_w + model->training_dyn_w * s);
}

uint32_t stub_model_snap(const struct stub_gpu *gpu, uint32_t mhz)
{
    uint32_t best = gpu->clocks_mhz[0];
    for (uint32_t i = 0; i < gpu->n_clocks; i++) {
        int64_t here = (int64_t)gpu->clocks_mhz[i] - mhz, there = (int64_t)best - mhz;
        if ((here < 0 ? -here : here) <= (there < 0 ? -there : there))
            best = gpu->clocks_mhz[i];
    }
    return best;
}

/* The clock, the draw and the reasons that follow from everything asked of the GPU. */
void stub_model_evaluate(struct stub_gpu *gpu)
{
    uint32_t top = gpu->clocks_mhz[gpu->n_clocks - 1], bottom = gpu->clocks_mhz[0];
    bool busy = gpu->load_generation > 0 || gpu->load_training > 0;
    uint32_t ceiling = top, floor_mhz = bottom;
    if (gpu->effective_max_mhz != 0) { /* a lock supersedes application clocks */
        ceiling = gpu->effective_max_mhz;
        floor_mhz = gpu->effective_min_mhz;
    } else if (gpu->application_mhz != 0) {
        ceiling = gpu->application_mhz;
    }
    gpu->reasons = busy ? 0 : 0x1; /* GpuIdle */
    uint32_t wanted = busy || gpu->context ? ceiling : floor_mhz;
    if (gpu->achieved_limit_mhz != 0 && gpu->achieved_limit_mhz < wanted) {
        wanted = gpu->achieved_limit_mhz;
        gpu->reasons |= gpu->achieved_limit_reasons;
    }
    uint32_t achieved = stub_model_snap(gpu, wanted);
    if (power_w(gpu, achieved) * 1000 > gpu->limit_mw) {
        gpu->reasons |= 0x4; /* SwPowerCap */
        for (uint32_t i = gpu->n_clocks; i-- > 0;) {
            achieved = gpu->clocks_mhz[i];
            if (achieved <= wanted && power_w(gpu, achieved) * 1000 <= gpu->limit_mw)
                break;
        }
    }
    gpu->achieved_mhz = achieved;
    gpu->gpu_power_mw = power_w(gpu, achieved) * 1000;
    gpu->counted_power_mw = gpu->gpu_power_mw + (gpu->module_scope ? gpu->module_extra_mw : 0);
    gpu->ring[gpu->ring_next % STUB_RING].t_ns = gpu->t_ns;
    gpu->ring[gpu->ring_next % STUB_RING].energy_mj = gpu->energy_mj;
    gpu->ring_next++;
}

/* A new lock reaches the clock after the switch delay; the caller has advanced the GPU to now. */
void stub_model_relock(struct stub_gpu *gpu)
{
    gpu->switch_at_ns = gpu->t_ns + (int64_t)(gpu->switch_delay_s * 1e9);
    if (gpu->switch_delay_s <= 0) {
        gpu->switch_at_ns = 0;
        gpu->effective_min_mhz = gpu->locked_min_mhz;
        gpu->effective_max_mhz = gpu->locked_max_mhz;
    }
    stub_model_evaluate(gpu);
}

/* Brings the exact integral, and what of it is published, up to now. */
void stub_model_advance(struct stub_gpu *gpu, int64_t now_ns)
{
    while (gpu->t_ns < now_ns) {
        bool switching = gpu->switch_at_ns != 0 && gpu->switch_at_ns <= now_ns;
        int64_t until_ns = switching ? gpu->switch_at_ns : now_ns;
        int64_t tick_ns = until_ns - until_ns % gpu->publish_ns;
        if (until_ns < gpu->t_ns)
            until_ns = gpu->t_ns;
        if (tick_ns > gpu->t_ns)
            gpu->published_mj = gpu->energy_mj + gpu->counted_power_mw * (double)(tick_ns - gpu->t_ns) * 1e-9;
        double step_s = (double)(until_ns - gpu->t_ns) * 1e-9;
        gpu->energy_mj += gpu->counted_power_mw * step_s;
        if (gpu->reasons & 0x4)
            gpu->power_cap_s += step_s;
        gpu->t_ns = until_ns;
        if (switching) {
            gpu->switch_at_ns = 0;
            gpu->effective_min_mhz = gpu->locked_min_mhz;
            gpu->effective_max_mhz = gpu->locked_max_mhz;
            stub_model_evaluate(gpu);
        }
    }
}

/* The trailing mean that the usual power call shows on recent cards; the GPU is at t_ns = now. */
double stub_model_mean_power_mw(const struct stub_gpu *gpu, double window_s)
{
    int64_t from_ns = gpu->t_ns - (int64_t)(window_s * 1e9), after_ns = gpu->t_ns;
    double after_mj = gpu->energy_mj;
    for (uint32_t back = 1; back <= STUB_RING && back <= gpu->ring_next; back++) {
        uint32_t slot = (gpu->ring_next - back) % STUB_RING;
        int64_t t_ns = gpu->ring[slot].t_ns;
        double energy_mj = gpu->ring[slot].energy_mj;
        if (t_ns <= from_ns) {
            if (after_ns > t_ns)
                energy_mj += (after_mj - energy_mj) * (double)(from_ns - t_ns) / (double)(after_ns - t_ns);
            return (gpu->energy_mj - energy_mj) / window_s;
        }
        after_ns = t_ns;
        after_mj = energy_mj;
    }
    double seen_s = (double)(gpu->t_ns - after_ns) * 1e-9;
    return seen_s > 0 ? (gpu->energy_mj - after_mj) / seen_s : gpu->counted_power_mw;
}
