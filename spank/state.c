#include "state.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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

bool state_uuid_name(char *name, size_t size, const char *prefix, const char *uuid)
{
    int n = snprintf(name, size, "%s%s", prefix, uuid);
    return uuid_ok(uuid) && n > 0 && (size_t)n < size;
}

DIR *state_list(int folder)
{
    int fd = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd >= 0 ? fdopendir(fd) : NULL;

    if (d == NULL && fd >= 0)
        close(fd);
    return d;
}

void unreset_write(int node_fd, const char *uuid, const char *text)
{
    char name[EERL_UUID_LEN + 16];

    if (state_uuid_name(name, sizeof(name), UNRESET, uuid))
        state_write(node_fd, name, 0644, text);
}

void unreset_clear(int node_fd, const char *uuid)
{
    char name[EERL_UUID_LEN + 16];

    if (state_uuid_name(name, sizeof(name), UNRESET, uuid))
        unlinkat(node_fd, name, 0);
}

void state_forget(int node_fd, uint32_t job, bool keep_marks)
{
    char name[16];
    int job_fd = state_job_folder(node_fd, job, false);
    DIR *d = job_fd >= 0 ? state_list(job_fd) : NULL;

    if (d != NULL) {
        for (struct dirent *e; (e = readdir(d)) != NULL;) {
            bool kept = strncmp(e->d_name, STATE_MARK, strlen(STATE_MARK)) == 0 || strcmp(e->d_name, STATE_GRANT) == 0;
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
