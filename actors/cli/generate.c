/* `troupe model generate DIR`: prompt in, answer out, by the engine that rollouts use. */
#include "generate.h"

#include "file.h"

#include <troupe/chat.h>
#include <troupe/engine.h>
#include <troupe/ext/base.h>
#include <troupe/options.h>
#include <troupe/stop.h>
#include <troupe/tokenizer.h>

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    STOPS_MAX = TROUPE_STOP_IDS_MAX + 4
};

static const troupe_option options_table[] = {
    {.name = "prompt", .kind = TROUPE_OPTION_TEXT, .choices = "TEXT", .help = "the prompt"},
    {.name = "prompt-ids",
        .kind = TROUPE_OPTION_TEXT,
        .choices = "LIST",
        .help = "the prompt as token ids: 1,2,3"},
    {.name = "messages",
        .kind = TROUPE_OPTION_TEXT,
        .choices = "FILE",
        .help = "a JSON array of {\"role\", \"content\"}"},
    {.name = "chat-template",
        .kind = TROUPE_OPTION_CHOICE,
        .choices = "chatml|llama3|plain",
        .help = "form of --messages (recognised from the model's own template)"},
    {.name = "max-new",
        .kind = TROUPE_OPTION_INT,
        .fallback = "128",
        .choices = "N",
        .min = 1,
        .max = 1e6,
        .help = "new tokens at most"},
    {.name = "temperature",
        .kind = TROUPE_OPTION_REAL,
        .fallback = "1",
        .choices = "T",
        .min = 0,
        .max = 100,
        .help = "0 takes the likeliest token"},
    {.name = "top-p",
        .kind = TROUPE_OPTION_REAL,
        .fallback = "1",
        .choices = "P",
        .min = 1e-6,
        .max = 1,
        .help = "draw from the smallest set that has this probability"},
    {.name = "top-k",
        .kind = TROUPE_OPTION_INT,
        .fallback = "0",
        .choices = "K",
        .min = 0,
        .max = 1e9,
        .help = "draw from the K likeliest; 0 = from all"},
    {.name = "seed",
        .kind = TROUPE_OPTION_INT,
        .fallback = "0",
        .choices = "N",
        .min = 0,
        .max = 9e15,
        .help = "same seed, same answer"},
    {.name = "stop",
        .kind = TROUPE_OPTION_TEXT,
        .choices = "TEXT",
        .help = "end before this text, besides the model's own stop ids"},
    {.name = "logprobs",
        .kind = TROUPE_OPTION_FLAG,
        .fallback = "no",
        .help = "one line a token: id, log-prob, text as JSON"},
    {.name = "device",
        .kind = TROUPE_OPTION_TEXT,
        .fallback = "cpu",
        .choices = "NAME",
        .help = "where to run: cpu, cpu:plain, cuda"},
    {.name = NULL}};

static const troupe_options_spec spec = {.program = "model generate",
    .synopsis = "DIR --prompt TEXT|--prompt-ids LIST|--messages FILE [options]",
    .about = "Writes a model's answer to a prompt. Nothing is taken from generation_config.json "
             "but the stop ids.",
    .options = options_table,
    .positional_min = 1,
    .positional_max = 1};

/* Everything that one answer needs. */
struct job {
    const troupe_options *options;
    const char *dir;
    troupe_device *device;
    troupe_lm *lm;
    float *params;
    troupe_lm_weights *weights;
    troupe_engine *engine;
    troupe_tokenizer *tokenizer; /* NULL when the prompt is ids and the model has none */
    troupe_chat *chat;
    troupe_stopper *stopper;
    troupe_ids prompt;
    int32_t stops[STOPS_MAX];
    int stop_count;
    int shown;    /* tokens printed */
    size_t bytes; /* of text printed */
};

/* --- the prompt --- */

static troupe_status
parse_ids(const char *text, troupe_ids *ids, troupe_error *err)
{
    for (const char *at = text;;) {
        char *end = NULL;
        errno = 0;
        long long id = strtoll(at, &end, 10);
        if (end == at || errno != 0 || id < 0 || id > INT32_MAX || (*end != ',' && *end != '\0')) {
            return troupe_fail(err, TROUPE_BAD_INPUT,
                "--prompt-ids \"%s\": entry %zu is no token id; write ids with commas between "
                "them, "
                "as in 1,2,3",
                text, ids->count + 1);
        }
        troupe_ids_append(ids, (int32_t)id);
        if (*end == '\0') {
            return TROUPE_OK;
        }
        at = end + 1;
    }
}

static troupe_status
read_messages(struct job *job, const char *path, troupe_error *err)
{
    tr_buf json = {0}, text = {0};

    troupe_status status = troupe_chat_open(job->dir,
        troupe_options_text(job->options, "chat-template"), job->tokenizer, &job->chat, err);
    if (status == TROUPE_OK) {
        status = tr_file_read_all(path, TROUPE_CHAT_JSON_MAX, &json, err);
    }
    if (status == TROUPE_OK) {
        status = troupe_chat_render_json(
            job->chat, json.data == NULL ? "" : json.data, json.size, true, &text, err);
        if (status != TROUPE_OK && err != NULL) {
            char inner[sizeof err->text];
            (void)memcpy(inner, err->text, sizeof inner);
            (void)troupe_fail(err, status, "%s: %.900s", path, inner);
        }
    }
    if (status == TROUPE_OK) {
        /* The template wrote its special tokens, the begin token among them. */
        status = troupe_tokenizer_encode(
            job->tokenizer, text.data == NULL ? "" : text.data, text.size, 0, &job->prompt, err);
    }
    if (status == TROUPE_OK && troupe_chat_note(job->chat) != NULL) {
        (void)fprintf(stderr, "note: %s\n", troupe_chat_note(job->chat));
    }
    tr_buf_fini(&json);
    tr_buf_fini(&text);
    return status;
}

static troupe_status
read_prompt(struct job *job, troupe_error *err)
{
    const char *text = troupe_options_text(job->options, "prompt");
    const char *ids = troupe_options_text(job->options, "prompt-ids");
    const char *messages = troupe_options_text(job->options, "messages");
    troupe_status status = TROUPE_OK;

    if ((text != NULL) + (ids != NULL) + (messages != NULL) != 1) {
        return troupe_fail(
            err, TROUPE_BAD_INPUT, "give exactly one of --prompt, --prompt-ids and --messages");
    }
    if (ids != NULL) {
        return parse_ids(ids, &job->prompt, err);
    }
    status = messages != NULL ? read_messages(job, messages, err)
                              : troupe_tokenizer_encode(job->tokenizer, text, strlen(text),
                                    TROUPE_ENCODE_ADD_SPECIAL, &job->prompt, err);
    if (status == TROUPE_OK && job->prompt.count == 0) {
        status = troupe_fail(err, TROUPE_BAD_INPUT,
            "the prompt has no token; write some text, or give ids by --prompt-ids");
    }
    if (status == TROUPE_OK &&
        troupe_tokenizer_double_bos(job->tokenizer, job->prompt.data, job->prompt.count)) {
        (void)fprintf(stderr, "note: the prompt begins with two begin tokens; leave yours out\n");
    }
    return status;
}

/* --- where it ends --- */

static void
add_stop(struct job *job, int32_t id)
{
    for (int i = 0; i < job->stop_count; i++) {
        if (job->stops[i] == id) {
            return;
        }
    }
    if (id >= 0 && job->stop_count < STOPS_MAX) {
        job->stops[job->stop_count++] = id;
    }
}

/* The union of the configuration's ids, the tokenizer's end and the chat form's. */
static troupe_status
collect_stops(struct job *job, troupe_error *err)
{
    const troupe_lm_config *config = troupe_lm_get_config(job->lm);
    const char *string = troupe_options_text(job->options, "stop");
    int32_t chat[2];

    for (int i = 0; i < config->stop_count; i++) {
        add_stop(job, config->stop_ids[i]);
    }
    if (job->tokenizer == NULL) {
        return string == NULL ? TROUPE_OK
                              : troupe_fail(err, TROUPE_BAD_INPUT,
                                    "--stop takes a text, and %s has no tokenizer.json to read it "
                                    "with; leave it out",
                                    job->dir);
    }
    add_stop(job, troupe_tokenizer_role(job->tokenizer, TROUPE_TOKEN_EOS));
    for (size_t i = 0, n = job->chat == NULL ? 0 : troupe_chat_stop_ids(job->chat, chat); i < n;
         i++) {
        add_stop(job, chat[i]);
    }
    const troupe_stop_options options = {.size = sizeof options,
        .ids = job->stops,
        .id_count = (size_t)job->stop_count,
        .strings = &string,
        .string_count = string != NULL};
    return troupe_stopper_new(job->tokenizer, &options, &job->stopper, err);
}

/* --- the answer --- */

/* One line of --logprobs. The text of a token alone may be a broken character: it is shown as the
 * decoder gives it. */
static void
print_token(const struct job *job, int32_t id, float logprob)
{
    tr_buf text = {0};

    printf("%d\t%.6f", id, (double)logprob);
    if (job->tokenizer != NULL) {
        troupe_tokenizer_decode(job->tokenizer, &id, 1, 0, &text);
        printf("\t\"");
        for (size_t i = 0; i < text.size; i++) {
            unsigned char c = (unsigned char)text.data[i];
            if (c == '"' || c == '\\') {
                printf("\\%c", c);
            } else if (c < 0x20 || c == 0x7f) {
                printf("\\u%04x", c);
            } else {
                (void)putchar(c);
            }
        }
        (void)putchar('"');
    }
    (void)putchar('\n');
    tr_buf_fini(&text);
}

/* Prints what is new. True when a stop string became whole: the answer ends there. */
static bool
show(struct job *job, const troupe_generation *g, bool finished)
{
    bool logprobs = troupe_options_flag(job->options, "logprobs");
    troupe_stop_reason reason = TROUPE_STOP_NONE;

    for (; job->shown < g->count && reason == TROUPE_STOP_NONE; job->shown++) {
        int32_t id = g->tokens[job->shown];
        if (job->stopper != NULL) {
            reason = troupe_stopper_push(job->stopper, id);
        }
        if (logprobs) {
            print_token(job, id, g->logprobs[job->shown]);
        } else if (job->stopper == NULL) {
            printf("%s%d", job->shown > 0 ? "," : "", id);
        }
    }
    if (job->stopper != NULL && !logprobs) {
        size_t size = 0, stable = 0;
        if (finished) {
            troupe_stopper_finish(job->stopper);
        }
        const char *text = troupe_stopper_text(job->stopper, &size, &stable);
        size_t upto = finished || reason != TROUPE_STOP_NONE ? size : stable;
        if (upto > job->bytes) {
            (void)fwrite(text + job->bytes, 1, upto - job->bytes, stdout);
            job->bytes = upto;
        }
    }
    (void)fflush(stdout);
    return reason == TROUPE_STOP_STRING;
}

static troupe_status
answer(struct job *job, troupe_error *err)
{
    const troupe_options *o = job->options;
    const uint64_t seed = (uint64_t)troupe_options_int(o, "seed");
    const troupe_engine_request request = {.size = sizeof request,
        .prompt = job->prompt.data,
        .prompt_count = (int)job->prompt.count,
        .members = 1,
        .seeds = &seed,
        .max_new = (int)troupe_options_int(o, "max-new"),
        .sampling = {.temperature = (float)troupe_options_real(o, "temperature"),
            .top_p = (float)troupe_options_real(o, "top-p"),
            .top_k = (int)troupe_options_int(o, "top-k")},
        .stop_ids = job->stops,
        .stop_count = job->stop_count};
    const char *finish = "stop";

    troupe_status status = troupe_engine_submit(job->engine, &request, err);
    for (bool done = false; status == TROUPE_OK && !done;) {
        const troupe_generation *finished = NULL;
        troupe_generation growing;
        int count = 0;
        status = troupe_engine_step(job->engine, &finished, &count, err);
        if (status != TROUPE_OK) {
            break;
        }
        if (count > 0) {
            (void)show(job, finished, true);
            finish = troupe_finish_name(finished->finish);
            done = true;
            if (finished->finish == TROUPE_FINISH_NAN) {
                status = troupe_fail(err, TROUPE_FAILED,
                    "the logits after %d tokens are not numbers; the weights in %s are broken",
                    finished->count, job->dir);
            }
        } else if (troupe_engine_peek(job->engine, 0, 0, &growing) == TROUPE_OK) {
            done = show(job, &growing, false);
        }
    }
    if (!troupe_options_flag(o, "logprobs")) {
        (void)putchar('\n');
    }
    if (status == TROUPE_OK) {
        (void)fprintf(stderr, "%d tokens after a prompt of %zu, finish: %s\n", job->shown,
            job->prompt.count, finish);
    }
    return status;
}

/* --- the command --- */

static troupe_status
open_tokenizer(struct job *job, troupe_error *err)
{
    troupe_status status = troupe_tokenizer_load(job->dir, &job->tokenizer, err);

    /* Ids can be shown without one. */
    return status == TROUPE_NOT_FOUND && troupe_options_text(job->options, "prompt-ids") != NULL
               ? TROUPE_OK
               : status;
}

static troupe_status
open_model(struct job *job, troupe_error *err)
{
    const troupe_engine_options options = {.size = sizeof options, .sequences_max = 1};
    const char *device = troupe_options_text(job->options, "device");
    int valid = job->tokenizer == NULL ? 0 : troupe_tokenizer_vocab(job->tokenizer);

    troupe_status status = troupe_device_open(device, NULL, &job->device, err);
    if (status == TROUPE_OK) {
        status = troupe_lm_load(job->dir, valid, &job->lm, &job->params, err);
    }
    if (status == TROUPE_OK) {
        status = troupe_lm_weights_new(job->lm, job->device, job->params, 0, &job->weights, err);
    }
    if (status == TROUPE_OK) {
        status = troupe_engine_new(job->lm, job->device, job->weights, &options, &job->engine, err);
    }
    return status;
}

static troupe_status
generate(struct job *job, troupe_error *err)
{
    troupe_status status = open_tokenizer(job, err);
    if (status == TROUPE_OK) {
        status = read_prompt(job, err);
    }
    if (status == TROUPE_OK) {
        status = open_model(job, err);
    }
    if (status == TROUPE_OK) {
        status = collect_stops(job, err);
    }
    return status == TROUPE_OK ? answer(job, err) : status;
}

static void
close_job(struct job *job)
{
    troupe_engine_free(job->engine);
    troupe_lm_weights_drop(job->weights, job->device);
    tr_free(job->params);
    troupe_lm_free(job->lm);
    troupe_device_close(job->device);
    troupe_stopper_free(job->stopper);
    troupe_chat_free(job->chat);
    troupe_tokenizer_free(job->tokenizer);
    troupe_ids_fini(&job->prompt);
}

int
troupe_cli_generate(int argc, char **argv)
{
    troupe_options *o = NULL;
    troupe_error err = {0};
    struct job job = {0};

    troupe_status status = troupe_options_parse(&spec, argc, argv, &o, &err);
    if (status == TROUPE_OK && troupe_options_wants_help(o)) {
        troupe_options_help(&spec, stdout);
        troupe_options_free(o);
        return 0;
    }
    if (status == TROUPE_OK) {
        job.options = o;
        job.dir = troupe_options_positional(o, 0);
        status = generate(&job, &err);
        close_job(&job);
    }
    troupe_options_free(o);
    if (status != TROUPE_OK) {
        (void)fprintf(stderr, "troupe model generate: %s\n", err.text);
        return status == TROUPE_FAILED || status == TROUPE_DEVICE ? 1 : 2;
    }
    return 0;
}
