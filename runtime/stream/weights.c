/* Published weights. Which receivers may still touch which object is kept per live version as a
 * set of bits: set when the version is sent to a receiver, cleared when the receiver
 * acknowledges a newer one or dies. A version is retired when it is not the newest and its set
 * is empty: from then on no live receiver can ask for its bytes, however late a message of ours
 * arrives at it. */
#include <troupe/ext/base.h>
#include <troupe/ext/weights.h>

enum {
    WORD_BITS = 64
};

struct live {
    uint64_t version;
    uint64_t step;
    uint64_t object;
    uint64_t digest;
    uint64_t since_ns;
    bool complete;
    uint64_t *users; /* receivers that may hold it */
};

struct receiver {
    bool up;
    bool has_held;
    uint64_t incarnation;
    uint64_t held;
    uint64_t deadline_ns; /* of the newest version sent and not acknowledged; UINT64_MAX: none */
};

struct troupe_weights {
    troupe_weights_options opt;
    uint64_t now_ns;
    bool busy;
    bool stopped;          /* no more versions; what is live is let go as it is applied */
    uint64_t next_version; /* the only one that may be published next */
    uint64_t next_deadline_ns;
    uint32_t live_count; /* oldest first, the last one is the newest */
    struct live live[TROUPE_WEIGHTS_LIVE_MAX];
    struct receiver *receivers;
    uint64_t *words;
    uint32_t word_count;
};

static void
emit(troupe_weights *w, const troupe_weights_effect *effect)
{
    w->opt.effect(w->opt.effect_self, effect);
}

static void
enter(troupe_weights *w, uint64_t now_ns)
{
    TR_ASSERT(!w->busy);
    w->busy = true;
    w->now_ns = TR_MAX(w->now_ns, now_ns);
}

static troupe_status
leave(troupe_weights *w, troupe_status status)
{
    for (uint32_t i = 1; i < w->live_count; i++) {
        TR_ASSERT(w->live[i - 1].version < w->live[i].version);
    }
    TR_ASSERT(w->live_count == 0 || w->live[w->live_count - 1].version < w->next_version);
    w->busy = false;
    return status;
}

troupe_status
troupe_weights_new(
    const troupe_weights_options *options, troupe_weights **weights, troupe_error *err)
{
    if (options->size != sizeof *options || options->receivers == 0 ||
        options->receivers > TROUPE_WEIGHTS_RECEIVERS_MAX || options->resend_ns == 0 ||
        options->resend_ns > UINT64_MAX / 4 || options->effect == NULL) {
        return troupe_fail(err, TROUPE_INVALID,
            "weights: set .size = sizeof, from 1 to %d receivers, a resend_ns of at least 1 and an "
            "effect function",
            TROUPE_WEIGHTS_RECEIVERS_MAX);
    }
    troupe_weights *w = tr_zalloc(1, sizeof *w);
    w->opt = *options;
    w->next_deadline_ns = UINT64_MAX;
    w->receivers = tr_zalloc(options->receivers, sizeof w->receivers[0]);
    w->word_count = (options->receivers + WORD_BITS - 1) / WORD_BITS;
    w->words = tr_zalloc((size_t)w->word_count * TROUPE_WEIGHTS_LIVE_MAX, sizeof w->words[0]);
    for (uint32_t i = 0; i < TROUPE_WEIGHTS_LIVE_MAX; i++) {
        w->live[i].users = &w->words[i * w->word_count];
    }
    *weights = w;
    return TROUPE_OK;
}

void
troupe_weights_free(troupe_weights *w)
{
    if (w == NULL) {
        return;
    }
    tr_free(w->receivers);
    tr_free(w->words);
    tr_free(w);
}

/* --- the set of users ------------------------------------------------------------------------- */

static void
set_user(struct live *live, uint32_t receiver, bool on)
{
    uint64_t bit = (uint64_t)1 << (receiver % WORD_BITS);
    uint64_t *word = &live->users[receiver / WORD_BITS];
    *word = on ? *word | bit : *word & ~bit;
}

static bool
unused(const troupe_weights *w, const struct live *live)
{
    uint64_t any = 0;
    for (uint32_t i = 0; i < w->word_count; i++) {
        any |= live->users[i];
    }
    return any == 0;
}

static void
retire(troupe_weights *w, uint32_t index)
{
    struct live gone = w->live[index];
    for (uint32_t i = index; i + 1 < w->live_count; i++) {
        w->live[i] = w->live[i + 1];
    }
    w->live_count--;
    /* The set's memory moves to the end with the free place, cleared. */
    for (uint32_t i = 0; i < w->word_count; i++) {
        gone.users[i] = 0;
    }
    w->live[w->live_count] = (struct live){.users = gone.users};
    emit(w, &(troupe_weights_effect){.kind = TROUPE_WEIGHTS_RETIRE,
                .version = gone.version,
                .step = gone.step,
                .object = gone.object});
}

/* After the end the newest goes too, once whoever lives has applied it: a receiver that goes on
 * using it has a hold of its own. */
static bool
newest_is_needed(const troupe_weights *w)
{
    const struct live *newest = &w->live[w->live_count - 1];
    for (uint32_t i = 0; i < w->opt.receivers; i++) {
        const struct receiver *r = &w->receivers[i];
        if (r->up && !(r->has_held && r->held == newest->version)) {
            return true;
        }
    }
    return !w->stopped;
}

static void
retire_unused(troupe_weights *w)
{
    uint32_t i = 0;
    while (i + 1 < w->live_count) {
        if (unused(w, &w->live[i])) {
            retire(w, i);
        } else {
            i++;
        }
    }
    if (w->live_count == 1 && !newest_is_needed(w)) {
        retire(w, 0);
    }
}

/* --- sending ---------------------------------------------------------------------------------- */

static void
send_newest(troupe_weights *w, uint32_t receiver)
{
    struct live *newest = &w->live[w->live_count - 1];
    struct receiver *r = &w->receivers[receiver];
    set_user(newest, receiver, true);
    r->deadline_ns = w->now_ns + w->opt.resend_ns;
    w->next_deadline_ns = TR_MIN(w->next_deadline_ns, r->deadline_ns);
    emit(w, &(troupe_weights_effect){.kind = TROUPE_WEIGHTS_SEND,
                .receiver = receiver,
                .incarnation = r->incarnation,
                .version = newest->version,
                .step = newest->step,
                .object = newest->object,
                .digest = newest->digest,
                .deadline_ns = r->deadline_ns});
}

/* Says once per version that all who live have it; a version with no receiver at all stays open. */
static void
check_complete(troupe_weights *w)
{
    if (w->live_count == 0 || w->live[w->live_count - 1].complete) {
        return;
    }
    struct live *newest = &w->live[w->live_count - 1];
    uint32_t up = 0;
    for (uint32_t i = 0; i < w->opt.receivers; i++) {
        const struct receiver *r = &w->receivers[i];
        if (r->up) {
            up++;
            if (!r->has_held || r->held != newest->version) {
                return;
            }
        }
    }
    if (up > 0) {
        newest->complete = true;
        emit(w, &(troupe_weights_effect){.kind = TROUPE_WEIGHTS_COMPLETE,
                    .version = newest->version,
                    .step = newest->step,
                    .elapsed_ns = w->now_ns - newest->since_ns});
    }
}

troupe_status
troupe_weights_publish(troupe_weights *w, uint64_t now_ns, uint64_t epoch, uint64_t step,
    uint64_t version, uint64_t object, uint64_t digest)
{
    if (w->stopped) {
        return TROUPE_GONE;
    }
    if (version < w->next_version) {
        bool newest = w->live_count > 0 && version == w->live[w->live_count - 1].version;
        return newest ? TROUPE_DUPLICATE : TROUPE_STALE;
    }
    if (version > w->next_version) {
        return TROUPE_INVALID;
    }
    if (w->live_count == TROUPE_WEIGHTS_LIVE_MAX) {
        return TROUPE_AGAIN;
    }
    enter(w, now_ns);
    struct live *newest = &w->live[w->live_count++];
    newest->version = version;
    newest->step = step;
    newest->object = object;
    newest->digest = digest;
    newest->since_ns = w->now_ns;
    newest->complete = false;
    w->next_version = version + 1;
    emit(w, &(troupe_weights_effect){.kind = TROUPE_WEIGHTS_RECORD,
                .record = &(troupe_record){.kind = TROUPE_RECORD_PUBLISHED,
                    .epoch = epoch,
                    .step = step,
                    .version = version,
                    .digest = digest}});
    for (uint32_t i = 0; i < w->opt.receivers; i++) {
        if (w->receivers[i].up) {
            send_newest(w, i);
        }
    }
    retire_unused(w);
    return leave(w, TROUPE_OK);
}

/* --- receivers -------------------------------------------------------------------------------- */

static void
receiver_lost(troupe_weights *w, uint32_t receiver)
{
    for (uint32_t i = 0; i < w->live_count; i++) {
        set_user(&w->live[i], receiver, false);
    }
    w->receivers[receiver].up = false;
    w->receivers[receiver].has_held = false;
    w->receivers[receiver].deadline_ns = UINT64_MAX;
}

troupe_status
troupe_weights_receiver_up(
    troupe_weights *w, uint64_t now_ns, uint32_t receiver, uint64_t incarnation)
{
    if (receiver >= w->opt.receivers || incarnation == 0) {
        return TROUPE_INVALID;
    }
    struct receiver *r = &w->receivers[receiver];
    if (w->stopped || incarnation <= r->incarnation) {
        return r->up && incarnation == r->incarnation ? TROUPE_DUPLICATE : TROUPE_GONE;
    }
    enter(w, now_ns);
    receiver_lost(w, receiver);
    *r = (struct receiver){.up = true, .incarnation = incarnation, .deadline_ns = UINT64_MAX};
    if (w->live_count > 0) {
        send_newest(w, receiver);
    }
    retire_unused(w);
    return leave(w, TROUPE_OK);
}

troupe_status
troupe_weights_receiver_down(
    troupe_weights *w, uint64_t now_ns, uint32_t receiver, uint64_t incarnation)
{
    if (receiver >= w->opt.receivers || incarnation == 0) {
        return TROUPE_INVALID;
    }
    struct receiver *r = &w->receivers[receiver];
    if (incarnation < r->incarnation) {
        return TROUPE_GONE;
    }
    if (incarnation == r->incarnation && !r->up) {
        return TROUPE_DUPLICATE;
    }
    enter(w, now_ns);
    receiver_lost(w, receiver);
    r->incarnation = incarnation;
    check_complete(w);
    retire_unused(w);
    return leave(w, TROUPE_OK);
}

/* True when `version` was sent to the receiver and may still be acknowledged. */
static bool
was_sent(const troupe_weights *w, uint32_t receiver, uint64_t version)
{
    for (uint32_t i = 0; i < w->live_count; i++) {
        const struct live *live = &w->live[i];
        if (live->version == version) {
            return (live->users[receiver / WORD_BITS] >> (receiver % WORD_BITS) & 1) != 0;
        }
    }
    return false;
}

troupe_status
troupe_weights_ack(
    troupe_weights *w, uint64_t now_ns, uint32_t receiver, uint64_t incarnation, uint64_t version)
{
    if (receiver >= w->opt.receivers) {
        return TROUPE_INVALID;
    }
    struct receiver *r = &w->receivers[receiver];
    if (!r->up || incarnation != r->incarnation) {
        return incarnation > r->incarnation ? TROUPE_NOT_FOUND : TROUPE_GONE;
    }
    if (r->has_held && version <= r->held) {
        return version == r->held ? TROUPE_DUPLICATE : TROUPE_STALE;
    }
    if (!was_sent(w, receiver, version)) {
        return TROUPE_INVALID;
    }
    enter(w, now_ns);
    r->has_held = true;
    r->held = version;
    if (version == w->live[w->live_count - 1].version) {
        r->deadline_ns = UINT64_MAX;
    }
    for (uint32_t i = 0; i < w->live_count && w->live[i].version < version; i++) {
        set_user(&w->live[i], receiver, false);
    }
    if (!w->stopped) { /* the book is closed */
        emit(w, &(troupe_weights_effect){.kind = TROUPE_WEIGHTS_RECORD,
                    .record = &(troupe_record){
                        .kind = TROUPE_RECORD_APPLIED, .source = receiver, .version = version}});
    }
    check_complete(w);
    retire_unused(w);
    return leave(w, TROUPE_OK);
}

/* --- the run ---------------------------------------------------------------------------------- */

troupe_status
troupe_weights_rollback(troupe_weights *w, uint64_t now_ns, uint64_t next_version)
{
    if (w->stopped) {
        return TROUPE_GONE;
    }
    if (next_version < w->next_version) {
        return TROUPE_INVALID;
    }
    enter(w, now_ns);
    w->next_version = next_version;
    return leave(w, TROUPE_OK);
}

void
troupe_weights_stop(troupe_weights *w, uint64_t now_ns)
{
    if (w->stopped) {
        return;
    }
    enter(w, now_ns);
    w->stopped = true;
    retire_unused(w);
    (void)leave(w, TROUPE_OK);
}

void
troupe_weights_tick(troupe_weights *w, uint64_t now_ns)
{
    if (now_ns < w->next_deadline_ns) {
        return;
    }
    enter(w, now_ns);
    w->next_deadline_ns = UINT64_MAX;
    for (uint32_t i = 0; i < w->opt.receivers; i++) {
        struct receiver *r = &w->receivers[i];
        if (r->up && r->deadline_ns <= w->now_ns && w->live_count > 0) {
            send_newest(w, i);
        } else if (r->up) {
            w->next_deadline_ns = TR_MIN(w->next_deadline_ns, r->deadline_ns);
        }
    }
    (void)leave(w, TROUPE_OK);
}

uint64_t
troupe_weights_deadline(const troupe_weights *w)
{
    return w->next_deadline_ns;
}

bool
troupe_weights_waits(const troupe_weights *w, uint32_t receiver, uint64_t *version,
    uint64_t *since_ns, uint64_t *until_ns)
{
    const struct receiver *r = &w->receivers[receiver];
    if (w->live_count == 0 || !r->up || r->deadline_ns == UINT64_MAX) {
        return false;
    }
    *version = w->live[w->live_count - 1].version;
    *since_ns = w->live[w->live_count - 1].since_ns;
    *until_ns = r->deadline_ns;
    return true;
}

bool
troupe_weights_newest(const troupe_weights *w, uint64_t *version)
{
    if (w->live_count == 0) {
        return false;
    }
    *version = w->live[w->live_count - 1].version;
    return true;
}

bool
troupe_weights_held(const troupe_weights *w, uint32_t receiver, uint64_t *version)
{
    if (receiver >= w->opt.receivers || !w->receivers[receiver].has_held) {
        return false;
    }
    *version = w->receivers[receiver].held;
    return true;
}

uint32_t
troupe_weights_live(const troupe_weights *w)
{
    return w->live_count;
}

void
troupe_weights_objects(
    const troupe_weights *w, void (*each)(void *self, uint64_t object), void *self)
{
    for (uint32_t i = 0; i < w->live_count; i++) {
        each(self, w->live[i].object);
    }
}
