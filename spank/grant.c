#include "grant.h"

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
        int fd = openat(job_fd, STATE_GRANT, O_RDWR | O_NOFOLLOW | O_CLOEXEC | (create ? O_CREAT : 0), 0600);
        if (fd < 0)
            return -1;
        if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
            /* Between open and lock the file may have been forgotten and made anew by another process. */
            if (fstat(fd, &held) == 0 && fstatat(job_fd, STATE_GRANT, &named, AT_SYMLINK_NOFOLLOW) == 0 &&
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
    if (state_read(job_fd, STATE_GRANT, buffer, sizeof(buffer)) <= 0)
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

bool mark_write(int job_fd, const char *uuid, const struct mark *m)
{
    char name[EERL_UUID_LEN + 16], text[128];
    int n = snprintf(text, sizeof(text), "application=%u\nmemory_mhz=%u\nbefore_mhz=%u\nset_mhz=%u\n",
                     m->application ? 1U : 0U, m->memory_mhz, m->before_mhz, m->set_mhz);

    return n > 0 && (size_t)n < sizeof(text) && state_uuid_name(name, sizeof(name), STATE_MARK, uuid) &&
           state_write(job_fd, name, 0600, text);
}

bool mark_read(int job_fd, const char *uuid, struct mark *m)
{
    char name[EERL_UUID_LEN + 16], text[128];
    uint32_t application = 0;

    memset(m, 0, sizeof(*m));
    if (!state_uuid_name(name, sizeof(name), STATE_MARK, uuid) || state_read(job_fd, name, text, sizeof(text)) < 0)
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

    return state_uuid_name(name, sizeof(name), STATE_MARK, uuid) && (unlinkat(job_fd, name, 0) == 0 || errno == ENOENT);
}

int mark_list(int job_fd, char (*uuid)[EERL_UUID_LEN], int max)
{
    int n = 0;
    DIR *d = state_list(job_fd);

    if (d == NULL)
        return 0;
    for (struct dirent *e; n < max && (e = readdir(d)) != NULL;) {
        const char *id = e->d_name + strlen(STATE_MARK);
        if (strncmp(e->d_name, STATE_MARK, strlen(STATE_MARK)) == 0 && uuid_ok(id)) {
            memcpy(uuid[n], id, strlen(id) + 1);
            n++;
        }
    }
    closedir(d);
    return n;
}
