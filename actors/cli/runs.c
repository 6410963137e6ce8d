/* troupe stop, status and clean: runs of this machine, found by their folders. */
#include "commands.h"

#include <troupe/ext/base.h>
#include <troupe/ext/guest.h>
#include <troupe/ext/runfolder.h>
#include <troupe/ext/sys.h>

#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ASK_NS      UINT64_C(5000000000)
#define LOOK_NS     UINT64_C(50000000)
#define GRACE_MAX_S 3600.0 /* no deadline of the runtime is longer */

enum {
    EXIT_USAGE = 2,
    RUNS_MAX = 256
};

struct run {
    char name[TR_RUN_NAME_MAX + 1];
    char path[TR_RUN_PATH_MAX + 1];
    bool locked;
    bool readable;
    tr_run_facts facts;
    bool known; /* facts are there */
};

struct runs {
    struct run *list;
    size_t count;
};

/* --- finding --------------------------------------------------------------------------------- */

static void
note_run(void *self, const tr_run_entry *entry)
{
    struct runs *runs = self;
    if (runs->count == RUNS_MAX) {
        return;
    }
    struct run *run = &runs->list[runs->count++];
    *run = (struct run){.locked = entry->locked, .readable = entry->readable};
    (void)snprintf(run->name, sizeof run->name, "%s", entry->name);
    (void)snprintf(run->path, sizeof run->path, "%s", entry->path);
    run->known = entry->readable && tr_run_facts_read(entry->path, &run->facts, NULL) == TROUPE_OK;
}

static int
complain(const char *command, const troupe_error *err)
{
    fprintf(stderr, "troupe %s: %s\n", command, err->text);
    return EXIT_FAILURE;
}

/* A word that is no option of the command and no run either. */
static int
refuse_word(const char *command, const char *word, const char *const *known, size_t count)
{
    const char *near = tr_nearest(word, known, count);
    if (word[0] == '-') {
        fprintf(stderr, "troupe %s: unknown option %s%s%s\n", command, word,
            near != NULL ? ", did you mean " : "", near != NULL ? near : "");
    } else {
        fprintf(stderr, "troupe %s: \"%s\" is one word too many\n", command, word);
    }
    return EXIT_USAGE;
}

static bool
list_runs(const char *command, struct runs *runs)
{
    troupe_error err = {.status = TROUPE_OK, .text = ""};
    runs->list = tr_zalloc(RUNS_MAX, sizeof *runs->list);
    if (tr_run_folder_list(note_run, runs, &err) != TROUPE_OK) {
        (void)complain(command, &err);
        tr_free(runs->list);
        return false;
    }
    return true;
}

static size_t
length_without_slash(const char *text)
{
    size_t length = strlen(text);
    while (length > 1 && text[length - 1] == '/') {
        length--;
    }
    return length;
}

/* A title that is a directory means it as seen from where the program was started. False: it is
 * none. */
static bool
title_path(const struct run *run, char path[PATH_MAX])
{
    char text[sizeof run->facts.directory + sizeof run->facts.title + 1];
    const tr_run_facts *facts = &run->facts;
    if (!run->known || facts->title[0] == '\0') {
        return false;
    }
    (void)snprintf(
        text, sizeof text, "%s/%s", facts->title[0] == '/' ? "" : facts->directory, facts->title);
    return realpath(text, path) != NULL;
}

/* By the folder's name, by the directory, or by another title that the program gave. */
static bool
is_called(const struct run *run, const char *name)
{
    char title[PATH_MAX], path[PATH_MAX];
    if (strcmp(run->name, name) == 0) {
        return true;
    }
    if (title_path(run, title)) {
        return realpath(name, path) != NULL && strcmp(path, title) == 0;
    }
    size_t length = length_without_slash(name);
    return run->known && run->facts.title[0] != '\0' &&
           length == length_without_slash(run->facts.title) &&
           strncmp(run->facts.title, name, length) == 0;
}

static const struct run *
find_run(const char *command, const struct runs *runs, const char *name)
{
    const struct run *found = NULL;
    size_t count = 0;
    for (size_t i = 0; i < runs->count; i++) {
        if (runs->list[i].locked && is_called(&runs->list[i], name)) {
            found = &runs->list[i];
            count++;
        }
    }
    if (count <= 1) {
        if (found == NULL) {
            fprintf(stderr,
                "troupe %s: no run called \"%s\" is going on; troupe status lists them\n", command,
                name);
        }
        return found;
    }
    fprintf(stderr, "troupe %s: %zu runs are called \"%s\"; say which:\n", command, count, name);
    for (size_t i = 0; i < runs->count; i++) {
        if (runs->list[i].locked && is_called(&runs->list[i], name)) {
            fprintf(stderr, "  %s\n", runs->list[i].name);
        }
    }
    return NULL;
}

/* --- stop ------------------------------------------------------------------------------------ */

static bool
is_there(const struct run *run)
{
    struct runs now = {0};
    bool there = false;
    if (list_runs("stop", &now)) {
        for (size_t i = 0; i < now.count; i++) {
            there = there || (strcmp(now.list[i].name, run->name) == 0 && now.list[i].locked);
        }
        tr_free(now.list);
    }
    return there;
}

static int
stop_run(const struct run *run, double grace_s)
{
    troupe_error err = {.status = TROUPE_OK, .text = ""};
    troupe_args args = {0};
    char *text = NULL;
    troupe_args_f64(&args, grace_s);
    if (tr_guest_ask(run->path, TR_GUEST_STOP, &args, ASK_NS, &text, &err) != TROUPE_OK) {
        return complain("stop", &err);
    }
    free(text);
    const troupe_sys *sys = troupe_sys_posix();
    double wait_s = (grace_s < 0 ? 3600 : grace_s) + 30;
    uint64_t until = sys->now_ns(sys) + (uint64_t)(wait_s * 1e9);
    while (is_there(run)) {
        if (sys->now_ns(sys) > until) {
            fprintf(stderr, "troupe stop: %s has not ended within %.0f s\n", run->name, wait_s);
            return EXIT_FAILURE;
        }
        troupe_sleep_ns(LOOK_NS);
    }
    printf("%s has ended\n", run->name);
    return EXIT_SUCCESS;
}

int
troupe_cli_stop(int argc, char **argv)
{
    static const char *const known[] = {"--grace"};
    const char *name = NULL;
    double grace_s = -1;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--grace") == 0) {
            const char *text = i + 1 < argc ? argv[++i] : "";
            char *end = NULL;
            grace_s = strtod(text, &end);
            if (end == text || *end != '\0' || !(grace_s >= 0 && grace_s <= GRACE_MAX_S)) {
                fprintf(stderr, "troupe stop: --grace \"%s\": give seconds, 0 to 3600\n", text);
                return EXIT_USAGE;
            }
        } else if (argv[i][0] == '-' || name != NULL) {
            return refuse_word("stop", argv[i], known, TR_COUNT(known));
        } else {
            name = argv[i];
        }
    }
    if (name == NULL) {
        fprintf(stderr, "usage: troupe stop RUN [--grace SECONDS]\n"
                        "RUN is the name that troupe status shows, or the run's directory\n");
        return EXIT_USAGE;
    }
    struct runs runs = {0};
    if (!list_runs("stop", &runs)) {
        return EXIT_FAILURE;
    }
    const struct run *run = find_run("stop", &runs, name);
    int code = run == NULL ? EXIT_USAGE : stop_run(run, grace_s);
    tr_free(runs.list);
    return code;
}

/* --- status ---------------------------------------------------------------------------------- */

static const char *
text_of(const json_t *json, const char *key)
{
    const char *text = json_string_value(json_object_get(json, key));
    return text == NULL ? "-" : text;
}

static json_t *
ask(const struct run *run, const char *method)
{
    troupe_error err = {.status = TROUPE_OK, .text = ""};
    char *text = NULL;
    if (!run->known || tr_guest_ask(run->path, method, NULL, ASK_NS, &text, &err) != TROUPE_OK) {
        return json_pack("{s:s}", "silent", err.text[0] != '\0' ? err.text : "not up yet");
    }
    json_t *json = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    free(text);
    return json == NULL ? json_pack("{s:s}", "silent", "an answer that is no JSON") : json;
}

static void
print_processes(const json_t *status)
{
    size_t i = 0;
    const json_t *p = NULL;
    printf("  %-20s %8s  %-14s %-5s %9s %7s  %s\n", "process", "pid", "state", "ps", "rss MiB",
        "starts", "doing");
    json_array_foreach(json_object_get(status, "processes"), i, p)
    {
        double rss = (double)json_integer_value(json_object_get(p, "rss_bytes")) / 1048576;
        const json_t *answers = json_object_get(p, "answers");
        printf("  %-20s %8lld  %-14s %-5s %9.1f %7lld  %s%s\n", text_of(p, "name"),
            (long long)json_integer_value(json_object_get(p, "pid")), text_of(p, "state"),
            text_of(p, "process_state"), rss,
            (long long)json_integer_value(json_object_get(p, "starts")), text_of(p, "doing"),
            answers != NULL && json_is_false(answers) ? "; does not answer" : "");
    }
}

static void
print_waits(const json_t *waits)
{
    size_t i = 0, k = 0;
    const json_t *loop = NULL, *w = NULL;
    json_array_foreach(json_object_get(waits, "loops"), i, loop)
    {
        if (json_object_get(loop, "silent") != NULL) {
            printf("  %s, loop %s: silent: %s\n", text_of(loop, "process"), text_of(loop, "loop"),
                text_of(loop, "silent"));
        }
        json_array_foreach(json_object_get(loop, "waits"), k, w)
        {
            printf("  %s: %s waits for %s %s, for %.1f s", text_of(loop, "process"),
                text_of(w, "who"), text_of(w, "kind"), text_of(w, "whom"),
                json_number_value(json_object_get(w, "since_s")));
            if (json_is_number(json_object_get(w, "left_s"))) {
                printf(", %.1f s left", json_number_value(json_object_get(w, "left_s")));
            }
            bool tried = strcmp(text_of(w, "kind"), "work") != 0;
            const char *before = text_of(w, "last")[0] == '\0' ? "" : tried ? "; last: " : "; ";
            printf("%s%s\n", before, text_of(w, "last"));
        }
        size_t told = json_array_size(json_object_get(loop, "waits"));
        long long count = json_integer_value(json_object_get(loop, "count"));
        if (count > (long long)told) {
            printf("  %s, loop %s: %lld waits, the first %zu are listed\n",
                text_of(loop, "process"), text_of(loop, "loop"), count, told);
        }
    }
}

static void
print_run(const struct run *run, const json_t *status, const json_t *waits)
{
    char title[PATH_MAX];
    if (!title_path(run, title)) {
        (void)snprintf(title, sizeof title, "%s", run->known ? run->facts.title : "");
    }
    printf("%s%s%s  ", run->name, title[0] != '\0' ? "  " : "", title);
    if (!run->locked) {
        printf("dead; troupe clean removes what is left of it\n");
        return;
    }
    if (json_object_get(status, "silent") != NULL) {
        printf("does not answer: %s\n", text_of(status, "silent"));
        return;
    }
    printf("%s, node life %lld, %lld objects\n", text_of(status, "phase"),
        (long long)json_integer_value(json_object_get(status, "life")),
        (long long)json_integer_value(json_object_get(status, "objects")));
    print_processes(status);
    if (waits != NULL) {
        print_waits(waits);
    }
}

static int
show(const struct runs *runs, const char *name, bool with_waits, bool as_json)
{
    json_t *all = json_array();
    int shown = 0;
    for (size_t i = 0; i < runs->count; i++) {
        const struct run *run = &runs->list[i];
        if (name != NULL && !is_called(run, name)) {
            continue;
        }
        json_t *status = run->locked ? ask(run, TR_GUEST_STATUS) : json_object();
        json_t *waits = run->locked && with_waits ? ask(run, TR_GUEST_WAITS) : NULL;
        shown++;
        if (!as_json) {
            print_run(run, status, waits);
        }
        json_t *one = json_pack("{s:s, s:s, s:b, s:O}", "name", run->name, "title",
            run->known ? run->facts.title : "", "alive", run->locked, "status", status);
        if (waits != NULL) {
            json_object_set(one, "waits", json_object_get(waits, "loops"));
        }
        json_array_append_new(all, one);
        json_decref(status);
        json_decref(waits);
    }
    if (as_json) {
        json_t *out = json_pack("{s:i, s:O}", "format", 1, "runs", all);
        char *text = json_dumps(out, JSON_INDENT(1) | JSON_REAL_PRECISION(6));
        printf("%s\n", text);
        free(text); /* from jansson */
        json_decref(out);
    } else if (shown == 0 && name == NULL) {
        printf("no run is going on\n");
    }
    json_decref(all);
    if (shown == 0 && name != NULL) {
        fprintf(stderr, "troupe status: no run called \"%s\"; troupe status lists them\n", name);
        return EXIT_USAGE;
    }
    return EXIT_SUCCESS;
}

int
troupe_cli_status(int argc, char **argv)
{
    static const char *const known[] = {"--waits", "--json"};
    const char *name = NULL;
    bool waits = false, as_json = false;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--waits") == 0) {
            waits = true;
        } else if (strcmp(argv[i], "--json") == 0) {
            as_json = true;
        } else if (argv[i][0] == '-' || name != NULL) {
            int code = refuse_word("status", argv[i], known, TR_COUNT(known));
            fprintf(stderr, "usage: troupe status [--waits] [--json] [RUN]\n");
            return code;
        } else {
            name = argv[i];
        }
    }
    struct runs runs = {0};
    if (!list_runs("status", &runs)) {
        return EXIT_FAILURE;
    }
    int code = show(&runs, name, waits, as_json);
    tr_free(runs.list);
    return code;
}

/* --- clean ----------------------------------------------------------------------------------- */

int
troupe_cli_clean(int argc, char **argv)
{
    (void)argv;
    if (argc > 1) {
        fprintf(stderr, "usage: troupe clean\n"
                        "removes the folders that dead runs have left; it touches no run that "
                        "lives and no output directory\n");
        return EXIT_USAGE;
    }
    struct runs runs = {0};
    int code = EXIT_SUCCESS;
    if (!list_runs("clean", &runs)) {
        return EXIT_FAILURE;
    }
    for (size_t i = 0; i < runs.count; i++) {
        troupe_error err = {.status = TROUPE_OK, .text = ""};
        if (runs.list[i].locked) {
            continue;
        }
        if (tr_run_folder_remove(runs.list[i].name, &err) == TROUPE_OK) {
            printf("removed %s\n", runs.list[i].path);
        } else if (err.status != TROUPE_NOT_FOUND && err.status != TROUPE_EXISTS) {
            code = complain("clean", &err);
        }
    }
    tr_free(runs.list);
    return code;
}
