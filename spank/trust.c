#include "trust.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool roots_alone(const char *path, const struct stat *st, char *why, size_t why_size)
{
    bool sticky_folder = S_ISDIR(st->st_mode) && (st->st_mode & S_ISVTX) != 0;

    if (st->st_uid != 0) {
        snprintf(why, why_size, "%.150s belongs to uid %u, not to root", path, (unsigned)st->st_uid);
        return false;
    }
    if ((st->st_mode & (S_IWGRP | S_IWOTH)) != 0 && !sticky_folder) {
        snprintf(why, why_size, "%.150s can be written by others than root (mode %04o)", path,
                 (unsigned)(st->st_mode & 07777));
        return false;
    }
    return true;
}

static bool look(const char *path, struct stat *st, char *why, size_t why_size)
{
    if (lstat(path, st) == 0)
        return true;
    snprintf(why, why_size, "%.150s: %s", path, strerror(errno));
    return false;
}

static bool follow_last(char *path, size_t size, char *why, size_t why_size)
{
    char target[NAME_MAX + 1];
    ssize_t n = readlink(path, target, sizeof(target) - 1);
    char *name = strrchr(path, '/') + 1;

    if (n > 0) {
        target[n] = '\0';
        if (strchr(target, '/') == NULL && (size_t)(name - path) + (size_t)n < size) {
            memcpy(name, target, (size_t)n + 1);
            return true;
        }
    }
    snprintf(why, why_size, "%.120s is a symbolic link out of its folder: write the path it leads to", path);
    return false;
}

bool trusted_file(const char *path, char *why, size_t why_size)
{
    char part[PATH_MAX];
    struct stat st;

    if (path[0] != '/' || strlen(path) >= sizeof(part) || path[strlen(path) - 1] == '/') {
        snprintf(why, why_size, "%.150s is not the absolute path of a file", path);
        return false;
    }
    for (const char *slash = path; slash != NULL; slash = strchr(slash + 1, '/')) {
        size_t n = slash == path ? 1 : (size_t)(slash - path);
        memcpy(part, path, n);
        part[n] = '\0';
        if (!look(part, &st, why, why_size))
            return false;
        if (S_ISLNK(st.st_mode)) {
            snprintf(why, why_size, "%.120s is a symbolic link: write the path it leads to", part);
            return false;
        }
        if (!roots_alone(part, &st, why, why_size))
            return false;
    }
    memcpy(part, path, strlen(path) + 1);
    for (int links = 0;; links++) {
        if (!look(part, &st, why, why_size))
            return false;
        if (!S_ISLNK(st.st_mode))
            break;
        if (st.st_uid != 0 || links == 8 || !follow_last(part, sizeof(part), why, why_size)) {
            if (st.st_uid != 0 || links == 8)
                snprintf(why, why_size, "%.120s is a link that does not belong to root, or a long chain of them", part);
            return false;
        }
    }
    if (!S_ISREG(st.st_mode)) {
        snprintf(why, why_size, "%.150s is not a regular file", part);
        return false;
    }
    return roots_alone(part, &st, why, why_size);
}
