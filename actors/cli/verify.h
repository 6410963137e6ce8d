/* `troupe model verify`: a model's numbers against those of another implementation. */
#ifndef TR_CLI_VERIFY_H
#define TR_CLI_VERIFY_H

#include "safetensors.h"

#include <troupe/lm.h>
#include <troupe/trainer.h>

/* argv[0] is the command's name. Returns the exit code: 0 all within tolerance, 1 some not, 2 usage
 * or bad input. Prints to stdout, errors to stderr. */
int troupe_cli_verify(int argc, char **argv);

/* What one run of the model gives for the ids of an expected file. Sequences lie one behind the
 * other without their padding; row r of sequence b is starts[b] + r. */
struct tr_verify_input {
    int sequences, width; /* of input_ids */
    int32_t *ids;         /* [sequences, width] */
    int *lengths;         /* unmasked, at the left */
    int *starts;
    int rows;
};

struct tr_verify_settings {
    troupe_trainer_options trainer;
    int steps;
    bool cast; /* the other implementation cast the whole module to bfloat16 before it computed */
};

struct tr_verify_output {
    float *logits;   /* [rows, V] */
    float *logprobs; /* [rows], of the next id; the last row of a sequence has none */
    float *entropy;  /* [rows] */
    float loss, grad_norm;
    float *grad;     /* flat */
    float *losses;   /* [steps], before each update */
    float *params;   /* flat, after the last */
    int32_t *greedy; /* [greedy_count] prompt and continuation */
    int greedy_count;
};

enum {
    TR_VERIFY_GREEDY_PROMPT = 7
};

/* Runs the model. `want_steps` and `greedy_count` 0 leave those parts out. The caller frees with
 * tr_verify_output_fini. */
troupe_status tr_verify_compute(const troupe_lm *lm, troupe_device *device, const float *params,
    const struct tr_verify_input *input, const struct tr_verify_settings *settings,
    struct tr_verify_output *out, troupe_error *err) TROUPE_MUST_USE;
void tr_verify_output_fini(struct tr_verify_output *out);

/* One comparison: what is compared, with what, and how it went. */
struct tr_verify_run {
    troupe_lm *lm;
    const tr_st_file *file;
    const struct tr_verify_input *input;
    const struct tr_verify_settings *settings;
    struct tr_verify_output *out;
    double tolerance, tolerance_steps;
    bool each;
    int failed, compared;
};

/* A matrix of I32 of the expected file, to be freed with tr_free. BAD_INPUT names file and
 * tensor. */
troupe_status tr_verify_read_ids(const tr_st_file *file, const char *name, int32_t **ids, int *rows,
    int *columns, troupe_error *err) TROUPE_MUST_USE;

/* Compares what the file holds, prints a line for each quantity and counts in run. BAD_INPUT for a
 * tensor that cannot be of this model. */
troupe_status tr_verify_compare(struct tr_verify_run *run, troupe_error *err) TROUPE_MUST_USE;

#endif
