#include "spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define REPORT_FD 3

static long now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (long)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void close_from(int first)
{
#ifdef SYS_close_range
    if (syscall(SYS_close_range, (unsigned)first, ~0U, 0U) == 0)
        return;
#endif
    long top = sysconf(_SC_OPEN_MAX);
    for (int fd = first; fd < (top > 0 && top < 65536 ? top : 65536); fd++)
        close(fd);
}

/* In the grandchild: only async-signal-safe calls, as slurmd has threads. */
static void become(char *const argv[], int report)
{
    static char *const nothing[] = {NULL};
    sigset_t none;

    int null = open("/dev/null", O_RDWR);
    for (int fd = 0; fd < 3; fd++)
        if (null >= 0)
            dup2(null, fd);
    if (report >= 0 && report != REPORT_FD)
        dup2(report, REPORT_FD);
    close_from(report >= 0 ? REPORT_FD + 1 : REPORT_FD);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    execve(argv[0], argv, nothing);
    _exit(127);
}

/* fork, setsid, fork: slurmd kills its prolog's process group when the prolog ends, and the second fork leaves
 * no child behind that someone would have to reap. The pid comes back through `tell`. */
static pid_t start(char *const argv[], int report)
{
    int tell[2], status;
    pid_t pid = -1;

    if (pipe2(tell, O_CLOEXEC) != 0)
        return -1;
    pid_t child = fork();
    if (child == 0) {
        setsid();
        pid = fork();
        if (pid == 0)
            become(argv, report);
        (void)!write(tell[1], &pid, sizeof(pid));
        _exit(0);
    }
    close(tell[1]);
    if (child < 0 || read(tell[0], &pid, sizeof(pid)) != sizeof(pid))
        pid = -1;
    close(tell[0]);
    while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR)
        continue;
    return pid;
}

static enum spawn_result hear(int fd, int wait_ms, char *said, size_t said_size)
{
    long until = now_ms() + wait_ms;
    size_t len = 0;

    for (;;) {
        char more[256];
        long left = until - now_ms();
        struct pollfd p = {.fd = fd, .events = POLLIN};
        int ready = left > 0 ? poll(&p, 1, (int)left) : 0;
        if (ready < 0 && errno == EINTR)
            continue;
        if (ready <= 0)
            return SPAWN_TOO_LATE;
        ssize_t n = read(fd, more, sizeof(more));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return SPAWN_DONE;
        for (ssize_t i = 0; i < n && len < said_size - 1; i++)
            said[len++] = more[i];
        said[len] = '\0';
    }
}

enum spawn_result spawn_and_hear(char *const argv[], int wait_ms, char *said, size_t said_size)
{
    int report[2];

    said[0] = '\0';
    if (pipe2(report, O_CLOEXEC) != 0)
        return SPAWN_FAILED;
    pid_t pid = start(argv, report[1]);
    close(report[1]);
    enum spawn_result result = pid > 0 ? hear(report[0], wait_ms, said, said_size) : SPAWN_FAILED;
    close(report[0]);
    if (result == SPAWN_TOO_LATE)
        kill(pid, SIGKILL);
    return result;
}

enum spawn_result spawn_and_leave(char *const argv[])
{
    return start(argv, -1) > 0 ? SPAWN_DONE : SPAWN_FAILED;
}
