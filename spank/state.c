#include "state.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define GRANT "grant"
#define MARK "dirty-"
#define UNRESET "unreset-"

/* Ours alone, or not used at all: a folder that someone else could have prepared tells nothing. */
static int checked_folder(int fd)
{
    struct stat st;

    if (fd < 0)
        return -1;
    if (fstat(fd, &st) == 0 && st.st_uid == geteuid() && (st.st_mode & (S_IWGRP | S_IWOTH)) == 0)
        return fd;
    close(fd);
    errno = EPERM;
    return -1;
}

int state_folder(int parent, const char *name, bool create)
{
    if (create && mkdirat(parent, name, 0755) != 0 && errno != EEXIST)
        return -1;
    int fd = checked_folder(openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (fd >= 0 && create)
        (void)fchmod(fd, 0755); /* whatever the umask was: the job must reach its socket */
    return fd;
}

int state_root(bool create)
{
    return state_folder(AT_FDCWD, STATE_ROOT, create);
}

static bool job_name(char *name, size_t size, uint32_t job)
{
    int n = snprintf(name, size, "%u", job);
    return n > 0 && (size_t)n < size;
}

int state_job_folder(int node_fd, uint32_t job, bool create)
{
    char name[16];

    return job_name(name, sizeof(name), job) ? state_folder(node_fd, name, create) : -1;
}

bool state_write(int folder, const char *name, mode_t mode, const char *text)
{
    char fresh[EERL_UUID_LEN + 32];
    size_t len = strlen(text);
    int n = snprintf(fresh, sizeof(fresh), ".new-%s", name);

    if (n < 0 || (size_t)n >= sizeof(fresh)) {
        errno = ENAMETOOLONG;
        return false;
    }
    int fd = openat(folder, fresh, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, mode);
    if (fd < 0)
        return false;
    bool ok = fchmod(fd, mode) == 0 && write(fd, text, len) == (ssize_t)len;
    ok = close(fd) == 0 && ok;
    if (ok && renameat(folder, fresh, folder, name) == 0)
        return true;
    int saved = errno;
    unlinkat(folder, fresh, 0);
    errno = saved;
    return false;
}

ssize_t state_read(int folder, const char *name, char *buffer, size_t size)
{
    int fd = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return -1;
    ssize_t n = read(fd, buffer, size - 1);
    close(fd);
    buffer[n > 0 ? n : 0] = '\0';
    return n;
}

void state_reason(int job_fd, const char *reason)
{
    char line[EERL_WHY_LEN + 2];
    int n = snprintf(line, sizeof(line), "%s\n", reason);

    if (n > 0 && (size_t)n < sizeof(line))
        state_write(job_fd, STATE_REASON, 0644, line);
}

static int64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

int grant_lock(int job_fd, bool create, int wait_ms)
{
    int64_t until = now_ms() + wait_ms;

    for (;;) {
        struct stat held, named;
        int fd = openat(job_fd, GRANT, O_RDWR | O_NOFOLLOW | O_CLOEXEC | (create ? O_CREAT : 0), 0600);
        if (fd < 0)
            return -1;
        if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
            /* Between open and lock the file may have been forgotten and made anew by another process. */
            if (fstat(fd, &held) == 0 && fstatat(job_fd, GRANT, &named, AT_SYMLINK_NOFOLLOW) == 0 &&
                held.st_ino == named.st_ino)
                return fd;
            close(fd);
            continue;
        }
        int saved = errno;
        close(fd);
        if (saved != EWOULDBLOCK || now_ms() >= until) {
            errno = saved;
            return -1;
        }
        nanosleep(&(struct timespec){.tv_nsec = 10 * 1000 * 1000}, NULL);
    }
}

bool grant_alive(int job_fd)
{
    int fd = grant_lock(job_fd, false, 0);

    if (fd >= 0) {
        close(fd);
        return false;
    }
    return errno == EWOULDBLOCK;
}

bool grant_write(int grant_fd, const struct grant *g)
{
    char buffer[sizeof(*g) + 512];
    struct text t;

    text_start(&t, buffer, sizeof(buffer));
    text_add(&t, "job=%u\nuid=%u\nrestart=%s\nboot_id=%s\npid=%d\ngroup=%d\nstart_ticks=%llu\n", g->job, g->uid,
             g->restart, g->boot_id, (int)g->pid, (int)g->group, (unsigned long long)g->start_ticks);
    text_add(&t, "nvml=%s\nsite_max_mhz=%u\ndrain=%u\n", g->nvml, g->site_max_mhz, g->drain);
    return !t.full && ftruncate(grant_fd, 0) == 0 && pwrite(grant_fd, buffer, t.len, 0) == (ssize_t)t.len;
}

/* The value of `key` in key=value lines, copied; false when it is not there or too long. */
static bool field(const char *text, const char *key, char *value, size_t size)
{
    size_t k = strlen(key);

    for (const char *line = text; line != NULL && *line != '\0'; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, key, k) == 0 && line[k] == '=') {
            size_t n = strcspn(line + k + 1, "\n");
            if (n >= size)
                return false;
            memcpy(value, line + k + 1, n);
            value[n] = '\0';
            return true;
        }
    }
    return false;
}

static bool field_u32(const char *text, const char *key, uint32_t *value)
{
    char digits[16];
    return field(text, key, digits, sizeof(digits)) && parse_u32(digits, 0, UINT32_MAX, value);
}

bool grant_read(int job_fd, struct grant *g)
{
    char buffer[sizeof(*g) + 512], ticks[24];
    uint32_t pid = 0, group = 0;

    memset(g, 0, sizeof(*g));
    if (state_read(job_fd, GRANT, buffer, sizeof(buffer)) <= 0)
        return false;
    if (!field_u32(buffer, "job", &g->job) || !field_u32(buffer, "uid", &g->uid) || !field_u32(buffer, "pid", &pid) ||
        !field_u32(buffer, "group", &group) ||
        !field_u32(buffer, "site_max_mhz", &g->site_max_mhz) || !field_u32(buffer, "drain", &g->drain) ||
        !field(buffer, "start_ticks", ticks, sizeof(ticks)) || !field(buffer, "nvml", g->nvml, sizeof(g->nvml)) ||
        !field(buffer, "restart", g->restart, sizeof(g->restart)) ||
        !field(buffer, "boot_id", g->boot_id, sizeof(g->boot_id)))
        return false;
    g->pid = (pid_t)pid;
    g->group = (pid_t)group;
    g->start_ticks = strtoull(ticks, NULL, 10);
    return true;
}

static bool marked_name(char *name, size_t size, const char *prefix, const char *uuid)
{
    int n = snprintf(name, size, "%s%s", prefix, uuid);
    return uuid_ok(uuid) && n > 0 && (size_t)n < size;
}

bool mark_write(int job_fd, const char *uuid, const struct mark *m)
{
    char name[EERL_UUID_LEN + 16], text[128];
    int n = snprintf(text, sizeof(text), "application=%u\nmemory_mhz=%u\nbefore_mhz=%u\nset_mhz=%u\n",
                     m->application ? 1U : 0U, m->memory_mhz, m->before_mhz, m->set_mhz);

    return n > 0 && (size_t)n < sizeof(text) && marked_name(name, sizeof(name), MARK, uuid) &&
           state_write(job_fd, name, 0600, text);
}

bool mark_read(int job_fd, const char *uuid, struct mark *m)
{
    char name[EERL_UUID_LEN + 16], text[128];
    uint32_t application = 0;

    memset(m, 0, sizeof(*m));
    if (!marked_name(name, sizeof(name), MARK, uuid) || state_read(job_fd, name, text, sizeof(text)) < 0)
        return false;
    /* A mark that cannot be read is a mark all the same: a lock is what it then stands for. */
    if (field_u32(text, "application", &application) && field_u32(text, "memory_mhz", &m->memory_mhz) &&
        field_u32(text, "before_mhz", &m->before_mhz) && field_u32(text, "set_mhz", &m->set_mhz))
        m->application = application == 1;
    return true;
}

bool mark_clear(int job_fd, const char *uuid)
{
    char name[EERL_UUID_LEN + 16];

    return marked_name(name, sizeof(name), MARK, uuid) && (unlinkat(job_fd, name, 0) == 0 || errno == ENOENT);
}

/* A second descriptor for reading the folder, as closedir closes the one it was given. */
static DIR *open_list(int folder)
{
    int fd = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd >= 0 ? fdopendir(fd) : NULL;

    if (d == NULL && fd >= 0)
        close(fd);
    return d;
}

int mark_list(int job_fd, char (*uuid)[EERL_UUID_LEN], int max)
{
    int n = 0;
    DIR *d = open_list(job_fd);

    if (d == NULL)
        return 0;
    for (struct dirent *e; n < max && (e = readdir(d)) != NULL;) {
        const char *id = e->d_name + strlen(MARK);
        if (strncmp(e->d_name, MARK, strlen(MARK)) == 0 && uuid_ok(id)) {
            memcpy(uuid[n], id, strlen(id) + 1);
            n++;
        }
    }
    closedir(d);
    return n;
}

void unreset_write(int node_fd, const char *uuid, const char *text)
{
    char name[EERL_UUID_LEN + 16];

    if (marked_name(name, sizeof(name), UNRESET, uuid))
        state_write(node_fd, name, 0644, text);
}

void unreset_clear(int node_fd, const char *uuid)
{
    char name[EERL_UUID_LEN + 16];

    if (marked_name(name, sizeof(name), UNRESET, uuid))
        unlinkat(node_fd, name, 0);
}

void state_forget(int node_fd, uint32_t job, bool keep_marks)
{
    char name[16];
    int job_fd = state_job_folder(node_fd, job, false);
    DIR *d = job_fd >= 0 ? open_list(job_fd) : NULL;

    if (d != NULL) {
        for (struct dirent *e; (e = readdir(d)) != NULL;) {
            bool kept = strncmp(e->d_name, MARK, strlen(MARK)) == 0 || strcmp(e->d_name, GRANT) == 0;
            if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0 && !(keep_marks && kept))
                unlinkat(job_fd, e->d_name, 0);
        }
        closedir(d);
    }
    if (job_fd >= 0)
        close(job_fd);
    if (!keep_marks && job_name(name, sizeof(name), job))
        unlinkat(node_fd, name, AT_REMOVEDIR);
}
