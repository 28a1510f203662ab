#include "supervisor.h"

#include "report.h"
#include "reset.h"
#include "state.h"
#include "worker.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <syslog.h>
#include <time.h>
#include <unistd.h>

#define WORKER_END_S 5 /* the worker gives itself 4 */
#define RESET_END_S 9  /* opening NVML and resetting give themselves 4 + 3 */

/* Reap `child` within `seconds`, or kill it. Its wait status; -1 when it does not even die (stuck in the driver). */
static int reap(pid_t child, int seconds)
{
    struct timespec second = {.tv_sec = seconds};
    sigset_t ended;
    int status, killed = 0;

    sigemptyset(&ended);
    sigaddset(&ended, SIGCHLD);
    for (;;) {
        pid_t got = waitpid(child, &status, WNOHANG);
        if (got == child)
            return status;
        if (got < 0 && errno != EINTR)
            return -1;
        if (sigtimedwait(&ended, NULL, &second) >= 0 || errno == EINTR)
            continue;
        if (killed)
            return -1;
        kill(child, SIGKILL);
        killed = 1;
        second = (struct timespec){.tv_sec = 1};
    }
}

/* In a child, so that this process stays free of NVML and of whatever killed the worker. */
static void reset_in_child(const struct job *job, int node_fd, int job_fd)
{
    pid_t child = fork();

    if (child == 0) {
        prctl(PR_SET_NAME, "eerl-reset");
        _exit(reset_marks(node_fd, job_fd, job->id, &job->config, false) > 0);
    }
    if (child > 0)
        (void)reap(child, RESET_END_S);
}

static pid_t start_worker(const struct job *job, int listen_fd, int job_fd, bool measure_only)
{
    pid_t child = fork();

    if (child == 0)
        worker_run(job, listen_fd, job_fd, measure_only);
    return child;
}

static void watched_signals(sigset_t *set)
{
    static const int ignored[] = {SIGHUP, SIGINT, SIGQUIT, SIGPIPE, SIGUSR1, SIGUSR2};

    for (size_t i = 0; i < sizeof(ignored) / sizeof(ignored[0]); i++)
        signal(ignored[i], SIG_IGN);
    signal(SIGCHLD, SIG_DFL);
    sigemptyset(set);
    sigaddset(set, SIGTERM);
    sigaddset(set, SIGCHLD);
    sigprocmask(SIG_BLOCK, set, NULL);
}

static _Noreturn void finish(int listen_fd, int job_fd, int code)
{
    unlinkat(job_fd, STATE_SOCKET, 0);
    close(listen_fd);
    _exit(code);
}

_Noreturn void supervisor_run(const struct job *job, int listen_fd, int node_fd, int job_fd)
{
    sigset_t set;
    int deaths = 0;

    watched_signals(&set);
    pid_t worker = start_worker(job, listen_fd, job_fd, false);
    for (;;) {
        int status = 0, signal_seen = worker > 0 ? sigwaitinfo(&set, NULL) : SIGTERM;
        if (signal_seen == SIGTERM) {
            if (worker > 0) {
                kill(worker, SIGTERM);
                status = reap(worker, WORKER_END_S);
            }
            if (!WIFEXITED(status)) /* it was killed: nobody has tried to reset yet */
                reset_in_child(job, node_fd, job_fd);
            finish(listen_fd, job_fd, 0);
        }
        if (signal_seen != SIGCHLD || waitpid(worker, &status, WNOHANG) != worker)
            continue;
        deaths++;
        syslog(LOG_ERR, "job %u: the broker's worker died (wait status 0x%x), time %d: resetting its GPUs", job->id,
               (unsigned)status, deaths);
        reset_in_child(job, node_fd, job_fd);
        if (deaths > 2) {
            state_reason(job_fd, "the broker's worker died three times");
            finish(listen_fd, job_fd, 1);
        }
        worker = start_worker(job, listen_fd, job_fd, deaths == 2);
    }
}
