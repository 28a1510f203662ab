#include "text.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void text_start(struct text *t, char *buffer, size_t size)
{
    t->at = buffer;
    t->size = size;
    t->len = 0;
    t->full = false;
    buffer[0] = '\0';
}

void text_add(struct text *t, const char *format, ...)
{
    size_t room = t->size - t->len;
    va_list args;

    if (t->full)
        return;
    va_start(args, format);
    int n = vsnprintf(t->at + t->len, room, format, args);
    va_end(args);
    if (n < 0 || (size_t)n >= room) {
        t->at[t->len] = '\0'; /* half an entry would read like a whole one */
        t->full = true;
        return;
    }
    t->len += (size_t)n;
}

void text_add_word(struct text *t, const char *word)
{
    char clean[EERL_WHY_LEN];
    size_t n = 0;

    for (; n < sizeof(clean) - 1 && word[n] != '\0'; n++) {
        unsigned char c = (unsigned char)word[n];
        if (c == ' ' || c == '\t')
            clean[n] = '_';
        else
            clean[n] = (c > 0x20 && c < 0x7f && c != ';') ? (char)c : '?';
    }
    clean[n] = '\0';
    text_add(t, "%s", n > 0 ? clean : "-");
}

bool parse_u32(const char *s, uint32_t min, uint32_t max, uint32_t *value)
{
    char *end = NULL;

    if (s == NULL || !isdigit((unsigned char)s[0]))
        return false; /* strtoul alone would take blanks and signs */
    errno = 0;
    unsigned long n = strtoul(s, &end, 10);
    if (errno != 0 || *end != '\0' || n < min || n > max)
        return false;
    *value = (uint32_t)n;
    return true;
}

static bool take_number(const char **s, uint32_t *value)
{
    char digits[8];
    size_t n = strspn(*s, "0123456789");

    if (n == 0 || n >= sizeof(digits))
        return false;
    memcpy(digits, *s, n);
    digits[n] = '\0';
    *s += n;
    return parse_u32(digits, 0, 9999, value);
}

int parse_index_list(const char *s, uint32_t *index, int max)
{
    int n = 0;

    if (s == NULL || *s == '\0')
        return -1;
    for (;;) {
        uint32_t first, last;
        if (!take_number(&s, &first))
            return -1;
        last = first;
        if (*s == '-') {
            s++;
            if (!take_number(&s, &last) || last < first)
                return -1;
        }
        for (uint32_t i = first; i <= last; i++) {
            for (int k = 0; k < n; k++)
                if (index[k] == i)
                    return -1;
            if (n == max)
                return -1;
            index[n++] = i;
        }
        if (*s == '\0')
            return n;
        if (*s++ != ',')
            return -1;
    }
}

static bool only(const char *s, const char *extra, size_t max)
{
    size_t n = strlen(s);

    if (n == 0 || n > max)
        return false;
    for (size_t i = 0; i < n; i++)
        if (!isalnum((unsigned char)s[i]) && strchr(extra, s[i]) == NULL)
            return false;
    return true;
}

bool node_name_ok(const char *name)
{
    return name != NULL && name[0] != '.' && only(name, "._-", EERL_NODE_NAME_MAX);
}

bool uuid_ok(const char *uuid)
{
    return uuid != NULL && strncmp(uuid, "GPU-", 4) == 0 && only(uuid, "-", EERL_UUID_LEN - 1);
}

bool list_has(const char *comma_list, const char *word)
{
    size_t want = strlen(word);

    while (want > 0 && comma_list != NULL && *comma_list != '\0') {
        size_t n = strcspn(comma_list, ",");
        if (n == want && strncmp(comma_list, word, n) == 0)
            return true;
        comma_list += n;
        if (*comma_list == ',')
            comma_list++;
    }
    return false;
}
