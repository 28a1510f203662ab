/* Init, shutdown, counting and finding devices, error texts. */
#include "stub_calls.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

static nvmlReturn_t copy_text(char *to, unsigned size, const char *from)
{
    if (to == NULL)
        return NVML_INVALID_ARGUMENT;
    if (strlen(from) >= size)
        return NVML_TOO_SMALL;
    memcpy(to, from, strlen(from) + 1);
    return NVML_OK;
}

static void count_client(struct stub_state *state, bool enter)
{
    int32_t self = (int32_t)getpid(), wanted = enter ? 0 : self;
    for (unsigned i = 0; i < STUB_MAX_CLIENTS; i++)
        if (state->client[i] == wanted) {
            state->client[i] = enter ? self : 0;
            break;
        }
    stub_clients_prune(state);
}

static nvmlReturn_t init(const char *function, unsigned flags)
{
    struct call call;
    if (!call_begin(&call, function, CALL_INIT, NULL, "flags=%u", flags))
        return call.result;
    if (call_initialised(1) == 1)
        count_client(call.stub->state, true);
    return call_end(&call, NVML_OK);
}

nvmlReturn_t nvmlInit(void);
nvmlReturn_t nvmlInit_v2(void);
nvmlReturn_t nvmlInitWithFlags(unsigned flags);
nvmlReturn_t nvmlInit(void) { return init("nvmlInit", 0); }
nvmlReturn_t nvmlInit_v2(void) { return init("nvmlInit_v2", 0); }
nvmlReturn_t nvmlInitWithFlags(unsigned flags) { return init("nvmlInitWithFlags", flags); }

nvmlReturn_t nvmlShutdown(void);
nvmlReturn_t nvmlShutdown(void)
{
    struct call call;
    if (!call_begin(&call, __func__, CALL_READ, NULL, "%s", ""))
        return call.result;
    if (call_initialised(-1) == 0)
        count_client(call.stub->state, false);
    return call_end(&call, NVML_OK);
}

const char *nvmlErrorString(nvmlReturn_t result);
const char *nvmlErrorString(nvmlReturn_t result)
{
    static const char *const text[] = {
        "Success", "Uninitialized", "Invalid Argument", "Not Supported", "Insufficient Permissions",
        "Already Initialized", "Not Found", "Insufficient Size", "Insufficient External Power",
        "Driver Not Loaded", "Timeout", "Interrupt Request Issue", "NVML Shared Library Not Found",
        "Function Not Found", "Corrupted infoROM", "GPU is lost", "GPU requires reset",
        "The operating system has blocked the request", "Driver/library version mismatch", "In use by another client",
        "Insufficient memory", "No data", "vGPU ECC is not supported", "Insufficient resources",
        "Frequency not supported", "Argument version mismatch", "Deprecated", "Not ready", "GPU not found",
        "Invalid state", "Reset type not supported",
    };
    if (result < 0 || (size_t)result >= sizeof(text) / sizeof(text[0]))
        return "Unknown Error";
    return text[result];
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned length);
nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned length)
{
    struct call call;
    if (!call_begin(&call, __func__, CALL_READ, NULL, "%s", ""))
        return call.result;
    return call_end(&call, copy_text(version, length, call.stub->state->driver));
}

nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned length);
nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned length)
{
    struct call call;
    if (!call_begin(&call, __func__, CALL_READ, NULL, "%s", ""))
        return call.result;
    char text[48];
    snprintf(text, sizeof(text), "13.%.31s", call.stub->state->driver);
    return call_end(&call, copy_text(version, length, text));
}

static nvmlReturn_t cuda_version(const char *function, int *version)
{
    struct call call;
    if (!call_begin(&call, function, CALL_READ, NULL, "%s", ""))
        return call.result;
    if (version == NULL)
        return call_end(&call, NVML_INVALID_ARGUMENT);
    *version = 13000;
    return call_end(&call, NVML_OK);
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version);
nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version);
nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version) { return cuda_version("nvmlSystemGetCudaDriverVersion", version); }
nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version) { return cuda_version("nvmlSystemGetCudaDriverVersion_v2", version); }

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count);
nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count)
{
    struct call call;
    if (!call_begin(&call, __func__, CALL_READ, NULL, "%s", ""))
        return call.result;
    if (count == NULL)
        return call_end(&call, NVML_INVALID_ARGUMENT);
    *count = call.stub->state->n_gpus;
    return call_end(&call, NVML_OK);
}

nvmlReturn_t nvmlDeviceGetCount(unsigned *count);
nvmlReturn_t nvmlDeviceGetCount(unsigned *count) { return nvmlDeviceGetCount_v2(count); }

/* The device is found before the call begins, so that a fault rule can refuse the handle of one GPU. */
static nvmlReturn_t handle(const char *function, int index, const char *wanted, nvmlDevice_t *device)
{
    struct call call;
    nvmlDevice_t found = index >= 0 ? call_device(index) : NULL;
    if (!call_begin(&call, function, CALL_READ, found, "%s", wanted))
        return call.result;
    if (device == NULL)
        return call_end(&call, NVML_INVALID_ARGUMENT);
    if (found == NULL)
        return call_end(&call, NVML_NOT_FOUND);
    *device = found;
    return call_end(&call, NVML_OK);
}

/* The index of the GPU whose text field at this offset is the wanted one; -1 when there is none. */
static int find(const char *wanted, size_t offset)
{
    for (unsigned i = 0; wanted != NULL && call_device((int)i) != NULL; i++)
        if (strcasecmp((const char *)(void *)call_device((int)i) + offset, wanted) == 0)
            return (int)i;
    return -1;
}

static nvmlReturn_t handle_by_index(const char *function, unsigned index, nvmlDevice_t *device)
{
    char text[16];
    snprintf(text, sizeof(text), "%u", index);
    if (index <= STUB_MAX_GPUS && call_device((int)index) != NULL)
        return handle(function, (int)index, text, device);
    nvmlReturn_t result = handle(function, -1, text, device);
    return result == NVML_NOT_FOUND ? NVML_INVALID_ARGUMENT : result;
}

static nvmlReturn_t handle_by_bus_id(const char *function, const char *wanted, nvmlDevice_t *device)
{
    char full[48];
    snprintf(full, sizeof(full), "%s%.40s", wanted != NULL && strlen(wanted) == 12 ? "0000" : "",
             wanted != NULL ? wanted : "");
    return handle(function, find(full, offsetof(struct stub_gpu, bus_id)), full, device);
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device);
nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned index, nvmlDevice_t *device);
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device)
{
    return handle_by_index(__func__, index, device);
}
nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned index, nvmlDevice_t *device)
{
    return handle_by_index(__func__, index, device);
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *device);
nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *bus_id, nvmlDevice_t *device);
nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *device)
{
    return handle_by_bus_id(__func__, bus_id, device);
}
nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *bus_id, nvmlDevice_t *device)
{
    return handle_by_bus_id(__func__, bus_id, device);
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device);
nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    return handle(__func__, find(uuid, offsetof(struct stub_gpu, uuid)), uuid != NULL ? uuid : "", device);
}

nvmlReturn_t nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *device);
nvmlReturn_t nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *device)
{
    return handle(__func__, find(serial, offsetof(struct stub_gpu, serial)), serial != NULL ? serial : "", device);
}
