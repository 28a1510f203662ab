/* Creating, mapping and locking the state file. */
#define _GNU_SOURCE
#include "stub_state.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

int64_t stub_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

uint64_t stub_user_namespace(void)
{
    struct stat info;
    return stat("/proc/self/ns/user", &info) == 0 ? (uint64_t)info.st_ino : 0;
}

/* A UUID that is stable for a seed and differs between nodes: FNV-1a, spread over the digits. */
static void make_uuid(char *out, size_t size, const char *seed, unsigned index)
{
    uint64_t part[2];
    for (unsigned half = 0; half < 2; half++) {
        uint64_t hash = 1469598103934665603ULL;
        char text[160];
        snprintf(text, sizeof(text), "%u/%.120s/%u", half, seed, index);
        for (const char *at = text; *at != '\0'; at++)
            hash = (hash ^ (unsigned char)*at) * 1099511628211ULL;
        hash ^= hash >> 29;
        hash *= 0xbf58476d1ce4e5b9ULL;
        part[half] = hash ^ (hash >> 32);
    }
    snprintf(out, size, "GPU-%08x-%04x-4%03x-a%03x-%012llx", (unsigned)(part[0] >> 32),
             (unsigned)(part[0] >> 16) & 0xffff, (unsigned)part[0] & 0xfff, (unsigned)(part[1] >> 52),
             (unsigned long long)(part[1] & 0xffffffffffffULL));
}

static void describe_gpu(struct stub_gpu *gpu, const char *seed, unsigned index)
{
    make_uuid(gpu->uuid, sizeof(gpu->uuid), seed, index);
    snprintf(gpu->serial, sizeof(gpu->serial), "16500230%05u", index + 1);
    gpu->bus = 0x19 + index * 0x11;
    snprintf(gpu->bus_id, sizeof(gpu->bus_id), "%08X:%02X:%02X.0", gpu->domain, gpu->bus & 0xff, gpu->device);
    gpu->minor = index;
    gpu->module_id = index + 1;
    gpu->persistence = 1;
    gpu->application_restricted = 1;
    gpu->limit_mw = gpu->limit_default_mw;
    gpu->publish_ns = 100000000;
    gpu->counter_offset_mj = 5000000.0 + 1000.0 * index; /* a driver that has been up for a while */
    gpu->t_ns = stub_now_ns();
    stub_model_evaluate(gpu);
}

int stub_create(const char *dir, const char *model, unsigned gpus, const char *seed)
{
    char path[512], temporary[520];
    if (gpus > STUB_MAX_GPUS || (size_t)snprintf(path, sizeof(path), "%s/state", dir) >= sizeof(path))
        return EINVAL;
    snprintf(temporary, sizeof(temporary), "%s.new", path);
    struct stub_state *state = calloc(1, sizeof(*state));
    if (state == NULL)
        return ENOMEM;
    state->magic = STUB_MAGIC;
    state->size = sizeof(*state);
    state->n_gpus = gpus;
    state->user_namespace = stub_user_namespace();
    snprintf(state->driver, sizeof(state->driver), "580.105.08");
    for (unsigned i = 0; i < gpus; i++) {
        if (!stub_model_fill(&state->gpu[i], model)) {
            free(state);
            return ENOENT;
        }
        describe_gpu(&state->gpu[i], seed, i);
    }
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&state->mutex, &attributes);

    int failure = 0;
    int fd = open(temporary, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0 || fchmod(fd, 0666) != 0 || write(fd, state, sizeof(*state)) != (ssize_t)sizeof(*state)
        || rename(temporary, path) != 0)
        failure = errno != 0 ? errno : EIO;
    if (fd >= 0)
        close(fd);
    free(state);
    snprintf(path, sizeof(path), "%s/calls.jsonl", dir);
    fd = failure != 0 ? -1 : open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd >= 0) {
        if (fchmod(fd, 0666) != 0)
            failure = errno;
        close(fd);
    }
    return failure;
}

struct stub *stub_open(const char *dir)
{
    char path[512];
    if ((size_t)snprintf(path, sizeof(path), "%s/state", dir) >= sizeof(path))
        return NULL;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return NULL;
    struct stat info;
    void *mapped = MAP_FAILED;
    if (fstat(fd, &info) == 0 && info.st_size == (off_t)sizeof(struct stub_state))
        mapped = mmap(NULL, sizeof(struct stub_state), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (mapped == MAP_FAILED)
        return NULL;
    struct stub_state *state = mapped;
    struct stub *stub = malloc(sizeof(*stub));
    if (stub == NULL || state->magic != STUB_MAGIC || state->size != sizeof(*state)) {
        free(stub);
        munmap(mapped, sizeof(struct stub_state));
        return NULL;
    }
    snprintf(path, sizeof(path), "%s/calls.jsonl", dir);
    stub->state = state;
    stub->log_fd = open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
    return stub;
}

void stub_close(struct stub *stub)
{
    if (stub == NULL)
        return;
    munmap(stub->state, sizeof(*stub->state));
    if (stub->log_fd >= 0)
        close(stub->log_fd);
    free(stub);
}

void stub_lock(struct stub *stub)
{
    if (pthread_mutex_lock(&stub->state->mutex) == EOWNERDEAD)
        pthread_mutex_consistent(&stub->state->mutex);
}

void stub_unlock(struct stub *stub)
{
    pthread_mutex_unlock(&stub->state->mutex);
}

static bool is_alive(pid_t pid)
{
    char path[64], text[256];
    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return false;
    size_t length = fread(text, 1, sizeof(text) - 1, file);
    fclose(file);
    text[length] = '\0';
    const char *end = strrchr(text, ')');
    return end != NULL && end[1] != '\0' && end[2] != 'Z' && end[2] != 'X';
}

/* Without persistence mode the driver forgets everything when its last client has gone. */
void stub_clients_prune(struct stub_state *state)
{
    bool any = false;
    for (unsigned i = 0; i < STUB_MAX_CLIENTS; i++) {
        if (state->client[i] != 0 && !is_alive(state->client[i]))
            state->client[i] = 0;
        any = any || state->client[i] != 0;
    }
    for (unsigned i = 0; i < state->n_gpus && !any; i++) {
        struct stub_gpu *gpu = &state->gpu[i];
        bool set = gpu->locked_max_mhz != 0 || gpu->application_mhz != 0 || !gpu->application_restricted;
        if (gpu->persistence || gpu->context || !set)
            continue;
        stub_model_advance(gpu, stub_now_ns());
        gpu->locked_min_mhz = gpu->locked_max_mhz = gpu->application_mhz = 0;
        gpu->application_restricted = 1;
        gpu->counter_offset_mj = -gpu->published_mj;
        stub_model_relock(gpu);
    }
}
