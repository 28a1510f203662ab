/* The stub's shared state: one mapped file per mount namespace, so that plugin helper, broker, agents and
 * workload see the same simulated GPUs. Everything here is synthetic; only the shapes are the real driver's. */
#ifndef EERL_STUB_STATE_H
#define EERL_STUB_STATE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define STUB_DEFAULT_DIR "/dev/shm/eerl-nvml-stub"
#define STUB_MAGIC 0x4545524c53545542ULL /* "EERLSTUB" */
#define STUB_MAX_GPUS 16
#define STUB_MAX_CLOCKS 320
#define STUB_MAX_FAULTS 64
#define STUB_MAX_CLIENTS 256
#define STUB_RING 128
#define STUB_NAME 96

/* What a model draws, in W at load 1; s(f) = (V/Vmax)^2 * f/fmax, so that s is 1 at the top clock. */
struct stub_power {
    double idle_w;         /* no context, memory included */
    double clock_w;        /* times s(f): the clock tree of an idle GPU */
    double generation_w;   /* memory traffic of decoding, clock independent */
    double generation_dyn_w;
    double training_w;
    double training_dyn_w;
    double flat_fraction;  /* the voltage is flat up to this share of the top clock */
    double v_min;          /* Vmin/Vmax */
};

struct stub_gpu {
    char name[STUB_NAME], uuid[STUB_NAME], serial[32], bus_id[32];
    uint32_t domain, bus, device, pci_device_id, minor, architecture, module_id;
    uint32_t n_clocks, clocks_mhz[STUB_MAX_CLOCKS]; /* ascending */
    uint32_t n_memory, memory_mhz[2];               /* descending */
    uint32_t persistence, mig, default_application_mhz;
    uint32_t limit_min_mw, limit_default_mw, limit_max_mw, limit_mw;
    uint64_t memory_bytes;
    struct stub_power model;

    /* What was asked of the GPU. */
    uint32_t locked_min_mhz, locked_max_mhz; /* 0: no lock */
    uint32_t memory_locked_min_mhz, memory_locked_max_mhz;
    uint32_t application_mhz;                /* 0: default */
    uint32_t application_restricted;         /* 1: root only */
    uint32_t achieved_limit_mhz;             /* 0: none; a slowdown the test asks for */
    uint64_t achieved_limit_reasons;
    double switch_delay_s;                   /* from the call to the clock that follows it */
    double load_generation, load_training;   /* 0..1 */
    uint32_t context;                        /* a process holds a CUDA context: the governor keeps the top clock */
    double module_extra_mw;                  /* superchip: CPU and memory, counted by the energy counter */
    uint32_t module_scope;

    /* What follows from it since t_ns. */
    uint32_t effective_min_mhz, effective_max_mhz;
    int64_t switch_at_ns;                    /* 0: nothing pending */
    uint32_t achieved_mhz;
    uint64_t reasons;
    double gpu_power_mw, counted_power_mw;

    int64_t t_ns;                            /* the integral is exact up to here */
    double energy_mj;                        /* exact, since creation, in the counter's scope */
    double published_mj;                     /* the integral at the last publication */
    double counter_offset_mj;                /* counter = published + offset */
    int64_t publish_ns;
    double power_cap_s;
    struct { int64_t t_ns; double energy_mj; } ring[STUB_RING]; /* for the trailing mean of power */
    uint32_t ring_next;
};

struct stub_fault {
    bool active;
    char function[64]; /* "*": every function */
    int32_t gpu;       /* -1: every GPU, and calls without one */
    int64_t uid;       /* -1: every caller */
    uint32_t skip_calls, times; /* times 0: for ever */
    int64_t from_ns;
    int32_t code;      /* 0: only delayed */
    uint32_t delay_ms;
    uint32_t matched, fired;
};

struct stub_state {
    uint64_t magic, size;
    pthread_mutex_t mutex; /* robust and shared: a killed holder must not stop the others */
    uint64_t user_namespace; /* privilege counts in the creator's user namespace only, as capable() does */
    uint32_t n_gpus, log_all;
    char driver[32];
    int32_t client[STUB_MAX_CLIENTS]; /* pids between init and shutdown */
    struct stub_fault fault[STUB_MAX_FAULTS];
    struct stub_gpu gpu[STUB_MAX_GPUS];
};

struct stub {
    struct stub_state *state;
    int log_fd;
};

int64_t stub_now_ns(void);
uint64_t stub_user_namespace(void);
int stub_create(const char *dir, const char *model, unsigned gpus, const char *seed);
struct stub *stub_open(const char *dir);
void stub_close(struct stub *stub);
void stub_lock(struct stub *stub);
void stub_unlock(struct stub *stub);

bool stub_model_fill(struct stub_gpu *gpu, const char *model);
void stub_model_advance(struct stub_gpu *gpu, int64_t now_ns);
void stub_model_evaluate(struct stub_gpu *gpu);
void stub_model_relock(struct stub_gpu *gpu);
double stub_model_mean_power_mw(const struct stub_gpu *gpu, double window_s);
uint32_t stub_model_snap(const struct stub_gpu *gpu, uint32_t mhz);
void stub_clients_prune(struct stub_state *state);

#endif
