#include "admit.h"

#include <grp.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GROUPS_MAX 1024

static const char *user_name(const struct job *job)
{
    if (job->user != NULL)
        return job->user;
    const struct passwd *entry = getpwuid(job->uid); /* NOLINT: no other thread yet */
    return entry != NULL ? entry->pw_name : NULL;
}

static bool named(const char *list, const char *name, uint32_t number)
{
    char digits[16];

    snprintf(digits, sizeof(digits), "%u", number);
    return list_has(list, digits) || (name != NULL && list_has(list, name));
}

static bool in_groups(const struct job *job, const char *name)
{
    gid_t groups[GROUPS_MAX];
    int n = GROUPS_MAX;

    if (name == NULL || getgrouplist(name, job->gid, groups, &n) < 0)
        n = n > GROUPS_MAX ? GROUPS_MAX : 0; /* more than any site has: the first ones must do */
    for (int i = 0; i < n; i++) {
        const struct group *entry = getgrgid(groups[i]);
        if (named(job->config.groups, entry != NULL ? entry->gr_name : NULL, groups[i]))
            return true;
    }
    return false;
}

static bool in_list(const char *list, const char *key, const char *what, const char *value, char *why, size_t why_size)
{
    if (list == NULL || (value != NULL && list_has(list, value)))
        return true;
    if (value == NULL)
        snprintf(why, why_size, "this Slurm does not tell the prolog the job's %s, which %s= asks for", what, key);
    else
        snprintf(why, why_size, "the site has switched eerl on for some %ss only, not for %.60s", what, value);
    return false;
}

bool admitted(const struct job *job, char *why, size_t why_size)
{
    const struct config *c = &job->config;
    const char *name = c->users != NULL || c->groups != NULL ? user_name(job) : NULL;

    if ((c->users != NULL || c->groups != NULL) && !(c->users != NULL && named(c->users, name, job->uid)) &&
        !(c->groups != NULL && in_groups(job, name))) {
        snprintf(why, why_size, "the site has switched eerl on for some users only; ask its admins");
        return false;
    }
    return in_list(c->partitions, "partitions", "partition", job->partition, why, why_size) &&
           in_list(c->accounts, "accounts", "account", job->account, why, why_size);
}
