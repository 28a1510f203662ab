#include "config.h"

#include "text.h"

#include <stdio.h>
#include <string.h>

enum kind { KIND_NUMBER, KIND_CHOICE, KIND_LIST, KIND_PATH };

struct key {
    const char *name;
    enum kind kind;
    size_t offset;
    uint32_t min, max;
    const char *choices; /* comma list; the value is the position in it */
};

#define MEMBER(m) offsetof(struct config, m)

/* 100000 MHz is far above any GPU and keeps NVML's symbolic clock values (0xffffff01 …) out of reach. */
static const struct key keys[] = {
    {"default", KIND_CHOICE, MEMBER(default_on), 0, 0, "off,on"},
    {"users", KIND_LIST, MEMBER(users), 0, 0, NULL},
    {"groups", KIND_LIST, MEMBER(groups), 0, 0, NULL},
    {"partitions", KIND_LIST, MEMBER(partitions), 0, 0, NULL},
    {"accounts", KIND_LIST, MEMBER(accounts), 0, 0, NULL},
    {"min_mhz", KIND_NUMBER, MEMBER(min_mhz), 1, 100000, NULL},
    {"max_mhz", KIND_NUMBER, MEMBER(max_mhz), 1, 100000, NULL},
    {"idle_min_mhz", KIND_NUMBER, MEMBER(idle_min_mhz), 1, 100000, NULL},
    {"site_max_mhz", KIND_NUMBER, MEMBER(site_max_mhz), 1, 100000, NULL},
    {"lease_s", KIND_NUMBER, MEMBER(lease_s), 2, 300, NULL},
    {"shared_gpus", KIND_CHOICE, MEMBER(shared_gpus), 0, 0, "no,yes"},
    {"on_reset_failure", KIND_CHOICE, MEMBER(drain), 0, 0, "log,drain"},
    {"gpu_order", KIND_CHOICE, MEMBER(gpu_order), 0, 0, "auto,pci,minor"},
    {"gpus_per_node", KIND_NUMBER, MEMBER(gpus_per_node), 1, EERL_MAX_GPUS, NULL},
    {"nvml", KIND_PATH, MEMBER(nvml), 0, 0, NULL},
    {"clockd", KIND_PATH, MEMBER(clockd), 0, 0, NULL},
};

static bool choose(const char *choices, const char *value, uint32_t *position)
{
    for (uint32_t i = 0; *choices != '\0'; i++) {
        size_t n = strcspn(choices, ",");
        if (strlen(value) == n && strncmp(choices, value, n) == 0) {
            *position = i;
            return true;
        }
        choices += n + (choices[n] == ',');
    }
    return false;
}

static bool set(struct config *c, const struct key *k, const char *value, char *why, size_t why_size)
{
    void *member = (char *)c + k->offset;

    switch (k->kind) {
    case KIND_NUMBER:
        if (parse_u32(value, k->min, k->max, member))
            return true;
        snprintf(why, why_size, "%s=%.40s: allowed is a whole number from %u to %u", k->name, value, k->min, k->max);
        return false;
    case KIND_CHOICE:
        if (choose(k->choices, value, member))
            return true;
        snprintf(why, why_size, "%s=%.40s: allowed is one of %s", k->name, value, k->choices);
        return false;
    case KIND_PATH:
        if (value[0] == '/') {
            *(const char **)member = value;
            return true;
        }
        snprintf(why, why_size, "%s=%.100s: allowed is an absolute path", k->name, value);
        return false;
    case KIND_LIST:
        break;
    }
    if (value[0] != '\0') {
        *(const char **)member = value;
        return true;
    }
    snprintf(why, why_size, "%s= is empty: list names with commas between, or leave the key out", k->name);
    return false;
}

static bool one(struct config *c, const char *argument, char *why, size_t why_size)
{
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        size_t n = strlen(keys[i].name);
        if (strncmp(argument, keys[i].name, n) == 0 && argument[n] == '=')
            return set(c, &keys[i], argument + n + 1, why, why_size);
    }
    struct text t;
    text_start(&t, why, why_size);
    text_add(&t, "%.60s is not a known key; allowed:", argument);
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
        text_add(&t, " %s", keys[i].name);
    return false;
}

static bool consistent(const struct config *c, char *why, size_t why_size)
{
    uint32_t top = c->max_mhz;

    if (c->site_max_mhz > 0 && (top == 0 || c->site_max_mhz < top))
        top = c->site_max_mhz;
    if (top > 0 && c->min_mhz > top) {
        snprintf(why, why_size, "min_mhz=%u is above max_mhz or site_max_mhz (%u): no clock is left", c->min_mhz, top);
        return false;
    }
    return true;
}

bool config_parse(struct config *c, int ac, char *const av[], char *why, size_t why_size)
{
    bool ok = true;
    char more[EERL_WHY_LEN] = "";

    memset(c, 0, sizeof(*c));
    c->lease_s = 10;
    for (int i = 0; i < ac; i++)
        if (!one(c, av[i], ok ? why : more, ok ? why_size : sizeof(more)))
            ok = false;
    return ok && consistent(c, why, why_size);
}
