/* Lets Python call the strict readers of spank/: one case per run, its result on stdout. */
#include "config.h"
#include "protocol.h"
#include "text.h"
#include "trust.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static int show_config(int ac, char *av[])
{
    struct config c;
    char why[EERL_WHY_LEN] = "";
    bool ok = config_parse(&c, ac, av, why, sizeof(why));

    printf("%s default=%u min_mhz=%u max_mhz=%u idle_min_mhz=%u site_max_mhz=%u lease_s=%u shared_gpus=%u drain=%u "
           "gpu_order=%u gpus_per_node=%u\n%s\n",
           ok ? "ok" : "bad", c.default_on, c.min_mhz, c.max_mhz, c.idle_min_mhz, c.site_max_mhz, c.lease_s,
           c.shared_gpus, c.drain, c.gpu_order, c.gpus_per_node, why);
    return 0;
}

static int show_request(void)
{
    char line[4096];
    struct request r;
    ssize_t n = read(STDIN_FILENO, line, sizeof(line));

    request_parse(line, n > 0 ? (size_t)n : 0, &r);
    printf("%d %u %d %s\n", (int)r.kind, r.number, r.every, r.uuid);
    return 0;
}

int main(int argc, char *argv[])
{
    uint32_t value = 0, list[EERL_MAX_GPUS];
    char why[EERL_WHY_LEN] = "";

    if (argc == 2 && strcmp(argv[1], "request") == 0)
        return show_request();
    if (argc < 3)
        return 2;
    if (strcmp(argv[1], "number") == 0) {
        bool ok = parse_u32(argv[2], 0, UINT32_MAX, &value);
        printf("%s %u\n", ok ? "ok" : "bad", value);
    } else if (strcmp(argv[1], "list") == 0) {
        int n = parse_index_list(argv[2], list, EERL_MAX_GPUS);
        printf("%d", n);
        for (int i = 0; i < n; i++)
            printf(" %u", list[i]);
        putchar('\n');
    } else if (strcmp(argv[1], "node") == 0) {
        puts(node_name_ok(argv[2]) ? "ok" : "bad");
    } else if (strcmp(argv[1], "uuid") == 0) {
        puts(uuid_ok(argv[2]) ? "ok" : "bad");
    } else if (strcmp(argv[1], "trust") == 0) {
        bool ok = trusted_file(argv[2], why, sizeof(why));
        printf("%s %s\n", ok ? "ok" : "bad", why);
    } else if (strcmp(argv[1], "config") == 0) {
        return show_config(argc - 3, argv + 3);
    } else {
        return 2;
    }
    return 0;
}
