/* Strict reading and bounded writing of short texts; shared by the plugin and eerl-clockd. */
#ifndef EERL_TEXT_H
#define EERL_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EERL_MAX_GPUS 32      /* more on one node than any machine sold has; more is refused, not cut */
#define EERL_UUID_LEN 96      /* NVML_DEVICE_UUID_V2_BUFFER_SIZE */
#define EERL_NAME_LEN 96      /* NVML_DEVICE_NAME_V2_BUFFER_SIZE */
#define EERL_WHY_LEN 256      /* one sentence that says what is wrong and what mends it */
#define EERL_NODE_NAME_MAX 80 /* "/run/eerl/" + name + "/4294967294/clock" must fit sun_path's 107 bytes */

/* A text that grows inside a fixed buffer; `full` is set, and stays set, once something did not fit. */
struct text {
    char *at;
    size_t len, size;
    bool full;
};

void text_start(struct text *t, char *buffer, size_t size);
void text_add(struct text *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* One word: blanks become `_`, anything else that is not printable ASCII, or ends an entry, becomes `?`. */
void text_add_word(struct text *t, const char *word);

/* Decimal digits only: no sign, blank, exponent or trailing byte. */
bool parse_u32(const char *s, uint32_t min, uint32_t max, uint32_t *value);

/* "0,1,4-7": ascending or not, no repeats. Number of entries, or -1 when it is anything else. */
int parse_index_list(const char *s, uint32_t *index, int max);

bool node_name_ok(const char *name); /* becomes a folder name under /run/eerl */
bool uuid_ok(const char *uuid);      /* becomes part of a file name */
bool list_has(const char *comma_list, const char *word);

#endif
