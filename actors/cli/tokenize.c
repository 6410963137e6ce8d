/* `troupe model tokenize DIR|tokenizer.json`: one JSON string a line in, one JSON array of ids a
 * line out, or with --decode the other way. A line that is wrong ends it, so that line n of the
 * output is always that of line n of the input. */
#include "tokenize.h"

#include <troupe/options.h>

#include <errno.h>
#include <jansson.h>
#include <string.h>

/* A line may hold a large document, but not all memory. */
#define LINE_SIZE_MAX ((size_t)256 << 20)

static const troupe_option options_table[] = {{.name = "decode",
                                                  .kind = TROUPE_OPTION_FLAG,
                                                  .fallback = "no",
                                                  .help = "arrays of ids in, JSON strings out"},
    {.name = "skip-special",
        .kind = TROUPE_OPTION_FLAG,
        .fallback = "no",
        .help = "with --decode: leave special tokens out of the text"},
    {.name = NULL}};

static const troupe_options_spec spec = {.program = "model tokenize",
    .synopsis = "DIR|tokenizer.json [--decode [--skip-special]]",
    .about = "Reads one JSON string a line from stdin and prints its token ids as a JSON array.\n"
             "Special tokens in the text are recognised; none is added unless the file's "
             "post-processor does.",
    .options = options_table,
    .positional_min = 1,
    .positional_max = 1};

struct line {
    size_t number; /* from 1 */
    tr_buf text;
};

static troupe_status
bad_line(
    const struct tr_tokenize_job *job, const struct line *line, troupe_error *err, const char *what)
{
    return troupe_fail(err, TROUPE_BAD_INPUT, "%s:%zu: %s", job->name, line->number, what);
}

static troupe_status
encode_line(const struct tr_tokenize_job *job, const struct line *line, const json_t *value,
    troupe_error *err)
{
    if (!json_is_string(value)) {
        return bad_line(job, line, err, "is no JSON string; to turn ids into text add --decode");
    }
    troupe_ids ids = {0};
    troupe_status status = troupe_tokenizer_encode(job->tokenizer, json_string_value(value),
        json_string_length(value), TROUPE_ENCODE_ADD_SPECIAL, &ids, err);
    if (status == TROUPE_OK) {
        (void)fputc('[', job->out);
        for (size_t i = 0; i < ids.count; i++) {
            (void)fprintf(job->out, i == 0 ? "%d" : ",%d", (int)ids.data[i]);
        }
        (void)fputs("]\n", job->out);
    }
    troupe_ids_fini(&ids);
    return status;
}

/* Collects the ids of an array. The library drops an id that names no token; a person who typed
 * it wants to know. */
static troupe_status
read_ids(const struct tr_tokenize_job *job, const struct line *line, const json_t *value,
    troupe_ids *ids, troupe_error *err)
{
    if (!json_is_array(value)) {
        return bad_line(job, line, err, "is no JSON array of ids");
    }
    for (size_t i = 0; i < json_array_size(value); i++) {
        const json_t *entry = json_array_get(value, i);
        json_int_t id = json_integer_value(entry);
        size_t size = 0;
        if (!json_is_integer(entry)) {
            return bad_line(job, line, err, "holds something that is no integer");
        }
        if (id < 0 || id > INT32_MAX ||
            troupe_tokenizer_token(job->tokenizer, (int32_t)id, &size) == NULL) {
            return troupe_fail(err, TROUPE_BAD_INPUT,
                "%s:%zu: the id %lld names no token of this tokenizer (ids are below %d)",
                job->name, line->number, (long long)id, troupe_tokenizer_vocab(job->tokenizer));
        }
        troupe_ids_append(ids, (int32_t)id);
    }
    return TROUPE_OK;
}

static troupe_status
decode_line(const struct tr_tokenize_job *job, const struct line *line, const json_t *value,
    troupe_error *err)
{
    troupe_ids ids = {0};
    tr_buf text = {0};
    troupe_status status = read_ids(job, line, value, &ids, err);
    if (status == TROUPE_OK) {
        unsigned flags = job->skip_special ? TROUPE_DECODE_SKIP_SPECIAL : 0;
        troupe_tokenizer_decode(job->tokenizer, ids.data, ids.count, flags, &text);
        json_t *string = json_stringn(text.size == 0 ? "" : text.data, text.size);
        TR_ASSERT(string != NULL); /* decoded text is always valid UTF-8 */
        (void)json_dumpf(string, job->out, JSON_ENCODE_ANY);
        (void)fputc('\n', job->out);
        json_decref(string);
    }
    troupe_ids_fini(&ids);
    tr_buf_fini(&text);
    return status;
}

/* Reads the next line without its end; false at the end of the input. */
static bool
next_line(FILE *in, struct line *line)
{
    tr_buf_clear(&line->text);
    char block[4096];
    size_t used = 0;
    int c = getc(in);
    if (c == EOF) {
        return false;
    }
    for (; c != EOF && c != '\n' && line->text.size <= LINE_SIZE_MAX; c = getc(in)) {
        if (used == sizeof block) {
            tr_buf_append(&line->text, block, used);
            used = 0;
        }
        block[used++] = (char)c;
    }
    tr_buf_append(&line->text, block, used);
    line->number++;
    return true;
}

static troupe_status
do_line(const struct tr_tokenize_job *job, const struct line *line, troupe_error *err)
{
    if (line->text.size > LINE_SIZE_MAX) {
        return bad_line(job, line, err, "is over 256 MiB; split it");
    }
    json_error_t parse;
    json_t *value = json_loadb(line->text.data, line->text.size,
        JSON_DECODE_ANY | JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, &parse);
    if (value == NULL) {
        return troupe_fail(err, TROUPE_BAD_INPUT, "%s:%zu: is no valid JSON: %s", job->name,
            line->number, parse.text);
    }
    troupe_status status =
        job->decode ? decode_line(job, line, value, err) : encode_line(job, line, value, err);
    json_decref(value);
    return status;
}

troupe_status
tr_tokenize_lines(const struct tr_tokenize_job *job, troupe_error *err)
{
    struct line line = {0};
    troupe_status status = TROUPE_OK;
    while (status == TROUPE_OK && next_line(job->in, &line)) {
        status = do_line(job, &line, err);
    }
    tr_buf_fini(&line.text);
    if (status == TROUPE_OK && ferror(job->in)) {
        status = troupe_fail(err, TROUPE_IO, "%s: cannot be read: %s", job->name, strerror(errno));
    }
    if (fflush(job->out) != 0 && status == TROUPE_OK) {
        status = troupe_fail(err, TROUPE_IO, "the output cannot be written: %s", strerror(errno));
    }
    return status;
}

static int
run(const troupe_options *options, troupe_error *err)
{
    struct tr_tokenize_job job = {.in = stdin,
        .out = stdout,
        .name = "stdin",
        .decode = troupe_options_flag(options, "decode"),
        .skip_special = troupe_options_flag(options, "skip-special")};
    if (job.skip_special && !job.decode) {
        (void)troupe_fail(err, TROUPE_BAD_INPUT, "--skip-special needs --decode");
        return 2;
    }
    troupe_tokenizer *tokenizer = NULL;
    if (troupe_tokenizer_load(troupe_options_positional(options, 0), &tokenizer, err) !=
        TROUPE_OK) {
        return 2;
    }
    job.tokenizer = tokenizer;
    troupe_status status = tr_tokenize_lines(&job, err);
    troupe_tokenizer_free(tokenizer);
    return status == TROUPE_OK ? 0 : status == TROUPE_IO ? 1 : 2;
}

int
troupe_cli_tokenize(int argc, char **argv)
{
    troupe_error err = {0};
    troupe_options *options = NULL;
    int code = 2;
    if (troupe_options_parse(&spec, argc, argv, &options, &err) == TROUPE_OK) {
        if (troupe_options_wants_help(options)) {
            troupe_options_help(&spec, stdout);
            code = 0;
        } else {
            code = run(options, &err);
        }
    }
    troupe_options_free(options);
    if (code != 0) {
        (void)fprintf(stderr, "troupe model tokenize: %s\n", err.text);
    }
    return code;
}
