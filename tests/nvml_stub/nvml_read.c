/* Everything a client reads from a device. Struct layouts follow the documented binary interface. */
#include "stub_calls.h"

#include <stdio.h>
#include <string.h>

/* Opens a getter that needs its output pointer; every getter below reads as: check, answer, end. */
#define READ_BEGIN(device, pointer, format, ...)                                               \
    struct call call;                                                                          \
    if (!call_begin(&call, __func__, CALL_READ, device, format, __VA_ARGS__))                  \
        return call.result;                                                                    \
    if ((pointer) == NULL || call.gpu == NULL)                                                 \
        return call_end(&call, NVML_INVALID_ARGUMENT)

#define GET_NUMBER(function, type, expression)                                                 \
    nvmlReturn_t function(nvmlDevice_t device, type *value);                                   \
    nvmlReturn_t function(nvmlDevice_t device, type *value)                                    \
    {                                                                                          \
        READ_BEGIN(device, value, "%s", "");                                                   \
        *value = (type)(expression);                                                           \
        return call_end(&call, NVML_OK);                                                       \
    }

#define GET_TEXT(function, field)                                                              \
    nvmlReturn_t function(nvmlDevice_t device, char *text, unsigned length);                   \
    nvmlReturn_t function(nvmlDevice_t device, char *text, unsigned length)                    \
    {                                                                                          \
        READ_BEGIN(device, text, "%s", "");                                                    \
        if (strlen(call.gpu->field) >= length)                                                 \
            return call_end(&call, NVML_TOO_SMALL);                                            \
        memcpy(text, call.gpu->field, strlen(call.gpu->field) + 1);                            \
        return call_end(&call, NVML_OK);                                                       \
    }

static uint64_t counter_mj(const struct stub_gpu *gpu)
{
    double value = gpu->published_mj + gpu->counter_offset_mj;
    return value > 0 ? (uint64_t)value : 0;
}

/* One second of averaging, as on recent cards; the A100 (GA100) shows the present draw. */
static double usual_power_mw(const struct stub_gpu *gpu)
{
    double module_mw = gpu->module_scope ? gpu->module_extra_mw : 0;
    return gpu->architecture == 7 ? gpu->gpu_power_mw : stub_model_mean_power_mw(gpu, 1.0) - module_mw;
}

static unsigned utilisation_pct(const struct stub_gpu *gpu)
{
    double load = gpu->load_generation + gpu->load_training;
    return load >= 1 ? 100 : (unsigned)(load * 100 + 0.5);
}

#define ALL_REASONS 0x1ffULL

GET_TEXT(nvmlDeviceGetName, name)
GET_TEXT(nvmlDeviceGetUUID, uuid)
GET_TEXT(nvmlDeviceGetSerial, serial)
GET_NUMBER(nvmlDeviceGetIndex, unsigned, call.gpu - call.stub->state->gpu)
GET_NUMBER(nvmlDeviceGetMinorNumber, unsigned, call.gpu->minor)
GET_NUMBER(nvmlDeviceGetModuleId, unsigned, call.gpu->module_id)
GET_NUMBER(nvmlDeviceGetArchitecture, unsigned, call.gpu->architecture)
GET_NUMBER(nvmlDeviceGetPersistenceMode, unsigned, call.gpu->persistence)
GET_NUMBER(nvmlDeviceGetPerformanceState, unsigned, 0)
GET_NUMBER(nvmlDeviceGetPowerUsage, unsigned, usual_power_mw(call.gpu))
GET_NUMBER(nvmlDeviceGetTotalEnergyConsumption, unsigned long long, counter_mj(call.gpu))
GET_NUMBER(nvmlDeviceGetPowerManagementLimit, unsigned, call.gpu->limit_mw)
GET_NUMBER(nvmlDeviceGetPowerManagementDefaultLimit, unsigned, call.gpu->limit_default_mw)
GET_NUMBER(nvmlDeviceGetEnforcedPowerLimit, unsigned, call.gpu->limit_mw)
GET_NUMBER(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long, call.gpu->reasons)
GET_NUMBER(nvmlDeviceGetCurrentClocksThrottleReasons, unsigned long long, call.gpu->reasons)
GET_NUMBER(nvmlDeviceGetSupportedClocksEventReasons, unsigned long long, ALL_REASONS)
GET_NUMBER(nvmlDeviceGetSupportedClocksThrottleReasons, unsigned long long, ALL_REASONS)

static uint32_t clock_mhz(const struct stub_gpu *gpu, unsigned type, bool maximum)
{
    if (type == 2) /* NVML_CLOCK_MEM */
        return gpu->memory_mhz[0];
    uint32_t mhz = maximum ? gpu->clocks_mhz[gpu->n_clocks - 1] : gpu->achieved_mhz;
    return type == 3 ? mhz * 9 / 10 : mhz; /* NVML_CLOCK_VIDEO follows at a distance */
}

nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, unsigned type, unsigned *mhz);
nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, unsigned type, unsigned *mhz)
{
    READ_BEGIN(device, mhz, "type=%u", type);
    if (type > 3)
        return call_end(&call, NVML_INVALID_ARGUMENT);
    *mhz = clock_mhz(call.gpu, type, false);
    return call_end(&call, NVML_OK);
}

nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, unsigned type, unsigned *mhz);
nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, unsigned type, unsigned *mhz)
{
    READ_BEGIN(device, mhz, "type=%u", type);
    if (type > 3)
        return call_end(&call, NVML_INVALID_ARGUMENT);
    *mhz = clock_mhz(call.gpu, type, true);
    return call_end(&call, NVML_OK);
}

nvmlReturn_t nvmlDeviceGetClock(nvmlDevice_t device, unsigned type, unsigned id, unsigned *mhz);
nvmlReturn_t nvmlDeviceGetClock(nvmlDevice_t device, unsigned type, unsigned id, unsigned *mhz)
{
    READ_BEGIN(device, mhz, "type=%u id=%u", type, id);
    if (type > 3 || id > 3)
        return call_end(&call, NVML_INVALID_ARGUMENT);
    *mhz = clock_mhz(call.gpu, type, id != 0); /* 0: current; targets and customer boost: the top */
    return call_end(&call, NVML_OK);
}

nvmlReturn_t nvmlDeviceGetSupportedMemoryClocks(nvmlDevice_t device, unsigned *count, unsigned *clocks);
nvmlReturn_t nvmlDeviceGetSupportedMemoryClocks(nvmlDevice_t device, unsigned *count, unsigned *clocks)
{
    READ_BEGIN(device, count, "count=%u", count != NULL ? *count : 0);
    unsigned room = *count;
    *count = call.gpu->n_memory;
    if (clocks == NULL || room < *count)
        return call_end(&call, NVML_TOO_SMALL);
    for (unsigned i = 0; i < *count; i++)
        clocks[i] = call.gpu->memory_mhz[i];
    return call_end(&call, NVML_OK);
}

nvmlReturn_t nvmlDeviceGetSupportedGraphicsClocks(nvmlDevice_t device, unsigned memory, unsigned *count,
                                                  unsigned *clocks);
nvmlReturn_t nvmlDeviceGetSupportedGraphicsClocks(nvmlDevice_t device, unsigned memory, unsigned *count,
                                                  unsigned *clocks)
{
    READ_BEGIN(device, count, "memory_mhz=%u count=%u", memory, count != NULL ? *count : 0);
    if (memory == 0 || (memory != call.gpu->memory_mhz[0] && memory != call.gpu->memory_mhz[1]))
        return call_end(&call, NVML_NOT_FOUND);
    unsigned room = *count;
    *count = call.gpu->n_clocks;
    if (clocks == NULL || room < *count)
        return call_end(&call, NVML_TOO_SMALL);
    for (unsigned i = 0; i < *count; i++)
        clocks[i] = call.gpu->clocks_mhz[*count - 1 - i];
    return call_end(&call, NVML_OK);
}

static nvmlReturn_t application_clock(const char *function, nvmlDevice_t device, unsigned type, bool standing,
                                      unsigned *mhz)
{
    struct call call;
    if (!call_begin(&call, function, CALL_READ, device, "type=%u", type))
        return call.result;
    if (mhz == NULL || call.gpu == NULL || type > 3)
        return call_end(&call, NVML_INVALID_ARGUMENT);
    *mhz = type == 2 ? call.gpu->memory_mhz[0] : call.gpu->default_application_mhz;
    if (type != 2 && standing && call.gpu->application_mhz != 0)
        *mhz = call.gpu->application_mhz;
    return call_end(&call, NVML_OK);
}

nvmlReturn_t nvmlDeviceGetApplicationsClock(nvmlDevice_t device, unsigned type, unsigned *mhz);
nvmlReturn_t nvmlDeviceGetApplicationsClock(nvmlDevice_t device, unsigned type, unsigned *mhz)
{
    return application_clock(__func__, device, type, true, mhz);
}

nvmlReturn_t nvmlDeviceGetDefaultApplicationsClock(nvmlDevice_t device, unsigned type, unsigned *mhz);
nvmlReturn_t nvmlDeviceGetDefaultApplicationsClock(nvmlDevice_t device, unsigned type, unsigned *mhz)
{
    return application_clock(__func__, device, type, false, mhz);
}

nvmlReturn_t nvmlDeviceGetAPIRestriction(nvmlDevice_t device, unsigned api, unsigned *restricted);
nvmlReturn_t nvmlDeviceGetAPIRestriction(nvmlDevice_t device, unsigned api, unsigned *restricted)
{
    READ_BEGIN(device, restricted, "api=%u", api);
    if (api > 1)
        return call_end(&call, NVML_INVALID_ARGUMENT);
    if (api == 1)
        return call_end(&call, NVML_NOT_SUPPORTED);
    *restricted = call.gpu->application_restricted;
    return call_end(&call, NVML_OK);
}

nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device, unsigned *low, unsigned *high);
nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device, unsigned *low, unsigned *high)
{
    READ_BEGIN(device, low, "%s", "");
    if (high == NULL)
        return call_end(&call, NVML_INVALID_ARGUMENT);
    *low = call.gpu->limit_min_mw;
    *high = call.gpu->limit_max_mw;
    return call_end(&call, NVML_OK);
}

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *current, unsigned *pending);
nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *current, unsigned *pending)
{
    READ_BEGIN(device, current, "%s", "");
    if (pending == NULL)
        return call_end(&call, NVML_INVALID_ARGUMENT);
    *current = *pending = call.gpu->mig;
    return call_end(&call, NVML_OK);
}

struct utilisation { unsigned gpu, memory; };

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, struct utilisation *rates);
nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, struct utilisation *rates)
{
    READ_BEGIN(device, rates, "%s", "");
    if (call.gpu->mig)
        return call_end(&call, NVML_NOT_SUPPORTED);
    rates->gpu = utilisation_pct(call.gpu);
    rates->memory = (unsigned)(rates->gpu * (call.gpu->load_generation > call.gpu->load_training ? 0.7 : 0.4));
    return call_end(&call, NVML_OK);
}

struct pci_info {
    char bus_id_legacy[16];
    unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
    char bus_id[32];
};

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, struct pci_info *pci);
nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, struct pci_info *pci)
{
    READ_BEGIN(device, pci, "%s", "");
    memset(pci, 0, sizeof(*pci));
    pci->domain = call.gpu->domain;
    pci->bus = call.gpu->bus;
    pci->device = call.gpu->device;
    pci->pci_device_id = call.gpu->pci_device_id;
    snprintf(pci->bus_id, sizeof(pci->bus_id), "%.31s", call.gpu->bus_id);
    snprintf(pci->bus_id_legacy, sizeof(pci->bus_id_legacy), "%.15s", call.gpu->bus_id + 4);
    return call_end(&call, NVML_OK);
}

struct memory { unsigned long long total, free, used; };
struct memory_v2 { unsigned version; unsigned long long total, reserved, free, used; };

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, struct memory *memory);
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, struct memory *memory)
{
    READ_BEGIN(device, memory, "%s", "");
    memory->total = call.gpu->memory_bytes;
    memory->used = call.gpu->context ? call.gpu->memory_bytes / 2 : 0;
    memory->free = memory->total - memory->used;
    return call_end(&call, NVML_OK);
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, struct memory_v2 *memory);
nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, struct memory_v2 *memory)
{
    READ_BEGIN(device, memory, "%s", "");
    memory->total = call.gpu->memory_bytes;
    memory->reserved = 0;
    memory->used = call.gpu->context ? call.gpu->memory_bytes / 2 : 0;
    memory->free = memory->total - memory->used;
    return call_end(&call, NVML_OK);
}

static int temperature_c(const struct stub_gpu *gpu)
{
    return 28 + (int)(gpu->gpu_power_mw / 20000);
}

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, unsigned sensor, unsigned *celsius);
nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, unsigned sensor, unsigned *celsius)
{
    READ_BEGIN(device, celsius, "sensor=%u", sensor);
    *celsius = (unsigned)temperature_c(call.gpu);
    return call_end(&call, NVML_OK);
}

struct temperature { unsigned version, sensor; int celsius; };

nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, struct temperature *temperature);
nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, struct temperature *temperature)
{
    READ_BEGIN(device, temperature, "%s", "");
    temperature->celsius = temperature_c(call.gpu);
    return call_end(&call, NVML_OK);
}

/* Processes are the driver's business; the stub knows loads, not who made them. */
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count, void *processes);
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count, void *processes)
{
    READ_BEGIN(device, count, "%s", processes != NULL ? "list" : "count");
    *count = 0;
    return call_end(&call, NVML_OK);
}

struct field_value {
    unsigned field, scope;
    long long timestamp_us, latency_us;
    unsigned value_type;
    nvmlReturn_t result;
    union { double real; unsigned u; unsigned long long ull; } value;
};

static nvmlReturn_t read_field(const struct stub_gpu *gpu, struct field_value *field)
{
    double module_mw = gpu->module_extra_mw, mw = gpu->gpu_power_mw;
    field->value.ull = 0;
    switch (field->field) {
    case 83: case 191: /* total energy, mJ */
        field->value_type = 3;
        field->value.ull = counter_mj(gpu);
        return NVML_OK;
    case 74: /* time below the wanted clock for power, ns */
        field->value_type = 3;
        field->value.ull = (unsigned long long)(gpu->power_cap_s * 1e9);
        return NVML_OK;
    case 185: /* one-second mean; not on GA100 */
        if (gpu->architecture == 7)
            return NVML_NOT_SUPPORTED;
        mw = stub_model_mean_power_mw(gpu, 1.0) - (gpu->module_scope ? module_mw : 0);
        break;
    case 186:
        break;
    default:
        return NVML_NOT_SUPPORTED;
    }
    field->value_type = 1;
    if (field->scope == 1 && !gpu->module_scope && module_mw <= 0)
        return NVML_NOT_SUPPORTED;
    if (field->scope > 2)
        return NVML_INVALID_ARGUMENT;
    field->value.u = (unsigned)(field->scope == 1 ? mw + module_mw : field->scope == 2 ? gpu->model.idle_w * 550 : mw);
    return NVML_OK;
}

nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, struct field_value *fields);
nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, struct field_value *fields)
{
    READ_BEGIN(device, fields, "count=%d first=%u", count, fields != NULL && count > 0 ? fields[0].field : 0);
    bool any = false;
    for (int i = 0; i < count; i++) {
        fields[i].timestamp_us = call.gpu->t_ns / 1000;
        fields[i].latency_us = 0;
        fields[i].result = read_field(call.gpu, &fields[i]);
        any = any || fields[i].result == NVML_OK;
    }
    return call_end(&call, any ? NVML_OK : NVML_NOT_SUPPORTED);
}
