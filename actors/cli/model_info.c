/* `troupe model info`: the configuration as it was understood, the files that the weights come
 * from and those that are ignored, and how much memory the model takes. Reads headers only, so
 * it answers at once for a model of any size. Called by the command line. */
#include "cli/model_info.h"

#include "lm/config.h"
#include "lm/file.h"
#include "lm/params_source.h"

#include <troupe/ext/base.h>
#include <troupe/model.h>
#include <troupe/options.h>

#include <dirent.h>
#include <string.h>
#include <sys/stat.h>

enum {
    OTHERS_MAX = 16 /* ignored files that are listed */
};

typedef struct info {
    const char *dir;
    troupe_lm_config config;
    troupe_lm_layout layout;
    tr_params_source source;
    bool tokenizer, chat_template, optimizer, manifest;
    char *others[OTHERS_MAX]; /* safetensors files that the model does not use */
    int other_count;
} info;

static bool
has_file(const info *in, const char *name)
{
    char path[PATH_MAX];
    return tr_path_join(path, in->dir, name, NULL) == TROUPE_OK && tr_file_exists(path);
}

static bool
is_used(const info *in, const char *name)
{
    for (int i = 0; i < in->source.file_count; i++) {
        if (strcmp(in->source.files[i], name) == 0) {
            return true;
        }
    }
    return strcmp(name, "optimizer.safetensors") == 0;
}

/* Weight files that lie there and are not read: a usual reason for a surprise. */
static void
find_others(info *in)
{
    static const char tail[] = ".safetensors";
    DIR *dir = opendir(in->dir);
    if (dir == NULL) {
        return;
    }
    for (struct dirent *entry = readdir(dir); entry != NULL; entry = readdir(dir)) {
        size_t size = strlen(entry->d_name);
        bool weights =
            size >= sizeof tail && strcmp(entry->d_name + size - (sizeof tail - 1), tail) == 0;
        if (weights && !is_used(in, entry->d_name) && in->other_count < OTHERS_MAX) {
            in->others[in->other_count++] = tr_strdup(entry->d_name);
        }
    }
    closedir(dir);
}

static troupe_status
info_init(info *in, const char *dir, troupe_error *err)
{
    *in = (info){.dir = dir};
    troupe_status status = troupe_lm_config_read(dir, &in->config, err);
    if (status != TROUPE_OK) {
        return status;
    }
    troupe_lm_layout_init(&in->layout, &in->config);
    status = troupe_lm_params_check(dir, &in->config, &in->layout, err);
    if (status == TROUPE_OK) {
        status = tr_params_source_init(&in->source, dir, &in->config, &in->layout, err);
    }
    if (status != TROUPE_OK) {
        return status;
    }
    in->tokenizer = has_file(in, "tokenizer.json");
    in->chat_template = has_file(in, "chat_template.jinja");
    in->optimizer = has_file(in, "optimizer.safetensors");
    in->manifest = has_file(in, "manifest.json");
    find_others(in);
    return TROUPE_OK;
}

static void
info_fini(info *in)
{
    troupe_lm_layout_fini(&in->layout);
    tr_params_source_fini(&in->source);
    for (int i = 0; i < in->other_count; i++) {
        tr_free(in->others[i]);
    }
}

static uint64_t
file_size(const info *in, const char *name)
{
    char path[PATH_MAX];
    struct stat st;
    if (tr_path_join(path, in->dir, name, NULL) != TROUPE_OK || stat(path, &st) != 0) {
        return 0;
    }
    return (uint64_t)st.st_size;
}

/* Bytes of: the weights as stored, in fp32, what AdamW keeps (masters, two moments, gradients, all
 * fp32), and keys and values of one token in fp32. */
typedef struct memory {
    uint64_t stored, fp32, training, kv_token;
} memory;

static memory
memory_of(const info *in)
{
    const troupe_lm_config *c = &in->config;
    uint64_t n = in->layout.parameters;
    return (memory){.stored = n * (c->dtype == TROUPE_F32 ? 4 : 2),
        .fp32 = n * 4,
        .training = n * 16,
        .kv_token = (uint64_t)c->layers * 2 * (uint64_t)c->kv_heads * (uint64_t)c->head_dim * 4};
}

/* --- for people --- */

static void
put_bytes(FILE *out, uint64_t bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double value = (double)bytes;
    size_t unit = 0;
    while (value >= 1024 && unit + 1 < TR_COUNT(units)) {
        value /= 1024;
        unit++;
    }
    fprintf(out, unit == 0 ? "%.0f %s" : "%.1f %s", value, units[unit]);
}

static void
put_rope(FILE *out, const troupe_lm_config *c)
{
    fprintf(out, "rope        %s, theta %g", tr_lm_rope_name(c->rope.kind), c->rope.theta);
    if (c->rope.kind != TROUPE_ROPE_DEFAULT) {
        fprintf(out, ", factor %g", c->rope.factor);
    }
    if (c->rope.kind == TROUPE_ROPE_LLAMA3) {
        fprintf(out, ", frequencies %g to %g of %.0f positions", c->rope.low_freq_factor,
            c->rope.high_freq_factor, c->rope.original_context);
    }
    fprintf(out, "\n");
}

static void
put_files(FILE *out, const info *in)
{
    char shown[TR_PRINTABLE_MAX];
    for (int i = 0; i < in->source.file_count; i++) {
        const char *name = in->source.files[i];
        fprintf(out, "%-12s%s, ", i == 0 ? "weights" : "", tr_printable(shown, name));
        put_bytes(out, file_size(in, name));
        fprintf(out, "\n");
    }
    for (int i = 0; i < in->other_count; i++) {
        fprintf(out, "%-12s%s (the model does not use it)\n", i == 0 ? "ignored" : "",
            tr_printable(shown, in->others[i]));
    }
    fprintf(out, "tokenizer   %s%s\n",
        in->tokenizer ? "tokenizer.json" : "none: prompts must be given as ids",
        in->chat_template ? ", chat_template.jinja" : "");
    if (in->manifest || in->optimizer) {
        fprintf(out, "checkpoint  %s, %s\n", in->manifest ? "with manifest" : "without manifest",
            in->optimizer ? "with optimiser state" : "without optimiser state");
    }
}

static void
put_ids(FILE *out, const troupe_lm_config *c)
{
    fprintf(out, "stop ids   ");
    for (int i = 0; i < c->stop_count; i++) {
        fprintf(out, " %d", c->stop_ids[i]);
    }
    fprintf(out, "%s\n", c->stop_count == 0 ? " none; the tokenizer may name one" : "");
}

static void
print_table(const info *in, FILE *out)
{
    const troupe_lm_config *c = &in->config;
    const memory need = memory_of(in);
    fprintf(
        out, "family      %s (%s)\n", tr_lm_family_name(c->family), tr_lm_architecture(c->family));
    fprintf(out, "parameters  %zu in %d tensors, %s\n", in->layout.parameters, in->layout.count,
        tr_lm_dtype_name(c->dtype));
    fprintf(out, "layers      %d of hidden %d, MLP %d\n", c->layers, c->hidden, c->mlp);
    fprintf(out, "heads       %d, key and value %d, of %d each%s\n", c->heads, c->kv_heads,
        c->head_dim, c->qk_norm ? ", normed" : "");
    fprintf(out, "bias        %s%s%s%s\n", c->qkv_bias ? "q k v " : "", c->o_bias ? "o " : "",
        c->mlp_bias ? "MLP" : "", c->qkv_bias || c->o_bias || c->mlp_bias ? "" : "none");
    fprintf(out, "vocabulary  %d, head %s\n", c->vocab,
        c->tied ? "tied to the embedding" : "of its own");
    fprintf(out, "context     %d positions\n", c->context);
    put_rope(out, c);
    put_ids(out, c);
    put_files(out, in);
    fprintf(out, "memory      ");
    put_bytes(out, need.stored);
    fprintf(out, " as stored, ");
    put_bytes(out, need.fp32);
    fprintf(out, " in fp32, ");
    put_bytes(out, need.training);
    fprintf(out, " to train (AdamW: masters, gradients, moments), ");
    put_bytes(out, need.kv_token);
    fprintf(out, " of cache a token\n");
}

/* --- for programs --- */

/* Names on a disk need not be UTF-8; such a byte becomes '?'. */
static json_t *
json_name(const char *name)
{
    json_t *value = json_string(name);
    if (value != NULL) {
        return value;
    }
    char *copy = tr_strdup(name);
    for (char *c = copy; *c != '\0'; c++) {
        if ((unsigned char)*c >= 0x80) {
            *c = '?';
        }
    }
    value = json_string(copy);
    tr_free(copy);
    return value;
}

static json_t *
json_files(const info *in)
{
    json_t *files = json_array();
    for (int i = 0; i < in->source.file_count; i++) {
        const char *name = in->source.files[i];
        json_array_append_new(files, json_pack("{s:o, s:I}", "name", json_name(name), "bytes",
                                         (json_int_t)file_size(in, name)));
    }
    return files;
}

static json_t *
json_others(const info *in)
{
    json_t *others = json_array();
    for (int i = 0; i < in->other_count; i++) {
        json_array_append_new(others, json_name(in->others[i]));
    }
    return others;
}

static json_t *
json_config(const troupe_lm_config *c)
{
    json_t *stop = json_array();
    for (int i = 0; i < c->stop_count; i++) {
        json_array_append_new(stop, json_integer(c->stop_ids[i]));
    }
    json_t *rope = json_pack("{s:s, s:f, s:f, s:f, s:f, s:f}", "type",
        tr_lm_rope_name(c->rope.kind), "theta", c->rope.theta, "factor", c->rope.factor,
        "low_freq_factor", c->rope.low_freq_factor, "high_freq_factor", c->rope.high_freq_factor,
        "original_context", c->rope.original_context);
    json_t *sizes = json_pack("{s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i}", "layers", c->layers,
        "hidden", c->hidden, "mlp", c->mlp, "heads", c->heads, "kv_heads", c->kv_heads, "head_dim",
        c->head_dim, "vocab", c->vocab, "context", c->context);
    return json_pack("{s:s, s:s, s:s, s:o, s:b, s:b, s:b, s:b, s:b, s:o, s:i, s:o}", "family",
        tr_lm_family_name(c->family), "architecture", tr_lm_architecture(c->family), "dtype",
        tr_lm_dtype_name(c->dtype), "sizes", sizes, "tied", c->tied, "qkv_bias", c->qkv_bias,
        "o_bias", c->o_bias, "mlp_bias", c->mlp_bias, "qk_norm", c->qk_norm, "rope", rope, "bos",
        c->bos, "stop_ids", stop);
}

static void
print_json(const info *in, FILE *out)
{
    const memory need = memory_of(in);
    json_t *bytes = json_pack("{s:I, s:I, s:I, s:I}", "stored", (json_int_t)need.stored, "fp32",
        (json_int_t)need.fp32, "training", (json_int_t)need.training, "kv_token",
        (json_int_t)need.kv_token);
    json_t *root = json_pack("{s:s, s:o, s:o, s:I, s:i, s:o, s:o, s:b, s:b, s:b, s:b, s:o}",
        "schema", "troupe.model.info/1", "dir", json_name(in->dir), "config",
        json_config(&in->config), "parameters", (json_int_t)in->layout.parameters, "tensors",
        in->layout.count, "files", json_files(in), "ignored", json_others(in), "tokenizer",
        in->tokenizer, "chat_template", in->chat_template, "optimizer", in->optimizer, "manifest",
        in->manifest, "bytes", bytes);
    TR_ASSERT(root != NULL);
    (void)json_dumpf(root, out, JSON_INDENT(2) | JSON_REAL_PRECISION(15));
    fprintf(out, "\n");
    json_decref(root);
}

static int
exit_code(troupe_status status)
{
    return status == TROUPE_IO || status == TROUPE_NO_MEMORY ? 1 : 2;
}

int
tr_cli_model_info(const char *dir, bool json, FILE *out, FILE *err)
{
    troupe_error error = {0};
    info *in = tr_zalloc(1, sizeof *in);
    troupe_status status = info_init(in, dir, &error);
    if (status != TROUPE_OK) {
        fprintf(err, "troupe model info: %s\n", error.text);
    } else if (json) {
        print_json(in, out);
    } else {
        print_table(in, out);
    }
    info_fini(in);
    tr_free(in);
    return status == TROUPE_OK ? 0 : exit_code(status);
}

/* --- the command line --- */

static const troupe_option option_table[] = {{.name = "json",
                                                 .kind = TROUPE_OPTION_FLAG,
                                                 .fallback = "no",
                                                 .help = "one JSON object instead of a table"},
    {.name = NULL}};

static const troupe_options_spec spec = {.program = "model info",
    .synopsis = "DIR [--json]",
    .about = "What a Hugging Face model directory holds and how much memory it takes. Checks all\n"
             "headers against config.json; reads no weight.",
    .options = option_table,
    .positional_min = 1,
    .positional_max = 1};

int
troupe_cli_model_info(int argc, char **argv)
{
    troupe_options *options = NULL;
    troupe_error err = {0};
    if (troupe_options_parse(&spec, argc, argv, &options, &err) != TROUPE_OK) {
        (void)fprintf(stderr, "troupe model info: %s\n", err.text);
        return 2;
    }
    int code = 0;
    if (troupe_options_wants_help(options)) {
        troupe_options_help(&spec, stdout);
    } else {
        code = tr_cli_model_info(troupe_options_positional(options, 0),
            troupe_options_flag(options, "json"), stdout, stderr);
    }
    troupe_options_free(options);
    return code;
}
