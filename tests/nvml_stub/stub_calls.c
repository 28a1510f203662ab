/* See stub_calls.h. */
#define _GNU_SOURCE
#include "stub_calls.h"

#include <dlfcn.h>
#include <errno.h>
#include <linux/capability.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t mapping_lock = PTHREAD_MUTEX_INITIALIZER;
static struct stub *mapped;
static atomic_int initialised;

/* The state is at a fixed place, unless a file nvml_stub.dir beside this library names another: that is how
 * tests without a mount namespace keep apart. No environment variable: root code must not follow one. */
static void state_dir(char *dir, size_t size)
{
    Dl_info self;
    char path[512];
    snprintf(dir, size, "%s", STUB_DEFAULT_DIR);
    if (dladdr((void *)(uintptr_t)&call_begin, &self) == 0 || self.dli_fname == NULL)
        return;
    const char *slash = strrchr(self.dli_fname, '/');
    int folder = slash != NULL ? (int)(slash - self.dli_fname) : 0;
    if (slash == NULL || (size_t)snprintf(path, sizeof(path), "%.*s/nvml_stub.dir", folder, self.dli_fname) >= sizeof(path))
        return;
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return;
    if (fgets(path, sizeof(path), file) != NULL) {
        path[strcspn(path, "\n")] = '\0';
        if (path[0] == '/' && strlen(path) < size)
            memcpy(dir, path, strlen(path) + 1);
    }
    fclose(file);
}

static struct stub *map_state(void)
{
    pthread_mutex_lock(&mapping_lock);
    if (mapped == NULL) {
        char dir[256];
        state_dir(dir, sizeof(dir));
        mapped = stub_open(dir);
    }
    struct stub *stub = mapped;
    pthread_mutex_unlock(&mapping_lock);
    return stub;
}

int call_initialised(int change)
{
    return atomic_fetch_add(&initialised, change) + change;
}

nvmlDevice_t call_device(int index)
{
    struct stub *stub = map_state();
    if (stub == NULL || index < 0 || (uint32_t)index >= stub->state->n_gpus)
        return NULL;
    return (nvmlDevice_t)(void *)&stub->state->gpu[index];
}

/* The kernel asks capable(CAP_SYS_ADMIN) of the calling task, in the initial user namespace. */
bool call_is_privileged(const struct call *call)
{
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct data[2] = {{0, 0, 0}, {0, 0, 0}};
    if (syscall(SYS_capget, &header, data) != 0)
        return false;
    return (data[0].effective & (1U << CAP_SYS_ADMIN)) != 0
           && stub_user_namespace() == call->stub->state->user_namespace;
}

static void write_log(const struct call *call, nvmlReturn_t result)
{
    char line[1024], comm[32] = "";
    if (call->stub->log_fd < 0)
        return;
    FILE *file = fopen("/proc/self/comm", "re");
    if (file != NULL) {
        if (fgets(comm, sizeof(comm), file) != NULL)
            comm[strcspn(comm, "\n\"\\")] = '\0';
        fclose(file);
    }
    int length = snprintf(line, sizeof(line),
                          "{\"t_ns\":%lld,\"end_ns\":%lld,\"pid\":%d,\"tid\":%ld,\"uid\":%u,\"comm\":\"%s\","
                          "\"function\":\"%s\",\"uuid\":%s%s%s,\"args\":\"%s\",\"result\":%d,\"fault\":%s}\n",
                          (long long)call->start_ns, (long long)stub_now_ns(), (int)getpid(),
                          (long)syscall(SYS_gettid), (unsigned)geteuid(), comm, call->function,
                          call->gpu != NULL ? "\"" : "", call->gpu != NULL ? call->gpu->uuid : "null",
                          call->gpu != NULL ? "\"" : "", call->arguments, result,
                          call->faulted ? "true" : "false");
    if (length > 0 && (size_t)length < sizeof(line)) {
        ssize_t written = write(call->stub->log_fd, line, (size_t)length);
        (void)written; /* a full disk must not change what the caller sees */
    }
}

/* The first rule that wants this call; counts it. Called with the state locked. */
static bool match_fault(struct call *call, uint32_t *delay_ms, int32_t *code)
{
    struct stub_state *state = call->stub->state;
    int index = call->gpu != NULL ? (int)(call->gpu - state->gpu) : -1;
    for (unsigned i = 0; i < STUB_MAX_FAULTS; i++) {
        struct stub_fault *fault = &state->fault[i];
        if (!fault->active || (strcmp(fault->function, "*") != 0 && strcmp(fault->function, call->function) != 0)
            || (fault->gpu >= 0 && fault->gpu != index) || (fault->uid >= 0 && fault->uid != (int64_t)geteuid())
            || call->start_ns < fault->from_ns)
            continue;
        fault->matched++;
        if (fault->matched <= fault->skip_calls || (fault->times != 0 && fault->fired >= fault->times))
            continue;
        fault->fired++;
        *delay_ms = fault->delay_ms;
        *code = fault->code;
        return true;
    }
    return false;
}

static void wait_ms(uint32_t delay_ms)
{
    struct timespec left = {.tv_sec = delay_ms / 1000, .tv_nsec = (long)(delay_ms % 1000) * 1000000};
    while (nanosleep(&left, &left) != 0 && errno == EINTR)
        ; /* a stalled driver does not listen to signals */
}

bool call_begin(struct call *call, const char *function, enum call_kind kind, nvmlDevice_t device,
                const char *format, ...)
{
    memset(call, 0, sizeof(*call));
    call->function = function;
    call->kind = kind;
    call->start_ns = stub_now_ns();
    va_list list;
    va_start(list, format);
    vsnprintf(call->arguments, sizeof(call->arguments), format, list);
    va_end(list);
    for (char *at = call->arguments; *at != '\0'; at++)
        if (*at < ' ' || *at == '"' || *at == '\\' || *at > '~')
            *at = '_'; /* the log is JSON */

    call->result = NVML_UNINITIALIZED;
    if (kind != CALL_INIT && atomic_load(&initialised) <= 0)
        return false;
    call->stub = map_state();
    call->result = NVML_DRIVER_NOT_LOADED;
    if (call->stub == NULL)
        return false;
    struct stub_state *state = call->stub->state;
    if (device != NULL) {
        struct stub_gpu *gpu = (struct stub_gpu *)(void *)device;
        for (unsigned i = 0; i < state->n_gpus; i++)
            if (gpu == &state->gpu[i])
                call->gpu = gpu;
        call->result = NVML_INVALID_ARGUMENT;
        if (call->gpu == NULL)
            return false;
    }

    uint32_t delay_ms = 0;
    int32_t code = 0;
    stub_lock(call->stub);
    call->faulted = match_fault(call, &delay_ms, &code);
    stub_unlock(call->stub);
    if (delay_ms > 0)
        wait_ms(delay_ms); /* without the lock: a hanging GPU must not stop the others */
    if (code == 0 && kind == CALL_SET_ROOT && !call_is_privileged(call))
        code = NVML_NO_PERMISSION;
    if (code != 0) {
        call->result = code;
        if (call->faulted || kind >= CALL_SET || state->log_all)
            write_log(call, code);
        return false;
    }
    stub_lock(call->stub);
    if (call->gpu != NULL)
        stub_model_advance(call->gpu, stub_now_ns());
    return true;
}

nvmlReturn_t call_end(struct call *call, nvmlReturn_t result)
{
    stub_unlock(call->stub);
    if (call->faulted || call->kind >= CALL_SET || call->stub->state->log_all)
        write_log(call, result);
    return result;
}
