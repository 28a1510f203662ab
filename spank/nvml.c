#include "nvml.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

struct symbol {
    size_t offset;
    const char *name, *older; /* older: the name it had before, for older drivers */
};

#define AT(m) offsetof(struct nvml, m)

static const struct symbol symbols[] = {
    {AT(init), "nvmlInit_v2", "nvmlInit"},
    {AT(shutdown), "nvmlShutdown", NULL},
    {AT(error_string), "nvmlErrorString", NULL},
    {AT(driver_version), "nvmlSystemGetDriverVersion", NULL},
    {AT(count), "nvmlDeviceGetCount_v2", "nvmlDeviceGetCount"},
    {AT(by_index), "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetHandleByIndex"},
    {AT(by_uuid), "nvmlDeviceGetHandleByUUID", NULL},
    {AT(uuid), "nvmlDeviceGetUUID", NULL},
    {AT(name), "nvmlDeviceGetName", NULL},
    {AT(minor), "nvmlDeviceGetMinorNumber", NULL},
    {AT(pci), "nvmlDeviceGetPciInfo_v3", NULL},
    {AT(mig_mode), "nvmlDeviceGetMigMode", NULL},
    {AT(memory_clocks), "nvmlDeviceGetSupportedMemoryClocks", NULL},
    {AT(graphics_clocks), "nvmlDeviceGetSupportedGraphicsClocks", NULL},
    {AT(set_locked_clocks), "nvmlDeviceSetGpuLockedClocks", NULL},
    {AT(reset_locked_clocks), "nvmlDeviceResetGpuLockedClocks", NULL},
    {AT(set_application_clocks), "nvmlDeviceSetApplicationsClocks", NULL},
    {AT(reset_application_clocks), "nvmlDeviceResetApplicationsClocks", NULL},
    {AT(application_clock), "nvmlDeviceGetApplicationsClock", NULL},
    {AT(default_application_clock), "nvmlDeviceGetDefaultApplicationsClock", NULL},
    {AT(energy_mj), "nvmlDeviceGetTotalEnergyConsumption", NULL},
    {AT(clock_mhz), "nvmlDeviceGetClockInfo", NULL},
    {AT(power_mw), "nvmlDeviceGetPowerUsage", NULL},
    {AT(enforced_limit_mw), "nvmlDeviceGetEnforcedPowerLimit", NULL},
    {AT(field_values), "nvmlDeviceGetFieldValues", NULL},
    {AT(utilization), "nvmlDeviceGetUtilizationRates", NULL},
    {AT(event_reasons), "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"},
};

static int load(struct nvml *n, const char *path, char *why, size_t why_size)
{
    const char *name = path != NULL ? path : "libnvidia-ml.so.1";

    n->library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (n->library == NULL) {
        const char *said = dlerror();
        snprintf(why, why_size, "NVML cannot be loaded: %.180s", said != NULL ? said : name);
        return NVML_LIBRARY_NOT_FOUND;
    }
    for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
        void *found = dlsym(n->library, symbols[i].name);
        if (found == NULL && symbols[i].older != NULL)
            found = dlsym(n->library, symbols[i].older);
        memcpy((char *)n + symbols[i].offset, &found, sizeof(found));
    }
    if (n->init == NULL || n->shutdown == NULL) {
        snprintf(why, why_size, "%.150s has no nvmlInit or nvmlShutdown: it is no NVML", name);
        dlclose(n->library);
        n->library = NULL;
        return NVML_FUNCTION_NOT_FOUND;
    }
    return NVML_OK;
}

int nvml_open(struct nvml *n, const char *path, char *why, size_t why_size)
{
    if (n->library == NULL) {
        int code = load(n, path, why, why_size);
        if (code != NVML_OK)
            return code;
    }
    int code = n->init();
    if (code != NVML_OK)
        snprintf(why, why_size, "nvmlInit gives code %d (%.100s)", code, nvml_text(n, code));
    return code;
}

void nvml_close(struct nvml *n)
{
    if (n->library != NULL)
        n->shutdown();
}

const char *nvml_text(const struct nvml *n, int code)
{
    const char *said = NULL;

    switch (code) { /* codes we give ourselves must not depend on a library */
    case NVML_TIMEOUT:
        return "no answer in time";
    case NVML_LIBRARY_NOT_FOUND:
        return "NVML not found";
    case NVML_FUNCTION_NOT_FOUND:
        return "this driver has no such call";
    default:
        break;
    }
    if (n != NULL && n->library != NULL && n->error_string != NULL)
        said = n->error_string(code);
    return said != NULL && said[0] != '\0' ? said : "no text for this code";
}

bool nvml_missing(int code)
{
    return code == NVML_NOT_SUPPORTED || code == NVML_FUNCTION_NOT_FOUND || code == NVML_DEPRECATED;
}
