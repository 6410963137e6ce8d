/* See ext/guest.h. A guest is a host with one driver on a link of its own into the run's folder. */
#include "node/run.h"

#include <troupe/ext/guest.h>
#include <troupe/ext/sys.h>

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EPOCH_NS UINT64_C(100000000)

enum {
    TRIES = 16 /* two guests at once may want one address */
};

static const troupe_class guest_class = {.name = "guest"};

static void
copy_text(const json_t *json, const char *key, char *out, size_t size)
{
    const char *text = json_string_value(json_object_get(json, key));
    (void)snprintf(out, size, "%s", text == NULL ? "" : text);
}

troupe_status
tr_run_facts_read(const char *folder, tr_run_facts *facts, troupe_error *err)
{
    char path[512];
    json_error_t where;
    (void)snprintf(path, sizeof path, "%s/run", folder);
    if (access(path, F_OK) != 0) {
        return troupe_fail(err, TROUPE_NOT_FOUND, "%s: not there", path);
    }
    json_t *json = json_load_file(path, JSON_REJECT_DUPLICATES, &where);
    *facts = (tr_run_facts){0};
    facts->life = (unsigned)json_integer_value(json_object_get(json, "life"));
    facts->node_pid = (int)json_integer_value(json_object_get(json, "node_pid"));
    facts->driver_pid = (int)json_integer_value(json_object_get(json, "driver_pid"));
    copy_text(json, "name", facts->name, sizeof facts->name);
    copy_text(json, "title", facts->title, sizeof facts->title);
    copy_text(json, "program", facts->program, sizeof facts->program);
    copy_text(json, "directory", facts->directory, sizeof facts->directory);
    bool good = json_integer_value(json_object_get(json, "format")) == 1 && facts->life > 0 &&
                facts->life <= UINT16_MAX;
    json_decref(json);
    return good ? TROUPE_OK
                : troupe_fail(err, TROUPE_CORRUPT, "%s does not say what the run is", path);
}

struct guest {
    tr_directory *directory;
    troupe_link *link;
    tr_host *host;
    troupe_ctx *ctx;
};

/* One that asks twice is another guest each time; the node forgets it when it is gone. */
static troupe_status
take_address(struct guest *guest, troupe_error *err)
{
    const troupe_sys *sys = troupe_sys_posix();
    troupe_status status = TROUPE_EXISTS;
    for (int i = 0; i < TRIES && status == TROUPE_EXISTS; i++) {
        uint64_t now_ns = sys->now_ns(sys);
        const uint64_t words[2] = {(uint64_t)getpid(), now_ns};
        uint16_t loop = (uint16_t)(TR_GUEST_LOOP_FIRST + tr_mix(words, 2) % TR_GUEST_LOOPS);
        tr_host_options options = {.sys = sys,
            .link = guest->link,
            .directory = guest->directory,
            .address = {.node = 0, .loop = loop},
            .epoch = (uint32_t)(now_ns / EPOCH_NS % UINT16_MAX) + 1};
        status = tr_host_new(&options, &guest->host, err);
    }
    return status;
}

static troupe_status
enter(struct guest *guest, const char *folder, uint32_t life, troupe_error *err)
{
    const tr_unix_options link = {.dir = folder};
    guest->directory = tr_directory_new();
    uint16_t node = tr_directory_add(guest->directory, TR_ROLE_NODE, 1);
    troupe_status status = troupe_link_unix(&link, &guest->link, err);
    if (status != TROUPE_OK) {
        return status;
    }
    tr_directory_up(guest->directory, node, 0, tr_controller_ref(life));
    tr_spawn spawn = {.type = &guest_class, .role = TR_NO_ROLE, .driver = true};
    troupe_ref ref;
    status = take_address(guest, err);
    if (status == TROUPE_OK) {
        status = tr_host_spawn(guest->host, &spawn, &ref, err);
    }
    if (status == TROUPE_OK) {
        guest->ctx = tr_host_actor(guest->host, ref);
    }
    return status;
}

struct asked {
    bool done;
    troupe_status status;
    char *text;
};

static void
on_answer(troupe_ctx *ctx, troupe_answer *answer, void *user)
{
    (void)ctx;
    struct asked *asked = user;
    asked->status = troupe_answer_status(answer);
    const char *text =
        asked->status == TROUPE_OK ? troupe_arg_str(answer, 0) : troupe_answer_text(answer);
    asked->text = strdup(text);
    asked->done = true;
}

static bool
is_done(void *user)
{
    return ((struct asked *)user)->done;
}

troupe_status
tr_guest_ask(const char *folder, const char *method, troupe_args *args, uint64_t timeout_ns,
    char **text, troupe_error *err)
{
    tr_run_facts facts;
    struct guest guest = {0};
    struct asked asked = {.status = TROUPE_TIMEOUT};
    troupe_status status = tr_run_facts_read(folder, &facts, err);
    status = status == TROUPE_OK ? enter(&guest, folder, facts.life, err) : status;
    if (status == TROUPE_OK) {
        status = troupe_call_send(guest.ctx, troupe_to(guest.ctx, TR_ROLE_NODE, 0), method, args,
            .on_answer = on_answer, .user = &asked, .deadline_ns = timeout_ns);
        if (status != TROUPE_OK) {
            (void)troupe_fail(err, status, "%s: the run's node cannot be reached: %s", folder,
                troupe_status_text(status));
        }
    }
    if (status == TROUPE_OK) {
        (void)troupe_wait(guest.ctx, is_done, &asked, timeout_ns + timeout_ns / 2);
        status = asked.status;
    }
    if (args != NULL) {
        troupe_args_fini(args);
    }
    tr_host_free(guest.host);
    if (guest.link != NULL) {
        guest.link->free(guest.link);
    }
    tr_directory_free(guest.directory);
    if (status == TROUPE_OK) {
        *text = asked.text;
    } else if (asked.done) {
        (void)troupe_fail(err, status, "%s", asked.text == NULL ? "" : asked.text);
        free(asked.text);
    }
    return status;
}
