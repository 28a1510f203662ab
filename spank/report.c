#include "report.h"

#include "text.h"

#include <stdarg.h>
#include <stdio.h>
#include <syslog.h>
#include <unistd.h>

static int to = STDERR_FILENO;

void report_to(int fd)
{
    to = fd;
}

void report(int level, const char *format, ...)
{
    char line[2 * EERL_WHY_LEN];
    va_list args;

    va_start(args, format);
    int n = vsnprintf(line, sizeof(line) - 1, format, args);
    va_end(args);
    if (n < 0)
        return;
    if ((size_t)n > sizeof(line) - 2)
        n = (int)sizeof(line) - 2; /* a cut message is better than none */
    line[n] = '\0';
    syslog(level, "%s", line);
    if (to < 0)
        return;
    line[n] = '\n';
    (void)!write(to, line, (size_t)n + 1);
}

void report_end(void)
{
    if (to > STDERR_FILENO)
        close(to);
    to = -1;
}
