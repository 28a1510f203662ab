/* What a run of eerl-clockd has to say, once: to syslog, and to whoever started it. */
#ifndef EERL_REPORT_H
#define EERL_REPORT_H

/* `fd` -1: stderr. A short line goes there, and the whole to syslog at `level` (syslog.h). */
void report_to(int fd);
void report(int level, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The last word: the one who waits for us goes on. */
void report_end(void);

#endif
