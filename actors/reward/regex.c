/* A regular expression as a reward. The pattern comes from a user's file and the text from a
 * model, so the match is bounded in steps and memory; to run into a bound is an error, not "no
 * match". */
#include "kinds.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <jansson.h>
#include <pcre2.h>
#include <string.h>

enum {
    PATTERN_MAX = 65536,
    STEPS_MAX = 2000000, /* about a second */
    DEPTH_MAX = 100000,
    HEAP_KIB_MAX = 65536
};

struct tr_regex {
    bool whole;
    char *pattern;     /* of the option, or NULL */
    char *compiled_of; /* the pattern that `code` is of: rows often share one */
    pcre2_code *code;
    pcre2_match_context *limits;
    pcre2_match_data *match;
};

static troupe_status compile(tr_regex *regex, const char *pattern, char why[256]);

troupe_status
tr_regex_open(tr_regex **out, const char *pattern, bool whole, troupe_error *err)
{
    tr_regex *regex = tr_zalloc(1, sizeof *regex);
    regex->whole = whole;
    regex->limits = pcre2_match_context_create(NULL);
    regex->match = pcre2_match_data_create(1, NULL);
    TR_ASSERT(regex->limits != NULL && regex->match != NULL);
    (void)pcre2_set_match_limit(regex->limits, STEPS_MAX);
    (void)pcre2_set_depth_limit(regex->limits, DEPTH_MAX);
    (void)pcre2_set_heap_limit(regex->limits, HEAP_KIB_MAX);
    if (pattern != NULL) {
        char why[256];
        const troupe_status status = compile(regex, pattern, why);
        if (status != TROUPE_OK) {
            tr_regex_close(regex);
            return troupe_fail(err, status, "reward: pattern \"%.200s\": %s", pattern, why);
        }
        regex->pattern = tr_strdup(pattern);
    }
    *out = regex;
    return TROUPE_OK;
}

void
tr_regex_close(tr_regex *regex)
{
    if (regex == NULL) {
        return;
    }
    pcre2_code_free(regex->code);
    pcre2_match_data_free(regex->match);
    pcre2_match_context_free(regex->limits);
    tr_free(regex->compiled_of);
    tr_free(regex->pattern);
    tr_free(regex);
}

/* Compiles unless it is the pattern of the last time. */
static troupe_status
compile(tr_regex *regex, const char *pattern, char why[256])
{
    if (regex->compiled_of != NULL && strcmp(regex->compiled_of, pattern) == 0) {
        return TROUPE_OK;
    }
    const size_t size = strlen(pattern);
    if (size > PATTERN_MAX) {
        (void)snprintf(why, 256, "it is %zu bytes long, more than %d", size, PATTERN_MAX);
        return TROUPE_BAD_INPUT;
    }
    int code = 0;
    PCRE2_SIZE offset = 0;
    /* A sampled text may be no UTF-8: such bytes match nothing, instead of failing the match. */
    pcre2_code *compiled = pcre2_compile((PCRE2_SPTR)pattern, size,
        PCRE2_UTF | PCRE2_MATCH_INVALID_UTF | PCRE2_NEVER_BACKSLASH_C, &code, &offset, NULL);
    if (compiled == NULL) {
        PCRE2_UCHAR text[160] = {0};
        (void)pcre2_get_error_message(code, text, sizeof text);
        (void)snprintf(
            why, 256, "%s at byte %zu; correct the pattern", (const char *)text, (size_t)offset);
        return TROUPE_BAD_INPUT;
    }
    pcre2_code_free(regex->code);
    tr_free(regex->compiled_of);
    regex->code = compiled;
    regex->compiled_of = tr_strdup(pattern);
    return TROUPE_OK;
}

static troupe_status
match(tr_regex *regex, const troupe_reward_input *input, double *value, troupe_error *err)
{
    const uint32_t how = regex->whole ? PCRE2_ANCHORED | PCRE2_ENDANCHORED : 0;
    const char *text = input->text_size > 0 ? input->text : "";
    const int found = pcre2_match(
        regex->code, (PCRE2_SPTR)text, input->text_size, 0, how, regex->match, regex->limits);
    if (found >= 0 || found == PCRE2_ERROR_NOMATCH) {
        *value = found >= 0 ? 1 : 0;
        return TROUPE_OK;
    }
    PCRE2_UCHAR why[160] = {0};
    (void)pcre2_get_error_message(found, why, sizeof why);
    return tr_reward_fail(err, TROUPE_FAILED, input,
        "the pattern \"%.200s\" gave up on a text of %zu bytes: %s; make it less ambiguous",
        regex->compiled_of, input->text_size, (const char *)why);
}

troupe_status
tr_regex_score(tr_regex *regex, const troupe_reward_input *input, double *value, troupe_error *err)
{
    json_error_t error;
    json_t *fields =
        json_loads(input->fields != NULL ? input->fields : "{}", JSON_REJECT_DUPLICATES, &error);
    const json_t *own = json_object_get(fields, "regex");
    const char *pattern = own != NULL ? json_string_value(own) : regex->pattern;
    troupe_status status = TROUPE_OK;
    if (pattern == NULL) {
        status = tr_reward_fail(err, TROUPE_BAD_INPUT, input, "%s",
            own != NULL ? "the row's \"regex\" must be a string"
                        : "the row has no \"regex\", and no pattern was given for all");
    } else {
        char why[256];
        status = compile(regex, pattern, why);
        status = status == TROUPE_OK
                     ? match(regex, input, value, err)
                     : tr_reward_fail(err, status, input, "regex \"%.200s\": %s", pattern, why);
    }
    json_decref(fields);
    return status;
}
