/* The same in C, with jansson for the JSON. See score.py for what the lines are. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The share of the answer's characters, its end included, that are right. */
static double
share(const char *text, const char *answer)
{
    size_t length = strlen(answer), right = strlen(text) == length;
    for (size_t i = 0; i < length && text[i] != '\0'; i++) {
        right += text[i] == answer[i];
    }
    return (double)right / (double)(length + 1);
}

static json_t *
reply_to(const json_t *sample)
{
    const char *text = json_string_value(json_object_get(sample, "text"));
    const char *answer = json_string_value(json_object_get(sample, "answer"));
    json_t *id = json_object_get(sample, "id");
    if (text == NULL || answer == NULL) {
        return json_pack("{s:O, s:s}", "id", id, "error", "the row has no answer");
    }
    return json_pack("{s:O, s:f}", "id", id, "reward", share(text, answer));
}

int
main(void)
{
    char *line = NULL;
    size_t capacity = 0;
    while (getline(&line, &capacity, stdin) > 0) {
        json_error_t error;
        json_t *sample = json_loads(line, 0, &error);
        if (sample == NULL) {
            fprintf(stderr, "score: %s\n", error.text);
            return 1; /* the runtime starts another one, and tells these lines */
        }
        json_t *reply = reply_to(sample);
        json_dumpf(reply, stdout, JSON_COMPACT);
        putchar('\n');
        fflush(stdout);
        json_decref(reply);
        json_decref(sample);
    }
    free(line);
    return 0;
}
