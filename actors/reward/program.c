/* A reward that an external program gives: one JSON line to it, one back. Everything that
 * runtime/sys/child calls an error, and every answer that is not exactly what was asked for,
 * ends the program and starts a new one, so that a late line can never be taken for the answer
 * to another question. */
#include "kinds.h"

#include <jansson.h>
#include <math.h>
#include <string.h>

static const size_t line_bytes_max = 1 << 20;
static const size_t stderr_bytes_max = 16 << 20;
static const uint64_t default_timeout_ns = 10000000000;
static const uint64_t stop_grace_ns = 500000000;

struct tr_program {
    char **argv;
    uint64_t timeout_ns;
    tr_cancel cancel;
    tr_child *child; /* NULL when it could not be started again */
    uint64_t restarts;
    tr_buf request;
    tr_buf answer;
};

static troupe_status start(tr_program *program, troupe_error *err);
static troupe_status write_request(
    tr_program *program, const troupe_reward_input *input, const char *id, troupe_error *err);

/* --- life ------------------------------------------------------------------------------------ */

troupe_status
tr_program_open(tr_program **out, const char *command, uint64_t timeout_ns, troupe_error *err)
{
    char **argv = NULL;
    size_t count = 0;
    troupe_status status = tr_command_split(command, &argv, &count, err);
    if (status != TROUPE_OK) {
        return status;
    }
    tr_program *program = tr_zalloc(1, sizeof *program);
    program->argv = argv;
    program->timeout_ns = timeout_ns > 0 ? timeout_ns : default_timeout_ns;
    program->cancel.fd = -1;
    status = tr_cancel_init(&program->cancel, err);
    if (status == TROUPE_OK) {
        status = start(program, err);
    }
    if (status != TROUPE_OK) {
        tr_program_close(program);
        return status;
    }
    *out = program;
    return TROUPE_OK;
}

void
tr_program_close(tr_program *program)
{
    if (program == NULL) {
        return;
    }
    tr_child_stop(program->child, stop_grace_ns);
    tr_cancel_fini(&program->cancel);
    tr_buf_fini(&program->request);
    tr_buf_fini(&program->answer);
    tr_free(program->argv);
    tr_free(program);
}

void
tr_program_interrupt(tr_program *program)
{
    tr_cancel_raise(&program->cancel);
}

uint64_t
tr_program_restarts(const tr_program *program)
{
    return program->restarts;
}

static troupe_status
start(tr_program *program, troupe_error *err)
{
    const tr_child_options options = {
        .argv = (const char *const *)program->argv,
        .answer_bytes_max = line_bytes_max,
        .stderr_bytes_max = stderr_bytes_max,
        .cancel = &program->cancel,
    };
    return tr_child_start(&program->child, &options, err);
}

/* After a failure: the next sample finds a program that has had time to load. That it cannot be
 * started is told then, to a caller who is not being told something else already. */
static void
restart(tr_program *program)
{
    tr_child_stop(program->child, 0);
    program->child = NULL;
    if (start(program, NULL) == TROUPE_OK) {
        program->restarts++;
    }
}

/* --- scoring --------------------------------------------------------------------------------- */

troupe_status
tr_program_score(tr_program *program, const troupe_reward_input *input, const char *id,
    double *value, troupe_error *err)
{
    troupe_status status = TROUPE_OK;
    if (program->child == NULL) {
        status = start(program, err);
        program->restarts += status == TROUPE_OK ? 1 : 0;
    }
    if (status == TROUPE_OK) {
        status = write_request(program, input, id, err);
    }
    if (status != TROUPE_OK) {
        return status;
    }
    troupe_error cause = {0};
    status = tr_child_ask(program->child, program->request.data, program->request.size,
        program->timeout_ns, &program->answer, &cause);
    if (status == TROUPE_OK) {
        char why[256];
        status = tr_program_read_answer(program->answer.data != NULL ? program->answer.data : "",
            program->answer.size, id, value, why);
        if (status == TROUPE_OK) {
            return TROUPE_OK;
        }
        if (status == TROUPE_FAILED) {
            return tr_reward_fail(err, status, input, "the program reports: %s", why);
        }
        (void)tr_child_fail(program->child, status, &cause, why);
    }
    status = tr_reward_fail(err, status, input, "%s", cause.text);
    if (status != TROUPE_CANCELLED) {
        restart(program);
    }
    return status;
}

static void
set_text(json_t *object, const char *key, const char *bytes, size_t size)
{
    tr_buf text = {0};
    tr_utf8_append(&text, bytes, size);
    /* The old value of a key that the row had too is replaced. */
    TR_ASSERT(json_object_set_new(
                  object, key, json_stringn(text.data != NULL ? text.data : "", text.size)) == 0);
    tr_buf_fini(&text);
}

static void
rename_key(json_t *object, const char *from, const char *to)
{
    json_t *value = json_object_get(object, from);
    if (value != NULL) {
        TR_ASSERT(json_object_set(object, to, value) == 0);
        (void)json_object_del(object, from);
    }
}

static int
append(const char *bytes, size_t size, void *buf)
{
    tr_buf_append(buf, bytes, size);
    return 0;
}

static troupe_status
write_request(
    tr_program *program, const troupe_reward_input *input, const char *id, troupe_error *err)
{
    json_error_t error;
    json_t *row =
        json_loads(input->fields != NULL ? input->fields : "{}", JSON_REJECT_DUPLICATES, &error);
    if (!json_is_object(row)) {
        json_decref(row);
        return tr_reward_fail(
            err, TROUPE_BAD_INPUT, input, "the row's other fields are no JSON object");
    }
    rename_key(row, "id", "row_id");
    rename_key(row, "text", "row_text");
    json_t *object = json_object();
    set_text(object, "id", id, strlen(id));
    set_text(object, "prompt", input->prompt != NULL ? input->prompt : "",
        input->prompt != NULL ? strlen(input->prompt) : 0);
    set_text(object, "text", input->text, input->text_size);
    if (input->answer != NULL) {
        set_text(object, "answer", input->answer, strlen(input->answer));
    } else {
        TR_ASSERT(json_object_set_new(object, "answer", json_null()) == 0);
    }
    TR_ASSERT(json_object_update_missing(object, row) == 0);
    tr_buf_clear(&program->request);
    /* Newlines in strings are escaped and none is written between tokens: it is one line. */
    TR_ASSERT(json_dump_callback(object, append, &program->request, JSON_COMPACT) == 0);
    json_decref(object);
    json_decref(row);
    if (program->request.size > line_bytes_max) {
        return tr_reward_fail(err, TROUPE_BAD_INPUT, input,
            "its line for the program would have %zu bytes, more than 1 MiB; shorten prompt, "
            "response or the row's fields",
            program->request.size);
    }
    return TROUPE_OK;
}

/* --- the answer ------------------------------------------------------------------------------ */

/* Copies a stranger's text so that it cannot upset a terminal or a log. */
static void
quote(char *out, size_t out_size, const char *text, size_t size)
{
    const size_t kept = TR_MIN(size, out_size - 1);
    for (size_t i = 0; i < kept; i++) {
        out[i] = (unsigned char)text[i] < 0x20 || text[i] == 0x7f ? ' ' : text[i];
    }
    out[kept] = '\0';
}

static troupe_status
read_object(const json_t *object, const char *id, double *value, char why[256])
{
    const json_t *got = json_object_get(object, "id");
    const json_t *reward = json_object_get(object, "reward");
    const json_t *error = json_object_get(object, "error");
    if (!json_is_string(got) || strcmp(json_string_value(got), id) != 0) {
        char other[64];
        char *dump = got != NULL ? json_dumps(got, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
        quote(other, sizeof other, dump != NULL ? dump : "none", dump != NULL ? strlen(dump) : 4);
        (void)snprintf(why, 256, "answered with the id %s, and was asked for \"%.64s\"", other, id);
        free(dump);
        return TROUPE_CORRUPT;
    }
    if ((reward != NULL) == (error != NULL)) {
        (void)snprintf(why, 256, "answered with %s; give one of them",
            reward != NULL ? "both \"reward\" and \"error\"" : "neither \"reward\" nor \"error\"");
        return TROUPE_CORRUPT;
    }
    if (error != NULL) {
        if (!json_is_string(error)) {
            (void)snprintf(why, 256, "answered with an \"error\" that is no string");
            return TROUPE_CORRUPT;
        }
        quote(why, 256, json_string_value(error), json_string_length(error));
        return TROUPE_FAILED;
    }
    const double number = json_is_number(reward) ? json_number_value(reward) : (double)NAN;
    if (!isfinite(number) || fabs(number) > TROUPE_REWARD_MAX) {
        (void)snprintf(
            why, 256, "answered with a \"reward\" that is no finite number within +-1e30");
        return TROUPE_CORRUPT;
    }
    *value = number;
    return TROUPE_OK;
}

troupe_status
tr_program_read_answer(const char *line, size_t size, const char *id, double *value, char why[256])
{
    json_error_t error;
    json_t *object = json_loadb(line, size, JSON_REJECT_DUPLICATES, &error);
    if (!json_is_object(object)) {
        char start[80];
        char reason[96];
        quote(start, sizeof start, line, size);
        quote(reason, sizeof reason, error.text, object == NULL ? strlen(error.text) : 0);
        (void)snprintf(why, 256, "answered \"%s\", which is no JSON object%s%s", start,
            reason[0] != '\0' ? ": " : "", reason);
        json_decref(object);
        return TROUPE_CORRUPT;
    }
    const troupe_status status = read_object(object, id, value, why);
    json_decref(object);
    return status;
}
