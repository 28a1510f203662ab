/* The frame of every NVML call: is it allowed, does a fault rule want it, who asked, what came out. */
#ifndef EERL_STUB_CALLS_H
#define EERL_STUB_CALLS_H

#include "stub_state.h"

typedef int nvmlReturn_t;
typedef struct nvmlDevice_st *nvmlDevice_t;

enum {
    NVML_OK = 0,
    NVML_UNINITIALIZED = 1,
    NVML_INVALID_ARGUMENT = 2,
    NVML_NOT_SUPPORTED = 3,
    NVML_NO_PERMISSION = 4,
    NVML_NOT_FOUND = 6,
    NVML_TOO_SMALL = 7,
    NVML_DRIVER_NOT_LOADED = 9,
};

enum call_kind {
    CALL_INIT,      /* maps the state, needs no init before it */
    CALL_READ,
    CALL_SET,       /* logged always */
    CALL_SET_ROOT,  /* and refused without CAP_SYS_ADMIN */
};

struct call {
    const char *function;
    enum call_kind kind;
    struct stub *stub;
    struct stub_gpu *gpu; /* advanced to now, NULL when the call names none */
    char arguments[160];
    int64_t start_ns;
    bool faulted;
    nvmlReturn_t result;
};

/* True: go on, with the state locked, and finish by call_end. False: return call->result. */
bool call_begin(struct call *call, const char *function, enum call_kind kind, nvmlDevice_t device,
                const char *format, ...) __attribute__((format(printf, 5, 6)));
nvmlReturn_t call_end(struct call *call, nvmlReturn_t result);
bool call_is_privileged(const struct call *call);
nvmlDevice_t call_device(int index); /* NULL: no such GPU, or no state */
int call_initialised(int change);

#endif
