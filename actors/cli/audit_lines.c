/* samples.jsonl against what the journal says. Lines that a resumed run moved
 * aside are in other files and not of the standing lineage. */
#include "cli/audit_impl.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    LINE_MAX_BYTES = 64 << 20
};

#define G(group) ((int64_t)(group))
#define S(step)  ((int64_t)(step))

/* Calls `each` for every line that is a JSON object; others are violations. */
bool
audit_each_line(
    tr_audit *a, const char *run_dir, const char *name, audit_line_fn each, uint64_t *lines)
{
    const char *why = NULL;
    FILE *file = audit_open_in(run_dir, name, &why);
    if (file == NULL) {
        audit_absent(a, name, why);
        return false;
    }
    char *text = NULL;
    size_t capacity = 0;
    uint64_t number = 0;
    ssize_t size = 0;
    while ((size = getline(&text, &capacity, file)) > 0) {
        number++;
        if (text[size - 1] != '\n') {
            break; /* cut off by a crash: not a line yet */
        }
        json_t *line = size > LINE_MAX_BYTES
                           ? NULL
                           : json_loadb(text, (size_t)size, JSON_REJECT_DUPLICATES, NULL);
        if (json_is_object(line)) {
            each(a, line, number);
        } else {
            audit_report(a, "line-malformed", AUDIT_NONE, AUDIT_NONE,
                "%s line %" PRIu64 " is no JSON object", name, number);
        }
        json_decref(line);
    }
    free(text); /* from getline */
    (void)fclose(file);
    *lines = number;
    return true;
}

bool
audit_line_u64(const json_t *line, const char *key, uint64_t *value)
{
    const json_t *entry = json_object_get(line, key);
    if (!json_is_integer(entry) || json_integer_value(entry) < 0) {
        return false;
    }
    *value = (uint64_t)json_integer_value(entry);
    return true;
}

/* --- samples.jsonl ---------------------------------------------------------------------------- */

static const char *
state_name(enum audit_state state)
{
    static const char *const names[] = {
        "void", "open", "taken", "trained", "filtered", "stale", "failed"};
    return names[state];
}

/* XXH3 over the ids as little-endian 32-bit words; no ids, no digest. */
static bool
digest_ids(const json_t *ids, uint64_t *count, uint64_t *digest)
{
    tr_buf bytes = {0};
    size_t i = 0;
    const json_t *id = NULL;
    bool ok = json_is_array(ids);
    json_array_foreach(ids, i, id)
    {
        ok = ok && json_is_integer(id);
        uint32_t word = (uint32_t)json_integer_value(id);
        char le[4] = {(char)(word & 0xff), (char)(word >> 8 & 0xff), (char)(word >> 16 & 0xff),
            (char)(word >> 24 & 0xff)};
        tr_buf_append(&bytes, le, sizeof le);
    }
    *count = json_array_size(ids);
    *digest = bytes.size > 0 ? tr_xxh3(bytes.data, bytes.size, 0) : 0;
    tr_buf_fini(&bytes);
    return ok;
}

static void
check_ids(tr_audit *a, const json_t *line, uint64_t group, uint64_t index,
    const struct audit_member *member)
{
    const json_t *ids = json_object_get(line, "ids");
    uint64_t count = 0;
    uint64_t digest = 0;
    if (ids == NULL || json_is_null(ids)) {
        return; /* a sample without tokens */
    }
    if (!digest_ids(ids, &count, &digest) || count != member->units ||
        digest != member->ids_digest) {
        audit_report(a, "bytes-changed", G(group), AUDIT_NONE,
            "member %" PRIu64 ": the %" PRIu64 " ids in samples.jsonl have digest %016" PRIx64
            ", sealed were %" PRIu64 " with digest %016" PRIx64,
            index, count, digest, member->units, member->ids_digest);
    }
}

static void
check_spans(tr_audit *a, const json_t *line, uint64_t group, uint64_t index,
    const struct audit_member *member)
{
    const json_t *spans = json_object_get(line, "spans");
    bool same = json_array_size(spans) == member->span_count;
    for (size_t i = 0; same && i < member->span_count; i++) {
        const json_t *pair = json_array_get(spans, i);
        same = json_array_size(pair) == 2 &&
               (uint64_t)json_integer_value(json_array_get(pair, 0)) == member->spans[i].unit &&
               (uint64_t)json_integer_value(json_array_get(pair, 1)) == member->spans[i].version;
    }
    if (same) {
        return;
    }
    /* Fewer versions on one side: it hides that several were mixed. */
    bool mixed = json_array_size(spans) != member->span_count;
    audit_report(a, mixed ? "versions-mixed-without-spans" : "version-mis-stamped", G(group),
        AUDIT_NONE, "member %" PRIu64 ": samples.jsonl shows %zu version spans, sealed were %zu%s",
        index, json_array_size(spans), member->span_count, mixed ? "" : " with other versions");
}

static void
check_reward(tr_audit *a, const json_t *line, uint64_t group, uint64_t index,
    const struct audit_member *member)
{
    const json_t *reward = json_object_get(line, "reward");
    uint32_t stage = audit_reward_stage(a);
    bool staged = stage < a->stage_count && member->has_value[stage];
    if (reward == NULL || json_is_null(reward)) {
        if (staged) {
            audit_report(a, "reward-mismatch", G(group), AUDIT_NONE,
                "member %" PRIu64 ": no reward in samples.jsonl, the stage gave %g", index,
                member->values[stage]);
        }
        return;
    }
    double value = json_number_value(reward);
    if (!staged || !json_is_number(reward) ||
        fabs(value - member->values[stage]) > 1e-6 * fmax(1, fabs(member->values[stage]))) {
        audit_report(a, "reward-mismatch", G(group), AUDIT_NONE,
            "member %" PRIu64 ": reward %g in samples.jsonl, the stage gave %s%g", index, value,
            staged ? "" : "none, not ", staged ? member->values[stage] : value);
    }
}

/* A second line for a member: of another attempt, both count; of the same, one is too many. */
static bool
check_first(
    tr_audit *a, uint64_t group, uint64_t index, uint64_t attempt, struct audit_member *member)
{
    if (member->seen) {
        bool other = attempt != member->line_attempt;
        audit_report(a, other ? "attempt-trained-too" : "sample-repeated", G(group), AUDIT_NONE,
            "member %" PRIu64 " is in samples.jsonl as attempt %" PRIu64 " and again as attempt "
            "%" PRIu64,
            index, member->line_attempt, attempt);
        return false;
    }
    member->seen = true;
    member->line_attempt = attempt;
    return true;
}

static void
check_status(
    tr_audit *a, const json_t *line, uint64_t group, uint64_t step, const struct audit_group *g)
{
    const char *status = json_string_value(json_object_get(line, "status"));
    /* Lines are written after the take and before the commit: those of the step that a crash cut
     * off may stand alone. A group that ends by itself is in the journal before its lines. */
    if (g->state == GROUP_TAKEN && !a->ended && step == a->step + 1) {
        return;
    }
    if (status == NULL || strcmp(status, state_name(g->state)) != 0) {
        audit_report(a, "sample-status", G(group), S(step),
            "samples.jsonl says \"%s\", the journal says %s", status != NULL ? status : "",
            state_name(g->state));
    } else if (g->state == GROUP_TRAINED && step != g->step) {
        audit_report(a, "sample-step", G(group), S(step),
            "samples.jsonl says trained by step %" PRIu64 ", the journal says step %" PRIu64, step,
            g->step);
    }
}

/* Lines are appended a group at a time, members in order; batches in the order of steps, and the
 * groups of one in the order of ids. */
static void
check_place(
    tr_audit *a, uint64_t number, uint64_t group, uint64_t index, const struct audit_group *g)
{
    bool again = a->line_any && a->line_group == group;
    bool first = !again;
    for (uint64_t m = 0; first && m < a->group_size; m++) {
        first = m == index || !g->members[m].seen;
    }
    bool trained = g->state == GROUP_TRAINED;
    bool late = trained && !again &&
                (g->step < a->trained_line_step ||
                    (g->step == a->trained_line_step && group < a->trained_line_group));
    if ((again && index <= a->line_member) || (!again && !first) || late) {
        audit_report(a, "sample-order", G(group), AUDIT_NONE,
            "samples.jsonl line %" PRIu64 " (member %" PRIu64
            ") does not stand where it was written",
            number, index);
    }
    a->line_any = true;
    a->line_group = group;
    a->line_member = index;
    a->trained_line_step = trained ? TR_MAX(g->step, a->trained_line_step) : a->trained_line_step;
    a->trained_line_group = trained ? group : a->trained_line_group;
}

/* What the line says of the group as a whole, and how the sample ended. */
static void
check_about(tr_audit *a, const json_t *line, uint64_t group, uint64_t index, struct audit_group *g)
{
    uint64_t row = 0, epoch = 0;
    bool ended = g->state > GROUP_TAKEN;
    if (!audit_line_u64(line, "row", &row) || row != g->item) {
        audit_report(a, "sample-row", G(group), AUDIT_NONE,
            "member %" PRIu64 " is of row %" PRIu64
            " in samples.jsonl, dispatched was row %" PRIu64,
            index, row, g->item);
    }
    uint64_t stands = ended ? g->ended_epoch : a->epoch;
    if (!audit_line_u64(line, "epoch", &epoch) || epoch != stands) {
        audit_report(a, "wrong-epoch", G(group), AUDIT_NONE,
            "member %" PRIu64 " is of epoch %" PRIu64
            " in samples.jsonl, it ended in epoch %" PRIu64,
            index, epoch, stands);
    }
    const char *finish = json_string_value(json_object_get(line, "finish"));
    if (finish == NULL || finish[0] == '\0') {
        audit_report(a, "line-malformed", G(group), AUDIT_NONE,
            "member %" PRIu64 ": samples.jsonl does not say how it finished", index);
    }
    const char *prompt = json_string_value(json_object_get(line, "prompt"));
    uint64_t digest = prompt != NULL ? tr_xxh3(prompt, strlen(prompt), 0) : 0;
    if (g->has_prompt && digest != g->prompt_digest) {
        audit_report(a, "prompt-changed", G(group), AUDIT_NONE,
            "member %" PRIu64 " has another prompt in samples.jsonl than the members before it",
            index);
    }
    g->has_prompt = true;
    g->prompt_digest = digest;
}

static void
check_sample(tr_audit *a, const json_t *line, uint64_t number)
{
    uint64_t group = 0, index = 0, attempt = 0, step = 0;
    if (json_is_true(json_object_get(line, "truncated"))) {
        a->samples_truncated = true;
        return;
    }
    if (!audit_line_u64(line, "group", &group) || !audit_line_u64(line, "member", &index) ||
        !audit_line_u64(line, "attempt", &attempt) || !audit_line_u64(line, "step", &step)) {
        audit_report(a, "line-malformed", AUDIT_NONE, AUDIT_NONE,
            "samples.jsonl line %" PRIu64 " lacks group, member, attempt or step", number);
        return;
    }
    struct audit_group *g = audit_group_at(a, group);
    if (g == NULL || g->state == GROUP_VOID || index >= a->group_size ||
        !g->members[index].sealed) {
        audit_report(a, "sample-unknown", G(group), S(step),
            "samples.jsonl line %" PRIu64 " shows member %" PRIu64 ", which was never sealed",
            number, index);
        return;
    }
    struct audit_member *member = &g->members[index];
    if (!check_first(a, group, index, attempt, member)) {
        return;
    }
    check_place(a, number, group, index, g);
    check_status(a, line, group, step, g);
    check_about(a, line, group, index, g);
    if (attempt != member->attempt) {
        audit_report(a, "attempt-resurrected", G(group), S(step),
            "samples.jsonl shows member %" PRIu64 " as attempt %" PRIu64
            ", sealed was attempt %" PRIu64,
            index, attempt, member->attempt);
        return;
    }
    check_ids(a, line, group, index, member);
    check_spans(a, line, group, index, member);
    check_reward(a, line, group, index, member);
}

/* Every sample that was trained on is shown, unless the file ended at its bound or at a crash. */
static void
check_all_shown(tr_audit *a)
{
    for (size_t i = 0; i < a->group_count; i++) {
        const struct audit_group *g = &a->groups[i];
        bool must = g->state == GROUP_TRAINED && (a->ended || g->step < a->step);
        for (uint64_t m = 0; must && m < a->group_size; m++) {
            if (!g->members[m].seen) {
                audit_report(a, "sample-missing", G(i), S(g->step),
                    "member %" PRIu64 " was trained on and is not in samples.jsonl", m);
                break;
            }
        }
    }
}

void
audit_samples(tr_audit *a, const char *run_dir, uint64_t *lines)
{
    if (audit_each_line(a, run_dir, "samples.jsonl", check_sample, lines) &&
        !a->samples_truncated) {
        check_all_shown(a);
    }
}
