#include "serve.h"

#include "admit.h"
#include "grant.h"
#include "oneshot.h"
#include "privilege.h"
#include "proc.h"
#include "report.h"
#include "reset.h"
#include "supervisor.h"
#include "trust.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <syslog.h>
#include <time.h>
#include <unistd.h>

#define YOUNG_S 600 /* a job this young may not have a step yet */

struct place { /* folders of the job */
    int node_fd, job_fd;
};

static bool open_place(const struct job *job, struct place *p)
{
    int root = state_root(true);

    p->node_fd = root >= 0 ? state_folder(root, job->node, true) : -1;
    p->job_fd = p->node_fd >= 0 ? state_job_folder(p->node_fd, job->id, true) : -1;
    if (p->job_fd < 0)
        report(LOG_ERR, "job %u: no clock control: %s/%s/%u cannot be used: %s", job->id, STATE_ROOT, job->node, job->id,
               strerror(errno));
    if (root >= 0)
        close(root);
    return p->job_fd >= 0;
}

static int refuse(const struct job *job, int job_fd, const char *why)
{
    state_reason(job_fd, why);
    report(LOG_WARNING, "job %u: no clock control: %s", job->id, why);
    report_end();
    return 1;
}

static bool overlaps(const struct job *job, int other_fd, uint32_t *gpu)
{
    char text[256];
    uint32_t theirs[EERL_MAX_GPUS];

    if (state_read(other_fd, STATE_GPUS, text, sizeof(text)) <= 0)
        return false;
    text[strcspn(text, "\n")] = '\0';
    int n = parse_index_list(text, theirs, EERL_MAX_GPUS);
    for (int i = 0; i < n; i++)
        for (int k = 0; k < job->positions; k++)
            if (theirs[i] == job->position[k]) {
                *gpu = theirs[i];
                return true;
            }
    return false;
}

/* Is that job still on the node? Its broker alone proves nothing: an epilog may have been lost. */
static bool lives(int other_fd, uint32_t other)
{
    struct stat st;

    return proc_job_has_stepd(other) || (fstat(other_fd, &st) == 0 && time(NULL) - st.st_mtime < YOUNG_S);
}

/* Another job's folder: true when it shares a GPU with ours and lives. Its grant ends then; a dead job's too. */
static bool contested_by(const struct job *job, int node_fd, uint32_t other, char *why, size_t why_size)
{
    uint32_t gpu = 0;
    int other_fd = state_job_folder(node_fd, other, false);
    bool contested = false;

    if (other_fd >= 0 && overlaps(job, other_fd, &gpu)) {
        char theirs[EERL_WHY_LEN];
        contested = lives(other_fd, other);
        snprintf(why, why_size, "Slurm's GPU %u is job %u's as well, and a clock is the whole GPU's", gpu, other);
        if (grant_alive(other_fd)) {
            snprintf(theirs, sizeof(theirs), "Slurm's GPU %u is job %u's as well now: clocks handed back for good", gpu, job->id);
            report(LOG_WARNING, "job %u: grant ends: %s", other, theirs);
            stop_broker(other_fd, other);
            reset_marks(node_fd, other_fd, other, &job->config, false);
            state_reason(other_fd, theirs);
        }
    }
    if (other_fd >= 0)
        close(other_fd);
    return contested;
}

static bool contested(const struct job *job, int node_fd, char *why, size_t why_size)
{
    bool yes = false;
    uint32_t other;
    DIR *d = state_list(node_fd);

    for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;)
        if (parse_u32(e->d_name, 1, UINT32_MAX, &other) && other != job->id)
            yes = contested_by(job, node_fd, other, why, why_size) || yes;
    if (d != NULL)
        closedir(d);
    return yes;
}

static bool note_gpus(const struct job *job, int job_fd)
{
    char line[256];
    int n = snprintf(line, sizeof(line), "%s\n", job->position_text);

    return n > 0 && (size_t)n < sizeof(line) && state_write(job_fd, STATE_GPUS, 0644, line);
}

/* A job without a grant of its own still ends those of others, where GPUs are shared out. */
static bool note_contest(const struct job *job, const struct place *p)
{
    char why[EERL_WHY_LEN];

    contested(job, p->node_fd, why, sizeof(why));
    return note_gpus(job, p->job_fd);
}

static int listen_for(const struct job *job, int job_fd)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    int n = snprintf(at.sun_path, sizeof(at.sun_path), "%s/%s/%u/%s", STATE_ROOT, job->node, job->id, STATE_SOCKET);

    if (n < 0 || (size_t)n >= sizeof(at.sun_path)) {
        errno = ENAMETOOLONG;
        return -1;
    }
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    unlinkat(job_fd, STATE_SOCKET, 0); /* of an earlier attempt of the same job; the grant's lock is ours */
    mode_t before = umask(0177);
    bool ok = bind(fd, (struct sockaddr *)&at, sizeof(at)) == 0 && listen(fd, 16) == 0 &&
              fchownat(job_fd, STATE_SOCKET, job->uid, (gid_t)-1, AT_SYMLINK_NOFOLLOW) == 0;
    umask(before);
    if (ok)
        return fd;
    int saved = errno;
    close(fd);
    errno = saved;
    return -1;
}

static bool record(const struct job *job, int grant_fd)
{
    static struct grant g; /* large */

    g.job = job->id;
    g.uid = job->uid;
    g.pid = getpid();
    g.group = getpgid(0);
    g.start_ticks = proc_start_ticks(g.pid);
    g.site_max_mhz = job->config.site_max_mhz;
    g.drain = job->config.drain;
    proc_boot_id(g.boot_id, sizeof(g.boot_id));
    int a = snprintf(g.restart, sizeof(g.restart), "%s", job->restart != NULL ? job->restart : "-");
    int b = snprintf(g.nvml, sizeof(g.nvml), "%s", job->config.nvml != NULL ? job->config.nvml : "");
    return a > 0 && (size_t)a < sizeof(g.restart) && b >= 0 && (size_t)b < sizeof(g.nvml) && grant_write(grant_fd, &g);
}

int serve(const struct job *job)
{
    char why[EERL_WHY_LEN], detail[EERL_WHY_LEN];
    struct place p;

    if (!open_place(job, &p))
        return 1;
    state_reason(p.job_fd, "the broker did not finish starting; see the node's slurmd log");
    if (job->positions < 0)
        return refuse(job, p.job_fd, "SLURM_JOB_GPUS is not a list of GPU numbers");
    if (!admitted(job, why, sizeof(why))) {
        if (job->config.shared_gpus != 0)
            note_contest(job, &p);
        return refuse(job, p.job_fd, why);
    }
    if (job->config.nvml != NULL && !trusted_file(job->config.nvml, detail, sizeof(detail))) {
        snprintf(why, sizeof(why), "nvml= in plugstack.conf is not used: %.200s", detail);
        return refuse(job, p.job_fd, why);
    }
    if (!stop_broker(p.job_fd, job->id)) /* of an earlier attempt, its epilog lost */
        return refuse(job, p.job_fd, "an earlier broker of this job cannot be ended");
    int grant_fd = grant_lock(p.job_fd, true, 1000);
    if (grant_fd < 0)
        return refuse(job, p.job_fd, "the grant's record cannot be locked");
    if (contested(job, p.node_fd, why, sizeof(why))) {
        note_gpus(job, p.job_fd);
        return refuse(job, p.job_fd, why);
    }
    int listen_fd = note_gpus(job, p.job_fd) ? listen_for(job, p.job_fd) : -1;
    if (listen_fd < 0 || !record(job, grant_fd)) {
        snprintf(why, sizeof(why), "the broker's socket or record cannot be made: %s", strerror(errno));
        return refuse(job, p.job_fd, why);
    }
    if (!privilege_drop(why, sizeof(why))) {
        unlinkat(p.job_fd, STATE_SOCKET, 0);
        return refuse(job, p.job_fd, why);
    }
    unlinkat(p.job_fd, STATE_REASON, 0);
    report(LOG_INFO, "job %u: clock control granted to uid %u for Slurm's GPUs %s", job->id, (unsigned)job->uid,
           job->position_text);
    report_end();
    supervisor_run(job, listen_fd, p.node_fd, p.job_fd);
}

int claim(const struct job *job)
{
    struct place p;

    return job->positions > 0 && open_place(job, &p) && note_contest(job, &p) ? 0 : 1;
}
