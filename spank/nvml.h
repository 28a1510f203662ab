/* NVML as eerl uses it: loaded by dlopen, each symbol looked up on its own, so that an old or new driver that
 * lacks one call costs that call only. The few declarations are ours; values are those of nvml.h. */
#ifndef EERL_NVML_H
#define EERL_NVML_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum nvml_code { /* nvmlReturn_t */
    NVML_OK = 0,
    NVML_UNINITIALIZED = 1,
    NVML_INVALID_ARGUMENT = 2,
    NVML_NOT_SUPPORTED = 3,
    NVML_NO_PERMISSION = 4,
    NVML_NOT_FOUND = 6,
    NVML_INSUFFICIENT_SIZE = 7,
    NVML_TIMEOUT = 10,
    NVML_LIBRARY_NOT_FOUND = 12,
    NVML_FUNCTION_NOT_FOUND = 13,
    NVML_GPU_IS_LOST = 15,
    NVML_IN_USE = 19,
    NVML_FREQ_NOT_SUPPORTED = 24,
    NVML_DEPRECATED = 26,
    NVML_UNKNOWN = 999,
};

enum { NVML_CLOCK_GRAPHICS = 0, NVML_CLOCK_SM = 1, NVML_CLOCK_MEM = 2 }; /* nvmlClockType_t */
enum { NVML_FI_DEV_POWER_INSTANT = 186, NVML_POWER_SCOPE_GPU = 0 };

typedef struct nvmlDevice_st *nvml_device;

struct nvml_pci { /* nvmlPciInfo_t, 68 bytes */
    char bus_id_legacy[16];
    uint32_t domain, bus, device, pci_device_id, pci_subsystem_id;
    char bus_id[32];
};

struct nvml_utilization { /* nvmlUtilization_t, percent */
    uint32_t gpu, memory;
};

struct nvml_field { /* nvmlFieldValue_t, 40 bytes */
    uint32_t field_id, scope_id;
    int64_t timestamp_us, latency_us;
    uint32_t value_type;
    int32_t code;
    union {
        double d;
        uint32_t u32;
        uint64_t u64;
    } value;
};

/* Pointers are NULL where the library lacks the symbol; see nvml.c for the names. */
struct nvml {
    void *library;
    int (*init)(void);
    int (*shutdown)(void);
    const char *(*error_string)(int);
    int (*driver_version)(char *, uint32_t);
    int (*count)(uint32_t *);
    int (*by_index)(uint32_t, nvml_device *);
    int (*by_uuid)(const char *, nvml_device *);
    int (*uuid)(nvml_device, char *, uint32_t);
    int (*name)(nvml_device, char *, uint32_t);
    int (*minor)(nvml_device, uint32_t *);
    int (*pci)(nvml_device, struct nvml_pci *);
    int (*mig_mode)(nvml_device, uint32_t *, uint32_t *);
    int (*memory_clocks)(nvml_device, uint32_t *, uint32_t *);
    int (*graphics_clocks)(nvml_device, uint32_t, uint32_t *, uint32_t *);
    int (*set_locked_clocks)(nvml_device, uint32_t, uint32_t);
    int (*reset_locked_clocks)(nvml_device);
    int (*set_application_clocks)(nvml_device, uint32_t, uint32_t);
    int (*reset_application_clocks)(nvml_device);
    int (*application_clock)(nvml_device, int, uint32_t *);
    int (*default_application_clock)(nvml_device, int, uint32_t *);
    int (*energy_mj)(nvml_device, uint64_t *);
    int (*clock_mhz)(nvml_device, int, uint32_t *);
    int (*power_mw)(nvml_device, uint32_t *);
    int (*enforced_limit_mw)(nvml_device, uint32_t *);
    int (*field_values)(nvml_device, int, struct nvml_field *);
    int (*utilization)(nvml_device, struct nvml_utilization *);
    int (*event_reasons)(nvml_device, uint64_t *);
};

/* dlopen and nvmlInit_v2. NVML_OK, or a code with `why` saying which step gave it. `path` NULL: the loader's
 * libnvidia-ml.so.1. The library stays loaded over later calls; only the driver's side is opened and shut. */
int nvml_open(struct nvml *n, const char *path, char *why, size_t why_size);
void nvml_close(struct nvml *n);

/* The driver's words for a code, or our own where the library has none. */
const char *nvml_text(const struct nvml *n, int code);

/* "not supported", "no such function" and "removed" mean the same to a caller who can go another way. */
bool nvml_missing(int code);

#endif
