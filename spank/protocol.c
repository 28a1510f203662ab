#include "protocol.h"

#include <string.h>

static void wrong(struct request *r, int code, const char *why)
{
    r->kind = ASK_WRONG;
    r->code = code;
    r->wrong = why;
}

/* Split at single blanks into at most `max` words; -1 when there are more, or an empty one. */
static int split(char *line, char **word, int max)
{
    int n = 0;

    for (;;) {
        size_t len = strcspn(line, " ");
        if (len == 0 || n == max)
            return -1;
        word[n++] = line;
        if (line[len] == '\0')
            return n;
        line[len] = '\0';
        line += len + 1;
    }
}

static bool target(struct request *r, const char *word)
{
    r->every = strcmp(word, "*") == 0;
    if (r->every)
        return true;
    if (!uuid_ok(word))
        return false;
    memcpy(r->uuid, word, strlen(word) + 1);
    return true;
}

void request_parse(const char *line, size_t len, struct request *r)
{
    char copy[REQUEST_MAX + 1], *word[3];

    memset(r, 0, sizeof(*r));
    if (len > REQUEST_MAX) {
        wrong(r, NVML_INVALID_ARGUMENT, "a line has at most 256 bytes");
        return;
    }
    for (size_t i = 0; i < len; i++)
        if (line[i] < 0x20 || line[i] > 0x7e) {
            wrong(r, NVML_INVALID_ARGUMENT, "a line is printable ASCII");
            return;
        }
    memcpy(copy, line, len);
    copy[len] = '\0';
    int n = split(copy, word, 3);
    if (n == 1 && strcmp(word[0], "ping") == 0) {
        r->kind = ASK_PING;
    } else if (n == 1 && strcmp(word[0], "sample") == 0) {
        r->kind = ASK_SAMPLE;
    } else if (n == 2 && strcmp(word[0], "hello") == 0) {
        r->kind = ASK_HELLO;
        if (!parse_u32(word[1], 0, 1000000, &r->number) || r->number != PROTOCOL_VERSION)
            wrong(r, NVML_NOT_SUPPORTED, "this broker speaks protocol version 1 only: hello 1");
    } else if (n == 2 && strcmp(word[0], "reset") == 0) {
        r->kind = ASK_RESET;
        if (!target(r, word[1]))
            wrong(r, NVML_INVALID_ARGUMENT, "reset needs a GPU UUID or *");
    } else if (n == 3 && strcmp(word[0], "lock") == 0) {
        r->kind = ASK_LOCK;
        if (!target(r, word[1]))
            wrong(r, NVML_INVALID_ARGUMENT, "lock needs a GPU UUID or *");
        else if (!parse_u32(word[2], 1, 100000, &r->number))
            wrong(r, NVML_INVALID_ARGUMENT, "lock needs a clock in whole MHz");
    } else {
        wrong(r, NVML_INVALID_ARGUMENT, "not a request; known: hello 1, lock UUID|* MHZ, reset UUID|*, sample, ping");
    }
}

void answer_refusal(struct text *t, int code, const char *why)
{
    text_add(t, "err %d - %s\n", code, why);
}

static bool supports(const struct lane *lane, uint32_t mhz)
{
    for (int i = 0; i < lane->clocks; i++)
        if (lane->clocks_mhz[i] == mhz)
            return true;
    return false;
}

int common_clocks(struct lanes *lanes, const struct config *c, uint32_t *mhz, int max)
{
    uint64_t ready = lanes_ready(lanes); /* a GPU that hangs has told nothing yet, and rules nothing out */
    int n = 0, first = 0;

    while (first < lanes->n && (ready & (UINT64_C(1) << first)) == 0)
        first++;
    for (int i = 0; first < lanes->n && i < lanes->lane[first].clocks && n < max; i++) {
        uint32_t clock = lanes->lane[first].clocks_mhz[i];
        bool all = clock >= c->min_mhz && (c->max_mhz == 0 || clock <= c->max_mhz) &&
                   (c->site_max_mhz == 0 || clock <= c->site_max_mhz);
        for (int k = first + 1; all && k < lanes->n; k++)
            all = (ready & (UINT64_C(1) << k)) == 0 || supports(&lanes->lane[k], clock);
        if (all)
            mhz[n++] = clock;
    }
    return n;
}

static const char *backend(enum method method)
{
    switch (method) {
    case METHOD_LOCKED:
        return "locked-clocks";
    case METHOD_APPLICATION:
        return "application-clocks";
    case METHOD_NONE:
        break;
    }
    return "none";
}

/* What the energy counter covers: the board, or a superchip's module with CPU and memory. Known for GH200
 * (module); not established for GB200 and GB300, so nothing is claimed there. */
static const char *scope_of(const struct gpu *g)
{
    if (strstr(g->name, "GH200") != NULL)
        return "module";
    return strstr(g->name, "GB200") != NULL || strstr(g->name, "GB300") != NULL || g->name[0] == '\0' ? "unknown"
                                                                                                       : "gpu";
}

static const char *common_scope(const struct lanes *lanes)
{
    const char *scope = lanes->n > 0 ? scope_of(&lanes->lane[0].gpu) : "unknown";

    for (int i = 1; i < lanes->n; i++)
        if (strcmp(scope_of(&lanes->lane[i].gpu), scope) != 0)
            return "unknown";
    return scope;
}

static void add_clocks(struct text *t, struct lanes *lanes, const struct config *c)
{
    uint32_t mhz[LANE_CLOCKS];
    int n = common_clocks(lanes, c, mhz, LANE_CLOCKS);

    if (n > 0) {
        text_add(t, " min_mhz=%u max_mhz=%u", mhz[0], mhz[n - 1]);
        if (c->idle_min_mhz > 0 && c->idle_min_mhz < mhz[0])
            text_add(t, " idle_min_mhz=%u", c->idle_min_mhz);
    }
    for (int i = 0; i < n; i++)
        text_add(t, "%s%u", i == 0 ? " clocks=" : ",", mhz[i]);
}

void answer_hello(struct text *t, const struct hello *h, const struct config *c)
{
    enum method method = h->lanes != NULL && !h->measure_only ? lanes_method(h->lanes) : METHOD_NONE;
    int n = h->lanes != NULL ? h->lanes->n : 0;

    text_add(t, "ok gpus=");
    for (int i = 0; i < n; i++)
        text_add(t, "%s%s", i == 0 ? "" : ",", h->lanes->lane[i].gpu.uuid);
    text_add(t, " backend=%s lease_s=%u", backend(method), c->lease_s);
    if (h->lanes != NULL)
        add_clocks(t, h->lanes, c);
    for (int i = 0; i < n; i++) {
        text_add(t, i == 0 ? " names=" : ",");
        text_add_word(t, h->lanes->lane[i].gpu.name);
    }
    for (int i = 0; i < n; i++)
        text_add(t, "%s%u", i == 0 ? " idx=" : ",", h->lanes->lane[i].gpu.nvml_index);
    if (h->driver[0] != '\0') {
        text_add(t, " driver=");
        text_add_word(t, h->driver);
    }
    if (h->lanes != NULL)
        text_add(t, " scope=%s energy=%s", common_scope(h->lanes), h->lanes->nvml->energy_mj != NULL ? "counter" : "power");
    if (h->missing[0] != '\0')
        text_add(t, " missing=%s", h->missing);
    if (method == METHOD_NONE) {
        text_add(t, " reason=");
        text_add_word(t, h->reason[0] != '\0' ? h->reason
                                              : "neither locked nor application clocks can be set on these GPUs");
    }
    text_add(t, "\n");
}

static void add_reading(struct text *t, const struct reading *r, int64_t head_ns)
{
    if (r->t_ns - head_ns > 1000000) /* read later than the others: its own time counts */
        text_add(t, " t_ns=%lld", (long long)r->t_ns);
    if (r->has_energy)
        text_add(t, " energy_mj=%llu", (unsigned long long)r->energy_mj);
    if (r->has_clock)
        text_add(t, " sm_mhz=%u", r->sm_mhz);
    if (r->has_power)
        text_add(t, " power_mw=%u", r->power_mw);
    if (r->has_utilization)
        text_add(t, " util_pct=%u", r->utilization_pct);
    if (r->has_reasons)
        text_add(t, " reasons=0x%llx", (unsigned long long)r->reasons);
    if (r->limit_mw > 0)
        text_add(t, " limit_mw=%u", r->limit_mw);
}

void answer_sample(struct text *t, const struct lanes *lanes, const struct op *op)
{
    int64_t head_ns = 0;

    for (int i = 0; i < lanes->n; i++)
        if (op->code[i] == NVML_OK && (head_ns == 0 || op->reading[i].t_ns < head_ns))
            head_ns = op->reading[i].t_ns;
    if (head_ns == 0)
        head_ns = clock_now_ns();
    text_add(t, "ok t_ns=%lld", (long long)head_ns);
    for (int i = 0; i < lanes->n; i++) {
        text_add(t, "%s %s", i == 0 ? "" : " ;", lanes->lane[i].gpu.uuid);
        if (op->code[i] == NVML_OK)
            add_reading(t, &op->reading[i], head_ns);
        else
            text_add(t, " err=%d", op->code[i]);
    }
    text_add(t, "\n");
}

void answer_result(struct text *t, const struct lanes *lanes, const struct op *op)
{
    bool failed = false;

    for (int i = 0; i < lanes->n; i++) {
        if ((op->wanted & (UINT64_C(1) << i)) == 0 || op->code[i] == NVML_OK)
            continue;
        text_add(t, "%s %d %s %.60s", failed ? " ;" : "err", op->code[i], lanes->lane[i].gpu.uuid,
                 nvml_text(lanes->nvml, op->code[i]));
        failed = true;
    }
    text_add(t, failed ? "\n" : "ok\n");
}
