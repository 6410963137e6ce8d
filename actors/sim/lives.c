/* A job of several lives: the whole of it is killed at any moment, its journal sometimes torn,
 * and it goes on from what is on the disk, until it ends or its last life is let run. Then the
 * journal alone must tell one clean story. */
#include "sim/sim.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LIFE_NS UINT64_C(3000000000) /* at most, but for the last one */

struct lives {
    struct sim_job job;
    FILE *out;
    char *dir;
    tr_rng rng;
    struct sim_result *sum;
};

static void
tell(struct lives *l, const char *kind, const char *text)
{
    l->sum->violations++;
    if (l->out != NULL) {
        (void)fprintf(
            l->out, "seed %" PRIu64 ": its disk: violation %s: %s\n", l->job.seed, kind, text);
    }
}

static void
path_of(const struct lives *l, const char *name, tr_buf *path)
{
    tr_buf_clear(path);
    tr_buf_printf(path, "%s/%s", l->dir, name);
}

/* What a machine that stops leaves at the end of the journal: the beginning of a frame, whose
 * length is longer than what follows. */
static void
tear(struct lives *l)
{
    static const char junk[32] = {120};
    tr_buf path = {0};
    path_of(l, "journal", &path);
    FILE *file = fopen(path.data, "a");
    if (file == NULL || fwrite(junk, 1, 1 + tr_rng_below(&l->rng, 30), file) == 0) {
        tell(l, "disk", strerror(errno));
    }
    if (file != NULL) {
        (void)fclose(file);
    }
    tr_buf_fini(&path);
}

/* Each violation of the auditor is one line that begins with the word. */
static void
audit(struct lives *l)
{
    static const char word[] = "violation ";
    tr_audit_options options = {.size = sizeof options, .journal_only = true};
    troupe_error err = {0};
    char *text = NULL;
    size_t size = 0;
    FILE *memory = open_memstream(&text, &size);
    TR_ASSERT(memory != NULL);
    int violations = troupe_audit(l->dir, memory, &options, &err);
    (void)fclose(memory);
    if (violations < 0) {
        tell(l, "audit", err.text);
    }
    for (char *line = text; line != NULL && *line != '\0';) {
        char *end = strchr(line, '\n');
        char *kind = line + sizeof word - 1;
        if (end != NULL) {
            *end = '\0';
        }
        if (strncmp(line, word, sizeof word - 1) == 0) {
            size_t length = strcspn(kind, ":");
            bool more = kind[length] != '\0';
            kind[length] = '\0';
            tell(l, kind, more ? kind + length + 1 : "");
        }
        line = end != NULL ? end + 1 : NULL;
    }
    free(text); /* from open_memstream */
}

static void
remove_dir(struct lives *l)
{
    DIR *folder = opendir(l->dir);
    tr_buf path = {0};
    for (struct dirent *e; folder != NULL && (e = readdir(folder)) != NULL;) {
        path_of(l, e->d_name, &path);
        (void)unlink(path.data);
    }
    if (folder != NULL) {
        (void)closedir(folder);
    }
    (void)rmdir(l->dir);
    tr_buf_fini(&path);
}

static void
add(struct sim_result *sum, const struct sim_result *life)
{
    sum->events += life->events;
    sum->faults += life->faults;
    sum->violations += life->violations;
    sum->hash = tr_mix((const uint64_t[]){sum->hash, life->hash}, 2);
    sum->finished = life->finished;
    sum->lives++;
    sum->disk_step = life->disk_step;
    sum->durable_step = life->durable_step;
    sum->counters = life->counters;
}

static void
live(struct lives *l, bool verbose)
{
    struct sim_job *job = &l->job;
    for (job->life = 0; job->life < job->lives && !l->sum->finished; job->life++) {
        bool last = job->life + 1 == job->lives;
        struct sim_result life = {0};
        job->kill_all_ns = last ? 0 : 1 + tr_rng_below(&l->rng, LIFE_NS);
        job->resume = job->life > 0 && !job->by_itself;
        job->disk_step = l->sum->disk_step;
        job->durable_step = l->sum->durable_step;
        sim_run(job, l->out, verbose, &life);
        add(l->sum, &life);
        if (!life.finished && !last && tr_rng_below(&l->rng, 3) == 0) {
            tear(l);
        }
    }
}

void
sim_run_lives(const struct sim_job *job, FILE *out, bool verbose, struct sim_result *result)
{
    *result = (struct sim_result){0};
    if (job->lives < 2) {
        sim_run(job, out, verbose, result);
        return;
    }
    const char *where = getenv("TMPDIR");
    tr_buf dir = {0};
    tr_buf_printf(&dir, "%s/troupe-sim-XXXXXX", where != NULL && *where != '\0' ? where : "/tmp");
    struct lives l = {.job = *job, .out = out, .dir = dir.data, .sum = result};
    l.rng = (tr_rng){.key = job->seed ^ UINT64_C(0x11fe5)};
    if (mkdtemp(dir.data) == NULL) {
        tell(&l, "disk", "cannot make a temporary directory, set TMPDIR");
        tr_buf_fini(&dir);
        return;
    }
    l.job.run_dir = l.dir;
    l.job.shadow = sim_shadow_new();
    live(&l, verbose);
    if (result->violations == 0) {
        audit(&l);
    }
    sim_shadow_free(l.job.shadow);
    remove_dir(&l);
    tr_buf_fini(&dir);
}
