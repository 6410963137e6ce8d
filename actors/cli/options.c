/* The one option parser of every program: see troupe/options.h. A value is checked where it enters,
 * so that the message can name the flag, variable or file line that it came from. */
#include <troupe/ext/base.h>
#include <troupe/options.h>

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    CONF_SIZE_MAX = 1 << 20,
    NAME_MAX_BYTES = 64
};

typedef struct option_value {
    char *text;
    double number;
    troupe_origin origin;
} option_value;

struct troupe_options {
    const troupe_options_spec *spec;
    option_value *values; /* one per table entry */
    int count;
    bool help;
    const char **positional;
    int positional_count;
};

static int
table_size(const troupe_option *table)
{
    int count = 0;
    while (table[count].name != NULL) {
        count++;
    }
    return count;
}

static int
find_option(const troupe_options *o, const char *name, size_t length)
{
    for (int i = 0; i < o->count; i++) {
        const char *candidate = o->spec->options[i].name;
        if (strlen(candidate) == length && memcmp(candidate, name, length) == 0) {
            return i;
        }
    }
    return -1;
}

static bool
is_choice(const char *choices, const char *text)
{
    size_t length = strlen(text);
    for (const char *p = choices; p != NULL && *p != '\0';) {
        const char *end = strchr(p, '|');
        size_t size = end != NULL ? (size_t)(end - p) : strlen(p);
        if (size == length && memcmp(p, text, size) == 0) {
            return true;
        }
        p = end != NULL ? end + 1 : NULL;
    }
    return false;
}

static bool
parse_number(const char *text, bool integer, double *out)
{
    char *end = NULL;
    errno = 0;
    if (text[0] == '\0' || isspace((unsigned char)text[0])) {
        return false;
    }
    double value = integer ? (double)strtoll(text, &end, 10) : strtod(text, &end);
    if (errno != 0 || *end != '\0' || !isfinite(value)) {
        return false;
    }
    *out = value;
    return true;
}

static bool
parse_duration(const char *text, double *out)
{
    char number[NAME_MAX_BYTES];
    size_t length = strlen(text);
    if (length == 0 || length >= sizeof number) {
        return false;
    }
    memcpy(number, text, length + 1);
    double unit = 1;
    switch (text[length - 1]) {
    case 's':
        unit = 1;
        break;
    case 'm':
        unit = 60;
        break;
    case 'h':
        unit = 3600;
        break;
    case 'd':
        unit = 86400;
        break;
    default:
        unit = 0;
        break;
    }
    if (unit > 0) {
        number[length - 1] = '\0';
    }
    if (!parse_number(number, false, out)) {
        return false;
    }
    *out *= unit > 0 ? unit : 1;
    return true;
}

static bool
parse_flag(const char *text, double *out)
{
    if (is_choice("yes|true|on|1", text)) {
        *out = 1;
        return true;
    }
    *out = 0;
    return is_choice("no|false|off|0", text);
}

static bool
parse_value(const troupe_option *option, const char *text, double *number)
{
    *number = 0;
    switch (option->kind) {
    case TROUPE_OPTION_FLAG:
        return parse_flag(text, number);
    case TROUPE_OPTION_TEXT:
        return true;
    case TROUPE_OPTION_INT:
        return parse_number(text, true, number);
    case TROUPE_OPTION_REAL:
        return parse_number(text, false, number);
    case TROUPE_OPTION_DURATION:
        return parse_duration(text, number);
    case TROUPE_OPTION_CHOICE:
    case TROUPE_OPTION_VALUE:
        return is_choice(option->choices, text);
    case TROUPE_OPTION_LIMIT:
        if (strcmp(text, "none") == 0) {
            *number = -1;
            return true;
        }
        return parse_number(text, true, number);
    }
    return false;
}

static const char *
expectation(const troupe_option *option)
{
    switch (option->kind) {
    case TROUPE_OPTION_FLAG:
        return "yes or no";
    case TROUPE_OPTION_TEXT:
        return "a text";
    case TROUPE_OPTION_INT:
        return "an integer";
    case TROUPE_OPTION_REAL:
        return "a number";
    case TROUPE_OPTION_DURATION:
        return "a time such as 90, 90s, 5m or 1.5h";
    case TROUPE_OPTION_LIMIT:
        return "an integer or none";
    case TROUPE_OPTION_CHOICE:
    case TROUPE_OPTION_VALUE:
        return option->choices;
    }
    return "";
}

/* Checks and stores `text` for option `index`; `where` says whence it came, for the message. */
static troupe_status
set_value(troupe_options *o, int index, const char *text, troupe_origin origin, const char *where,
    troupe_error *err)
{
    const troupe_option *option = &o->spec->options[index];
    option_value *value = &o->values[index];
    double number = 0;
    if (!parse_value(option, text, &number)) {
        return troupe_fail(err, TROUPE_BAD_INPUT, "--%s (%s): \"%s\" is not valid; give %s%s",
            option->name, where, text, option->kind == TROUPE_OPTION_CHOICE ? "one of " : "",
            expectation(option));
    }
    bool none = option->kind == TROUPE_OPTION_LIMIT && number < 0 && strcmp(text, "none") == 0;
    if (option->min < option->max && !none && (number < option->min || number > option->max)) {
        return troupe_fail(err, TROUPE_BAD_INPUT,
            "--%s (%s): %s is out of range; give a value from %g to %g", option->name, where, text,
            option->min, option->max);
    }
    tr_free(value->text);
    value->text = tr_strdup(text);
    value->number = number;
    value->origin = origin;
    return TROUPE_OK;
}

static troupe_status
unknown_option(const troupe_options *o, const char *name, const char *where, troupe_error *err)
{
    const char **names = tr_zalloc((size_t)o->count + 1, sizeof *names);
    for (int i = 0; i < o->count; i++) {
        names[i] = o->spec->options[i].name;
    }
    names[o->count] = "help";
    const char *nearest = tr_nearest(name, names, (size_t)o->count + 1);
    troupe_status status =
        nearest != NULL
            ? troupe_fail(err, TROUPE_BAD_INPUT, "%s: unknown option --%s; did you mean --%s?",
                  where, name, nearest)
            : troupe_fail(err, TROUPE_BAD_INPUT, "%s: unknown option --%s; %s --help lists them",
                  where, name, o->spec->program);
    tr_free((void *)names);
    return status;
}

/* One "--name[=value]" at argv[*at]; advances *at over a value in the next word. */
static troupe_status
parse_flag_word(troupe_options *o, int argc, char **argv, int *at, troupe_error *err)
{
    const char *name = argv[*at] + 2;
    const char *equals = strchr(name, '=');
    size_t length = equals != NULL ? (size_t)(equals - name) : strlen(name);
    if (length == 4 && memcmp(name, "help", 4) == 0) {
        o->help = true;
        return TROUPE_OK;
    }
    int index = find_option(o, name, length);
    if (index < 0) {
        char shown[NAME_MAX_BYTES];
        snprintf(shown, sizeof shown, "%.*s", (int)TR_MIN(length, sizeof shown - 1), name);
        return unknown_option(o, shown, "command line", err);
    }
    const troupe_option *option = &o->spec->options[index];
    const char *value = equals != NULL ? equals + 1 : NULL;
    char first[NAME_MAX_BYTES];
    if (value == NULL && option->kind == TROUPE_OPTION_FLAG) {
        value = "yes";
    } else if (value == NULL && option->kind == TROUPE_OPTION_VALUE) {
        snprintf(first, sizeof first, "%.*s", (int)strcspn(option->choices, "|"), option->choices);
        value = first;
    } else if (value == NULL) {
        if (*at + 1 >= argc) {
            return troupe_fail(err, TROUPE_BAD_INPUT, "--%s needs a value: give %s", option->name,
                expectation(option));
        }
        value = argv[++*at];
    }
    return set_value(o, index, value, TROUPE_ORIGIN_FLAG, "command line", err);
}

static troupe_status
parse_words(troupe_options *o, int argc, char **argv, troupe_error *err)
{
    bool ended = false;
    for (int i = 1; i < argc; i++) {
        const char *word = argv[i];
        if (!ended && strcmp(word, "--") == 0) {
            ended = true;
        } else if (!ended && word[0] == '-' && word[1] == '-') {
            troupe_status status = parse_flag_word(o, argc, argv, &i, err);
            if (status != TROUPE_OK) {
                return status;
            }
        } else if (!ended && word[0] == '-' && word[1] == 'h' && word[2] == '\0') {
            o->help = true;
        } else if (!ended && word[0] == '-' && word[1] != '\0') {
            return troupe_fail(err, TROUPE_BAD_INPUT,
                "command line: unknown option %s; %s --help lists them", word, o->spec->program);
        } else {
            o->positional[o->positional_count++] = word;
        }
    }
    if (!o->help && o->positional_count < o->spec->positional_min) {
        return troupe_fail(
            err, TROUPE_BAD_INPUT, "usage: %s %s", o->spec->program, o->spec->synopsis);
    }
    if (!o->help && o->positional_count > o->spec->positional_max) {
        return troupe_fail(err, TROUPE_BAD_INPUT, "unexpected argument \"%s\"; usage: %s %s",
            o->positional[o->spec->positional_max], o->spec->program, o->spec->synopsis);
    }
    return TROUPE_OK;
}

static troupe_status
parse_environment(troupe_options *o, troupe_error *err)
{
    for (int i = 0; i < o->count; i++) {
        char name[NAME_MAX_BYTES + 16];
        snprintf(name, sizeof name, "TROUPE_%s", o->spec->options[i].name);
        for (char *c = name; *c != '\0'; c++) {
            *c = *c == '-' ? '_' : (char)toupper((unsigned char)*c);
        }
        const char *value = getenv(name);
        if (value != NULL) {
            troupe_status status = set_value(o, i, value, TROUPE_ORIGIN_ENV, name, err);
            if (status != TROUPE_OK) {
                return status;
            }
        }
    }
    return TROUPE_OK;
}

static char *
trim(char *text)
{
    while (isspace((unsigned char)*text)) {
        text++;
    }
    char *end = text + strlen(text);
    while (end > text && isspace((unsigned char)end[-1])) {
        *--end = '\0';
    }
    return text;
}

/* One line of troupe.conf. `section` is "" before the first one. */
static troupe_status
parse_conf_line(troupe_options *o, char *line, char section[NAME_MAX_BYTES], const char *where,
    troupe_error *err)
{
    char *hash = strchr(line, '#');
    if (hash != NULL) {
        *hash = '\0';
    }
    line = trim(line);
    size_t length = strlen(line);
    if (length == 0) {
        return TROUPE_OK;
    }
    if (line[0] == '[' && line[length - 1] == ']' && length < NAME_MAX_BYTES) {
        snprintf(section, NAME_MAX_BYTES, "%.*s", (int)(length - 2), line + 1);
        return TROUPE_OK;
    }
    char *equals = strchr(line, '=');
    if (equals == NULL) {
        return troupe_fail(
            err, TROUPE_BAD_INPUT, "%s: expected name = value, got \"%s\"", where, line);
    }
    *equals = '\0';
    char *name = trim(line);
    char *value = trim(equals + 1);
    if (section[0] != '\0' && strcmp(section, o->spec->program) != 0) {
        return TROUPE_OK;
    }
    int index = find_option(o, name, strlen(name));
    if (index < 0) {
        return section[0] == '\0' ? TROUPE_OK : unknown_option(o, name, where, err);
    }
    return set_value(o, index, value, TROUPE_ORIGIN_CONF, where, err);
}

static troupe_status
parse_conf(troupe_options *o, const char *path, troupe_error *err)
{
    FILE *file = fopen(path, "r");
    if (file == NULL) {
        return TROUPE_OK; /* the file is optional */
    }
    char *line = NULL;
    size_t capacity = 0;
    char section[NAME_MAX_BYTES] = "";
    troupe_status status = TROUPE_OK;
    long total = 0;
    for (int number = 1; status == TROUPE_OK; number++) {
        ssize_t size = getline(&line, &capacity, file);
        if (size < 0) {
            break;
        }
        total += size;
        char where[NAME_MAX_BYTES + 32];
        snprintf(where, sizeof where, "%s line %d", path, number);
        if (total > CONF_SIZE_MAX) {
            status = troupe_fail(
                err, TROUPE_BAD_INPUT, "%s: larger than 1 MiB; that is no configuration", path);
            break;
        }
        status = parse_conf_line(o, line, section, where, err);
    }
    free(line); /* from getline */
    fclose(file);
    return status;
}

troupe_status
troupe_options_parse(
    const troupe_options_spec *spec, int argc, char **argv, troupe_options **out, troupe_error *err)
{
    troupe_options *o = tr_zalloc(1, sizeof *o);
    o->spec = spec;
    o->count = table_size(spec->options);
    o->values = tr_zalloc((size_t)o->count + 1, sizeof *o->values);
    o->positional = tr_zalloc((size_t)argc + 1, sizeof *o->positional);
    troupe_status status = TROUPE_OK;
    for (int i = 0; i < o->count && status == TROUPE_OK; i++) {
        if (spec->options[i].fallback != NULL) {
            status =
                set_value(o, i, spec->options[i].fallback, TROUPE_ORIGIN_DEFAULT, "default", err);
            TR_ASSERT(status == TROUPE_OK);
        }
    }
    if (status == TROUPE_OK) {
        status = parse_conf(o, "troupe.conf", err);
    }
    if (status == TROUPE_OK) {
        status = parse_environment(o, err);
    }
    if (status == TROUPE_OK) {
        status = parse_words(o, argc, argv, err);
    }
    if (status != TROUPE_OK) {
        troupe_options_free(o);
        return status;
    }
    *out = o;
    return TROUPE_OK;
}

void
troupe_options_free(troupe_options *o)
{
    if (o == NULL) {
        return;
    }
    for (int i = 0; i < o->count; i++) {
        tr_free(o->values[i].text);
    }
    tr_free(o->values);
    tr_free((void *)o->positional);
    tr_free(o);
}

bool
troupe_options_wants_help(const troupe_options *o)
{
    return o->help;
}

void
troupe_options_help(const troupe_options_spec *spec, FILE *out)
{
    fprintf(out, "usage: %s %s\n\n%s\n\noptions:\n", spec->program, spec->synopsis, spec->about);
    for (const troupe_option *option = spec->options; option->name != NULL; option++) {
        if (option->help == NULL) {
            continue;
        }
        char left[NAME_MAX_BYTES * 2];
        const char *meta = option->choices != NULL ? option->choices : "";
        const char *open = option->kind == TROUPE_OPTION_VALUE ? "[=" : meta[0] != '\0' ? " " : "";
        snprintf(left, sizeof left, "--%s%s%s%s", option->name, open, meta,
            option->kind == TROUPE_OPTION_VALUE ? "]" : "");
        fprintf(out, "  %-28s%s%s", left,
            strlen(left) >= 28 ? "\n                              " : "", option->help);
        if (option->fallback != NULL && option->kind != TROUPE_OPTION_FLAG) {
            fprintf(out, " (%s)", option->fallback);
        }
        fputc('\n', out);
    }
    fprintf(out, "  %-28s%s\n", "--help", "this text");
}

static const option_value *
value_of(const troupe_options *o, const char *name)
{
    int index = find_option(o, name, strlen(name));
    TR_ASSERT(index >= 0);
    return &o->values[index];
}

bool
troupe_options_is_set(const troupe_options *o, const char *name)
{
    return value_of(o, name)->origin != TROUPE_ORIGIN_UNSET;
}

troupe_origin
troupe_options_origin(const troupe_options *o, const char *name)
{
    return value_of(o, name)->origin;
}

const char *
troupe_origin_name(troupe_origin origin)
{
    switch (origin) {
    case TROUPE_ORIGIN_UNSET:
        return "unset";
    case TROUPE_ORIGIN_DEFAULT:
        return "default";
    case TROUPE_ORIGIN_CONF:
        return "troupe.conf";
    case TROUPE_ORIGIN_ENV:
        return "environment";
    case TROUPE_ORIGIN_FLAG:
        return "flag";
    }
    return "";
}

bool
troupe_options_flag(const troupe_options *o, const char *name)
{
    return value_of(o, name)->number > 0;
}

const char *
troupe_options_text(const troupe_options *o, const char *name)
{
    return value_of(o, name)->text;
}

int64_t
troupe_options_int(const troupe_options *o, const char *name)
{
    return (int64_t)value_of(o, name)->number;
}

double
troupe_options_real(const troupe_options *o, const char *name)
{
    return value_of(o, name)->number;
}

int
troupe_options_positional_count(const troupe_options *o)
{
    return o->positional_count;
}

const char *
troupe_options_positional(const troupe_options *o, int index)
{
    TR_ASSERT(index >= 0 && index < o->positional_count);
    return o->positional[index];
}

troupe_status
troupe_options_default(troupe_options *o, const char *name, const char *value, troupe_error *err)
{
    int index = find_option(o, name, strlen(name));
    TR_ASSERT(index >= 0);
    if (o->values[index].origin > TROUPE_ORIGIN_DEFAULT) {
        return TROUPE_OK;
    }
    return set_value(o, index, value, TROUPE_ORIGIN_DEFAULT, "default", err);
}
