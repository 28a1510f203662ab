#include "proc.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static ssize_t read_small(int dir, const char *path, char *buffer, size_t size)
{
    int fd = openat(dir, path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    ssize_t n;
    do
        n = read(fd, buffer, size - 1);
    while (n < 0 && errno == EINTR);
    close(fd);
    if (n >= 0)
        buffer[n] = '\0';
    return n;
}

uint64_t proc_start_ticks(pid_t pid)
{
    char path[32], stat_line[1024];

    int n = snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    if (pid <= 0 || n < 0 || (size_t)n >= sizeof(path) || read_small(AT_FDCWD, path, stat_line, sizeof(stat_line)) <= 0)
        return 0;
    char *field = strrchr(stat_line, ')'); /* the name before it may hold blanks and brackets */
    if (field == NULL || field[1] != ' ' || field[2] == 'Z' || field[2] == 'X')
        return 0;
    field += 2;
    for (int i = 3; i < 22; i++) { /* proc(5): state is field 3, starttime field 22 */
        field = strchr(field, ' ');
        if (field == NULL)
            return 0;
        field++;
    }
    return strtoull(field, NULL, 10);
}

bool proc_group_is_ours(pid_t group)
{
    bool found = false;
    DIR *proc = opendir("/proc");

    for (struct dirent *e; proc != NULL && !found && (e = readdir(proc)) != NULL;) {
        char path[NAME_MAX + 16], line[1024], state;
        int parent, its_group;
        int n = snprintf(path, sizeof(path), "%s/stat", e->d_name);
        if (!isdigit((unsigned char)e->d_name[0]) || n < 0 || (size_t)n >= sizeof(path) ||
            read_small(dirfd(proc), path, line, sizeof(line)) <= 0)
            continue;
        char *begin = strchr(line, '('), *end = strrchr(line, ')');
        if (begin == NULL || end == NULL || sscanf(end + 1, " %c %d %d", &state, &parent, &its_group) != 3)
            continue;
        found = its_group == (int)group && state != 'Z' && strncmp(begin + 1, PROC_NAMES, strlen(PROC_NAMES)) == 0;
    }
    if (proc != NULL)
        closedir(proc);
    return found;
}

bool proc_job_has_stepd(uint32_t job)
{
    char want[64];
    bool found = false;
    DIR *proc = opendir("/proc");

    int n = snprintf(want, sizeof(want), "slurmstepd: [%u", job);
    if (proc == NULL || n < 0 || (size_t)n >= sizeof(want)) {
        if (proc != NULL)
            closedir(proc);
        return true; /* cannot look: "still there" is the answer that takes nothing from a job */
    }
    for (struct dirent *e; !found && (e = readdir(proc)) != NULL;) {
        char path[NAME_MAX + 16], title[64];
        struct stat st;
        if (!isdigit((unsigned char)e->d_name[0]))
            continue;
        int k = snprintf(path, sizeof(path), "%s/cmdline", e->d_name);
        if (k < 0 || (size_t)k >= sizeof(path))
            continue;
        if (read_small(dirfd(proc), path, title, sizeof(title)) > n && strncmp(title, want, (size_t)n) == 0 &&
            (title[n] == '.' || title[n] == ']') && fstatat(dirfd(proc), e->d_name, &st, 0) == 0 && st.st_uid == 0)
            found = true;
    }
    closedir(proc);
    return found;
}

void proc_boot_id(char *id, size_t size)
{
    if (read_small(AT_FDCWD, "/proc/sys/kernel/random/boot_id", id, size) <= 0)
        id[0] = '\0';
    id[strcspn(id, "\n")] = '\0';
}
