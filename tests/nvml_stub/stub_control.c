/* The test's side of the stub: what stub.py calls through ctypes. Not part of NVML. */
#include "stub_state.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

int eerl_stub_create(const char *dir, const char *model, unsigned gpus, const char *seed);
int eerl_stub_create(const char *dir, const char *model, unsigned gpus, const char *seed)
{
    return stub_create(dir, model, gpus, seed);
}

void *eerl_stub_open(const char *dir);
void *eerl_stub_open(const char *dir)
{
    return stub_open(dir);
}

void eerl_stub_close(void *stub);
void eerl_stub_close(void *stub)
{
    stub_close(stub);
}

unsigned eerl_stub_gpus(struct stub *stub);
unsigned eerl_stub_gpus(struct stub *stub)
{
    return stub->state->n_gpus;
}

/* One table serves reading and writing by name; `derived` fields are read only. */
enum field_type { FIELD_U32, FIELD_U64, FIELD_F64 };

static const struct {
    const char *name;
    enum field_type type;
    size_t offset;
    bool derived;
} fields[] = {
    {"minor", FIELD_U32, offsetof(struct stub_gpu, minor), false},
    {"mig", FIELD_U32, offsetof(struct stub_gpu, mig), false},
    {"persistence", FIELD_U32, offsetof(struct stub_gpu, persistence), false},
    {"power_limit_mw", FIELD_U32, offsetof(struct stub_gpu, limit_mw), false},
    {"locked_min_mhz", FIELD_U32, offsetof(struct stub_gpu, locked_min_mhz), false},
    {"locked_max_mhz", FIELD_U32, offsetof(struct stub_gpu, locked_max_mhz), false},
    {"memory_locked_max_mhz", FIELD_U32, offsetof(struct stub_gpu, memory_locked_max_mhz), true},
    {"application_mhz", FIELD_U32, offsetof(struct stub_gpu, application_mhz), false},
    {"application_restricted", FIELD_U32, offsetof(struct stub_gpu, application_restricted), false},
    {"achieved_limit_mhz", FIELD_U32, offsetof(struct stub_gpu, achieved_limit_mhz), false},
    {"achieved_limit_reasons", FIELD_U64, offsetof(struct stub_gpu, achieved_limit_reasons), false},
    {"switch_delay_s", FIELD_F64, offsetof(struct stub_gpu, switch_delay_s), false},
    {"load_generation", FIELD_F64, offsetof(struct stub_gpu, load_generation), false},
    {"load_training", FIELD_F64, offsetof(struct stub_gpu, load_training), false},
    {"context", FIELD_U32, offsetof(struct stub_gpu, context), false},
    {"module_extra_mw", FIELD_F64, offsetof(struct stub_gpu, module_extra_mw), false},
    {"module_scope", FIELD_U32, offsetof(struct stub_gpu, module_scope), false},
    {"achieved_mhz", FIELD_U32, offsetof(struct stub_gpu, achieved_mhz), true},
    {"reasons", FIELD_U64, offsetof(struct stub_gpu, reasons), true},
    {"power_mw", FIELD_F64, offsetof(struct stub_gpu, gpu_power_mw), true},
    {"true_energy_mj", FIELD_F64, offsetof(struct stub_gpu, energy_mj), true},
    {"power_cap_s", FIELD_F64, offsetof(struct stub_gpu, power_cap_s), true},
    {"counter_offset_mj", FIELD_F64, offsetof(struct stub_gpu, counter_offset_mj), false},
    {"published_mj", FIELD_F64, offsetof(struct stub_gpu, published_mj), true},
    {"idle_w", FIELD_F64, offsetof(struct stub_gpu, model.idle_w), false},
    {"clock_w", FIELD_F64, offsetof(struct stub_gpu, model.clock_w), false},
    {"generation_w", FIELD_F64, offsetof(struct stub_gpu, model.generation_w), false},
    {"generation_dyn_w", FIELD_F64, offsetof(struct stub_gpu, model.generation_dyn_w), false},
    {"training_w", FIELD_F64, offsetof(struct stub_gpu, model.training_w), false},
    {"training_dyn_w", FIELD_F64, offsetof(struct stub_gpu, model.training_dyn_w), false},
};

static const size_t n_fields = sizeof(fields) / sizeof(fields[0]);

int eerl_stub_get(struct stub *stub, unsigned gpu, const char *name, double *value);
int eerl_stub_get(struct stub *stub, unsigned gpu, const char *name, double *value)
{
    for (size_t i = 0; i < n_fields && gpu < stub->state->n_gpus; i++) {
        if (strcmp(fields[i].name, name) != 0)
            continue;
        const char *at = (const char *)&stub->state->gpu[gpu] + fields[i].offset;
        stub_lock(stub);
        stub_model_advance(&stub->state->gpu[gpu], stub_now_ns());
        if (fields[i].type == FIELD_U32)
            *value = *(const uint32_t *)(const void *)at;
        else if (fields[i].type == FIELD_U64)
            *value = (double)*(const uint64_t *)(const void *)at;
        else
            *value = *(const double *)(const void *)at;
        stub_unlock(stub);
        return 0;
    }
    return ENOENT;
}

/* Sets several fields of a GPU at one instant, so that no energy is counted in between. */
int eerl_stub_set(struct stub *stub, unsigned gpu, unsigned count, const char *const *names, const double *values);
int eerl_stub_set(struct stub *stub, unsigned gpu, unsigned count, const char *const *names, const double *values)
{
    int failure = gpu < stub->state->n_gpus ? 0 : ENOENT;
    if (failure != 0)
        return failure;
    struct stub_gpu *target = &stub->state->gpu[gpu];
    stub_lock(stub);
    stub_model_advance(target, stub_now_ns());
    uint32_t low = target->locked_min_mhz, high = target->locked_max_mhz;
    for (unsigned n = 0; n < count; n++) {
        size_t i = 0;
        while (i < n_fields && strcmp(fields[i].name, names[n]) != 0)
            i++;
        if (i == n_fields || fields[i].derived) {
            failure = i == n_fields ? ENOENT : EPERM;
            break;
        }
        char *at = (char *)target + fields[i].offset;
        if (fields[i].type == FIELD_U32)
            *(uint32_t *)(void *)at = (uint32_t)values[n];
        else if (fields[i].type == FIELD_U64)
            *(uint64_t *)(void *)at = (uint64_t)values[n];
        else
            *(double *)(void *)at = values[n];
    }
    if (low != target->locked_min_mhz || high != target->locked_max_mhz)
        stub_model_relock(target); /* as if another root process had set it, but not in the call log */
    else
        stub_model_evaluate(target);
    stub_unlock(stub);
    return failure;
}

static char *text_field(struct stub *stub, unsigned gpu, const char *name, size_t *size)
{
    struct stub_gpu *target = gpu < stub->state->n_gpus ? &stub->state->gpu[gpu] : NULL;
    if (strcmp(name, "driver") == 0) {
        *size = sizeof(stub->state->driver);
        return stub->state->driver;
    }
    *size = STUB_NAME;
    if (target != NULL && strcmp(name, "name") == 0)
        return target->name;
    if (target != NULL && strcmp(name, "uuid") == 0)
        return target->uuid;
    *size = sizeof(target->bus_id);
    return target != NULL && strcmp(name, "bus_id") == 0 ? target->bus_id : NULL;
}

int eerl_stub_get_text(struct stub *stub, unsigned gpu, const char *name, char *text, size_t length);
int eerl_stub_get_text(struct stub *stub, unsigned gpu, const char *name, char *text, size_t length)
{
    size_t size = 0;
    const char *field = text_field(stub, gpu, name, &size);
    if (field == NULL)
        return ENOENT;
    stub_lock(stub);
    snprintf(text, length, "%.*s", (int)size, field);
    stub_unlock(stub);
    return 0;
}

int eerl_stub_set_text(struct stub *stub, unsigned gpu, const char *name, const char *text);
int eerl_stub_set_text(struct stub *stub, unsigned gpu, const char *name, const char *text)
{
    size_t size = 0;
    char *field = text_field(stub, gpu, name, &size);
    if (field == NULL || strlen(text) >= size)
        return ENOENT;
    stub_lock(stub);
    snprintf(field, size, "%s", text);
    stub_unlock(stub);
    return 0;
}

unsigned eerl_stub_clocks(struct stub *stub, unsigned gpu, uint32_t *clocks, unsigned room);
unsigned eerl_stub_clocks(struct stub *stub, unsigned gpu, uint32_t *clocks, unsigned room)
{
    const struct stub_gpu *target = &stub->state->gpu[gpu];
    for (unsigned i = 0; i < target->n_clocks && i < room; i++)
        clocks[i] = target->clocks_mhz[i];
    return target->n_clocks;
}

void eerl_stub_log_all(struct stub *stub, unsigned on);
void eerl_stub_log_all(struct stub *stub, unsigned on)
{
    stub->state->log_all = on;
}

int eerl_stub_add_fault(struct stub *stub, const char *function, int gpu, long long uid, unsigned skip_calls,
                        double after_s, unsigned times, int code, unsigned delay_ms);
int eerl_stub_add_fault(struct stub *stub, const char *function, int gpu, long long uid, unsigned skip_calls,
                        double after_s, unsigned times, int code, unsigned delay_ms)
{
    int found = -1;
    stub_lock(stub);
    for (int i = 0; i < STUB_MAX_FAULTS && found < 0; i++) {
        struct stub_fault *fault = &stub->state->fault[i];
        if (fault->active)
            continue;
        memset(fault, 0, sizeof(*fault));
        snprintf(fault->function, sizeof(fault->function), "%s", function);
        fault->gpu = gpu;
        fault->uid = uid;
        fault->skip_calls = skip_calls;
        fault->times = times;
        fault->from_ns = stub_now_ns() + (int64_t)(after_s * 1e9);
        fault->code = code;
        fault->delay_ms = delay_ms;
        fault->active = true;
        found = i;
    }
    stub_unlock(stub);
    return found;
}

int eerl_stub_fault_fired(struct stub *stub, int id);
int eerl_stub_fault_fired(struct stub *stub, int id)
{
    return id >= 0 && id < STUB_MAX_FAULTS ? (int)stub->state->fault[id].fired : -1;
}

void eerl_stub_clear_faults(struct stub *stub, int id);
void eerl_stub_clear_faults(struct stub *stub, int id)
{
    stub_lock(stub);
    for (int i = 0; i < STUB_MAX_FAULTS; i++)
        if (id < 0 || id == i)
            stub->state->fault[i].active = false;
    stub_unlock(stub);
}

unsigned eerl_stub_clients(struct stub *stub, int32_t *pids, unsigned room);
unsigned eerl_stub_clients(struct stub *stub, int32_t *pids, unsigned room)
{
    unsigned count = 0;
    stub_lock(stub);
    stub_clients_prune(stub->state);
    for (unsigned i = 0; i < STUB_MAX_CLIENTS && count < room; i++)
        if (stub->state->client[i] != 0)
            pids[count++] = stub->state->client[i];
    stub_unlock(stub);
    return count;
}
