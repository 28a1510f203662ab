/* Everything a client sets. All of it is logged; most of it needs CAP_SYS_ADMIN, as in the driver. */
#include "stub_calls.h"

#define LIMIT_TDP 0xffffff01u
#define LIMIT_UNLIMITED 0xffffff02u

static bool is_symbolic(unsigned mhz)
{
    return mhz == LIMIT_TDP || mhz == LIMIT_UNLIMITED;
}

nvmlReturn_t nvmlDeviceSetGpuLockedClocks(nvmlDevice_t device, unsigned low, unsigned high);
nvmlReturn_t nvmlDeviceSetGpuLockedClocks(nvmlDevice_t device, unsigned low, unsigned high)
{
    struct call call;
    if (!call_begin(&call, __func__, CALL_SET_ROOT, device, "min=%u max=%u", low, high))
        return call.result;
    if (call.gpu == NULL || low == 0 || high == 0 || low > high || is_symbolic(low) != is_symbolic(high))
        return call_end(&call, NVML_INVALID_ARGUMENT);
    uint32_t top = call.gpu->clocks_mhz[call.gpu->n_clocks - 1];
    call.gpu->locked_min_mhz = is_symbolic(low) ? top : stub_model_snap(call.gpu, low);
    call.gpu->locked_max_mhz = is_symbolic(high) ? top : stub_model_snap(call.gpu, high);
    stub_model_relock(call.gpu);
    return call_end(&call, NVML_OK);
}

nvmlReturn_t nvmlDeviceResetGpuLockedClocks(nvmlDevice_t device);
nvmlReturn_t nvmlDeviceResetGpuLockedClocks(nvmlDevice_t device)
{
    struct call call;
    if (!call_begin(&call, __func__, CALL_SET_ROOT, device, "%s", ""))
        return call.result;
    if (call.gpu == NULL)
        return call_end(&call, NVML_INVALID_ARGUMENT);
    call.gpu->locked_min_mhz = call.gpu->locked_max_mhz = 0;
    stub_model_relock(call.gpu);
    return call_end(&call, NVML_OK);
}

nvmlReturn_t nvmlDeviceSetMemoryLockedClocks(nvmlDevice_t device, unsigned low, unsigned high);
nvmlReturn_t nvmlDeviceSetMemoryLockedClocks(nvmlDevice_t device, unsigned low, unsigned high)
{
    struct call call;
    if (!call_begin(&call, __func__, CALL_SET_ROOT, device, "min=%u max=%u", low, high))
        return call.result;
    if (call.gpu == NULL || low > high)
        return call_end(&call, NVML_INVALID_ARGUMENT);
    call.gpu->memory_locked_min_mhz = low;
    call.gpu->memory_locked_max_mhz = high;
    return call_end(&call, NVML_OK);
}

nvmlReturn_t nvmlDeviceResetMemoryLockedClocks(nvmlDevice_t device);
nvmlReturn_t nvmlDeviceResetMemoryLockedClocks(nvmlDevice_t device)
{
    struct call call;
    if (!call_begin(&call, __func__, CALL_SET_ROOT, device, "%s", ""))
        return call.result;
    if (call.gpu == NULL)
        return call_end(&call, NVML_INVALID_ARGUMENT);
    call.gpu->memory_locked_min_mhz = call.gpu->memory_locked_max_mhz = 0;
    return call_end(&call, NVML_OK);
}

/* Application clocks are root's unless the API restriction is lifted. */
static bool application_allowed(const struct call *call)
{
    return call->gpu != NULL && (!call->gpu->application_restricted || call_is_privileged(call));
}

nvmlReturn_t nvmlDeviceSetApplicationsClocks(nvmlDevice_t device, unsigned memory, unsigned graphics);
nvmlReturn_t nvmlDeviceSetApplicationsClocks(nvmlDevice_t device, unsigned memory, unsigned graphics)
{
    struct call call;
    if (!call_begin(&call, __func__, CALL_SET, device, "memory=%u graphics=%u", memory, graphics))
        return call.result;
    if (!application_allowed(&call))
        return call_end(&call, NVML_NO_PERMISSION);
    bool known = memory == call.gpu->memory_mhz[0] || (memory != 0 && memory == call.gpu->memory_mhz[1]);
    if (!known || stub_model_snap(call.gpu, graphics) != graphics)
        return call_end(&call, NVML_INVALID_ARGUMENT); /* unlike a lock, a pair must be a supported one */
    call.gpu->application_mhz = graphics;
    stub_model_relock(call.gpu);
    return call_end(&call, NVML_OK);
}

nvmlReturn_t nvmlDeviceResetApplicationsClocks(nvmlDevice_t device);
nvmlReturn_t nvmlDeviceResetApplicationsClocks(nvmlDevice_t device)
{
    struct call call;
    if (!call_begin(&call, __func__, CALL_SET, device, "%s", ""))
        return call.result;
    if (!application_allowed(&call))
        return call_end(&call, NVML_NO_PERMISSION);
    call.gpu->application_mhz = 0;
    stub_model_relock(call.gpu);
    return call_end(&call, NVML_OK);
}

nvmlReturn_t nvmlDeviceSetAPIRestriction(nvmlDevice_t device, unsigned api, unsigned restricted);
nvmlReturn_t nvmlDeviceSetAPIRestriction(nvmlDevice_t device, unsigned api, unsigned restricted)
{
    struct call call;
    if (!call_begin(&call, __func__, CALL_SET_ROOT, device, "api=%u restricted=%u", api, restricted))
        return call.result;
    if (call.gpu == NULL || api > 1 || restricted > 1)
        return call_end(&call, NVML_INVALID_ARGUMENT);
    if (api == 1) /* auto boost: not on data-centre cards of these generations */
        return call_end(&call, NVML_NOT_SUPPORTED);
    call.gpu->application_restricted = restricted;
    return call_end(&call, NVML_OK);
}

nvmlReturn_t nvmlDeviceSetPersistenceMode(nvmlDevice_t device, unsigned mode);
nvmlReturn_t nvmlDeviceSetPersistenceMode(nvmlDevice_t device, unsigned mode)
{
    struct call call;
    if (!call_begin(&call, __func__, CALL_SET_ROOT, device, "mode=%u", mode))
        return call.result;
    if (call.gpu == NULL || mode > 1)
        return call_end(&call, NVML_INVALID_ARGUMENT);
    call.gpu->persistence = mode;
    return call_end(&call, NVML_OK);
}

nvmlReturn_t nvmlDeviceSetPowerManagementLimit(nvmlDevice_t device, unsigned limit_mw);
nvmlReturn_t nvmlDeviceSetPowerManagementLimit(nvmlDevice_t device, unsigned limit_mw)
{
    struct call call;
    if (!call_begin(&call, __func__, CALL_SET_ROOT, device, "limit_mw=%u", limit_mw))
        return call.result;
    if (call.gpu == NULL || limit_mw < call.gpu->limit_min_mw || limit_mw > call.gpu->limit_max_mw)
        return call_end(&call, NVML_INVALID_ARGUMENT);
    call.gpu->limit_mw = limit_mw;
    stub_model_evaluate(call.gpu);
    return call_end(&call, NVML_OK);
}
