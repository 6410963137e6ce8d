/* What the coordinator tells to anyone who asks: the ledger, the lags, and every wait. */
#include "stream/coordinator.h"

#include <troupe/ext/protocol.h>

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

struct listing {
    json_t *waits;
    uint64_t now_ns;
    const struct tr_coordinator *c;
};

struct adding {
    const struct tr_coordinator *c;
    troupe_waits *waits;
};

static void
list_wait(void *self, const troupe_stream_wait *wait)
{
    struct listing *l = self;
    double since = (double)(l->now_ns - TR_MIN(wait->since_ns, l->now_ns)) / 1e9;
    const char *whom = l->c->source.name;
    if (wait->deadline_ns == UINT64_MAX) {
        whom = "samples";
    } else if (wait->what[0] == 's') {
        whom = l->c->stages[wait->stage].name;
    }
    json_t *entry = json_pack("{s:s, s:s, s:I, s:I, s:I, s:I, s:f}", "what", wait->what, "whom",
        whom, "replica", (json_int_t)wait->peer, "group", (json_int_t)wait->group, "member",
        (json_int_t)wait->member, "step", (json_int_t)wait->step, "since_s", since);
    if (wait->deadline_ns == UINT64_MAX) {
        json_object_set_new(entry, "until_s", json_null());
    } else {
        double until =
            wait->deadline_ns > l->now_ns ? (double)(wait->deadline_ns - l->now_ns) / 1e9 : 0.0;
        json_object_set_new(entry, "until_s", json_real(until));
    }
    json_array_append_new(l->waits, entry);
}

static void
add_wait(void *self, const troupe_stream_wait *wait)
{
    const struct adding *a = self;
    const struct tr_coordinator *c = a->c;
    uint64_t until = wait->deadline_ns;
    char whom[96], why[64];
    if (wait->what[0] == 't') {
        (void)snprintf(whom, sizeof whom, "the batch of step %llu", (unsigned long long)wait->step);
        why[0] = '\0';
        until = c->take != NULL ? troupe_call_deadline_ns(c->take) : UINT64_MAX;
    } else {
        bool stage = wait->what[0] == 's';
        (void)snprintf(whom, sizeof whom, "%s[%u].%s",
            stage ? c->stages[wait->stage].name : c->source.name, wait->peer,
            stage ? TROUPE_METHOD_SCORE : TROUPE_METHOD_LEASE);
        (void)snprintf(why, sizeof why, "group %llu, member %u", (unsigned long long)wait->group,
            wait->member);
    }
    troupe_waits_add(a->waits, whom, why, wait->since_ns, until);
}

void
tr_coordinator_waits(troupe_ctx *ctx, troupe_waits *waits)
{
    const struct tr_coordinator *c = troupe_state(ctx);
    struct adding a = {.c = c, .waits = waits};
    if (c->stream == NULL || c->weights == NULL) {
        return;
    }
    troupe_stream_waits(c->stream, add_wait, &a);
    for (uint32_t i = 0; i < c->source.count; i++) {
        uint64_t version = 0, since = 0, until = 0;
        if (troupe_weights_waits(c->weights, i, &version, &since, &until)) {
            char whom[96], why[64];
            (void)snprintf(whom, sizeof whom, "%s[%u].%s", c->source.name, i, TROUPE_METHOD_UPDATE);
            (void)snprintf(why, sizeof why, "version %llu", (unsigned long long)version);
            troupe_waits_add(waits, whom, why, since, until);
        }
    }
}

static json_t *
lags_of(const struct tr_coordinator *c)
{
    const uint64_t *histogram = troupe_stream_lag_histogram(c->stream);
    uint32_t used = TROUPE_LAG_BUCKETS;
    while (used > 0 && histogram[used - 1] == 0) {
        used--;
    }
    json_t *lags = json_array();
    for (uint32_t i = 0; i < used; i++) {
        json_array_append_new(lags, json_integer((json_int_t)histogram[i]));
    }
    return lags;
}

static json_t *
counters_of(const struct tr_coordinator *c)
{
    troupe_counters n = troupe_stream_counters(c->stream);
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "dispatched", (json_int_t)n.dispatched,
        "trained", (json_int_t)n.trained, "filtered", (json_int_t)n.filtered, "stale",
        (json_int_t)n.stale, "failed", (json_int_t)n.failed, "queued", (json_int_t)n.queued,
        "in_flight", (json_int_t)n.in_flight);
}

static json_t *
sources_of(const struct tr_coordinator *c)
{
    json_t *sources = json_array();
    for (uint32_t i = 0; i < c->source.count; i++) {
        uint64_t version = 0;
        bool held = troupe_weights_held(c->weights, i, &version);
        json_array_append_new(
            sources, json_pack("{s:b, s:o}", "up", c->source.replicas[i].up ? 1 : 0, "version",
                         held ? json_integer((json_int_t)version) : json_null()));
    }
    return sources;
}

void
tr_coordinator_status(troupe_ctx *ctx, troupe_call *call)
{
    struct tr_coordinator *c = troupe_state(ctx);
    struct listing l = {.waits = json_array(), .now_ns = troupe_now_ns(ctx), .c = c};
    troupe_stream_waits(c->stream, list_wait, &l);
    uint64_t version = 0;
    bool published = troupe_weights_newest(c->weights, &version);
    json_t *root = json_pack("{s:I, s:I, s:o, s:o, s:o, s:o, s:o, s:b, s:s, s:o}", "epoch",
        (json_int_t)troupe_stream_epoch(c->stream), "step",
        (json_int_t)troupe_stream_step(c->stream), "version",
        published ? json_integer((json_int_t)version) : json_null(), "counters", counters_of(c),
        "lags", lags_of(c), "sources", sources_of(c), "publish_ms",
        c->publish_ms >= 0 ? json_real(c->publish_ms) : json_null(), "ended", c->ended ? 1 : 0,
        "failure", c->broken != TROUPE_OK ? c->why.text : "", "waits", l.waits);
    char *text = json_dumps(root, JSON_COMPACT);
    troupe_args args = {0};
    troupe_args_str(&args, text != NULL ? text : "{}");
    tr_coordinator_reply(call, &args, "status");
    free(text); /* from jansson */
    json_decref(root);
}
