#include "conn.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

void conn_start(struct conn *c, int fd)
{
    c->fd = fd;
    c->in_len = c->out_len = c->out_sent = 0;
    c->op = NULL;
    c->hello_waits = c->greeted = c->closing = false;
    c->deadline_ns = 0;
    c->last_line_ns = clock_now_ns();
}

bool conn_ready(const struct conn *c)
{
    return c->op == NULL && !c->hello_waits && c->out_len == 0 && !c->closing;
}

bool conn_fill(struct conn *c)
{
    if (c->in_len == sizeof(c->in))
        return true;
    ssize_t n = recv(c->fd, c->in + c->in_len, sizeof(c->in) - c->in_len, MSG_DONTWAIT);
    if (n == 0)
        return false;
    if (n < 0)
        return errno == EAGAIN || errno == EINTR;
    c->in_len += (size_t)n;
    return true;
}

bool conn_next(struct conn *c, struct request *r)
{
    char *end = memchr(c->in, '\n', c->in_len);

    if (end == NULL) {
        if (c->in_len <= REQUEST_MAX)
            return false;
        request_parse(c->in, c->in_len, r); /* says that it is too long */
        c->in_len = 0;
        c->closing = true; /* where the next line would begin is not known */
        return true;
    }
    size_t len = (size_t)(end - c->in);
    request_parse(c->in, len, r);
    c->in_len -= len + 1;
    memmove(c->in, end + 1, c->in_len);
    c->last_line_ns = clock_now_ns();
    return true;
}

void conn_answer(struct conn *c, struct text *t)
{
    text_start(t, c->out, sizeof(c->out));
}

void conn_queue(struct conn *c, const struct text *t)
{
    struct text refusal;

    c->out_len = t->len;
    c->out_sent = 0;
    if (t->full) {
        text_start(&refusal, c->out, sizeof(c->out));
        answer_refusal(&refusal, NVML_UNKNOWN, "the answer does not fit a line");
        c->out_len = refusal.len;
    }
}

bool conn_flush(struct conn *c)
{
    while (c->out_sent < c->out_len) {
        ssize_t n = send(c->fd, c->out + c->out_sent, c->out_len - c->out_sent, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0)
            return errno == EAGAIN || errno == EINTR;
        c->out_sent += (size_t)n;
    }
    c->out_len = c->out_sent = 0;
    return !c->closing;
}
