/* A sample: one trajectory as one sealed object. It holds named tensors, each 64-byte aligned, the
 * version spans over its unit axis (tokens, or denoising steps) and how it finished. Any thread. */
#ifndef TROUPE_SAMPLE_H
#define TROUPE_SAMPLE_H

#include <troupe/object.h>
#include <troupe/span.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

enum {
    TROUPE_SAMPLE_TENSORS_MAX = 32,
    TROUPE_SAMPLE_NAME_MAX = 31,  /* bytes of a tensor's name */
    TROUPE_SAMPLE_FINISH_MAX = 15 /* bytes of a finish reason */
};

typedef struct troupe_named_tensor {
    const char *name;
    troupe_tensor tensor;
} troupe_named_tensor;

/* What a sample is made of; everything is borrowed during the call only. */
typedef struct troupe_sample_spec {
    const troupe_named_tensor *tensors; /* distinct, non-empty names */
    size_t tensor_count;
    uint64_t units; /* length of the unit axis */
    const troupe_span *spans;
    size_t span_count;  /* 0 exactly when units is 0 */
    const char *finish; /* "stop", "length", ...; not empty */
} troupe_sample_spec;

/* Makes and seals the object; the hold is the caller's. *digest (may be NULL) is XXH3 over the
 * names, types, shapes and bytes of the tensors, the units, the spans and the finish reason.
 * INVALID names the part of the spec that is wrong; AGAIN and NO_SPACE as troupe_object_create. */
troupe_status troupe_sample_seal(troupe_store *store, const troupe_sample_spec *spec,
    troupe_object *object, uint64_t *digest, troupe_error *err) TROUPE_MUST_USE;

typedef struct troupe_sample troupe_sample;

/* Opens a sample for reading, with a hold of its own; the structure is checked, the digest is not.
 * CORRUPT names what does not parse; LOST, INVALID as troupe_object_hold. */
troupe_status troupe_sample_open(troupe_store *store, troupe_object object, troupe_sample **sample,
    troupe_error *err) TROUPE_MUST_USE;
/* The same over a byte range that the caller keeps alive; 8-byte aligned. */
troupe_status troupe_sample_parse(
    const void *bytes, size_t size, troupe_sample **sample, troupe_error *err) TROUPE_MUST_USE;
/* Releases the hold; pointers from the sample end here. NULL is allowed. */
void troupe_sample_close(troupe_sample *sample);

/* The sample whose object is argument `index` of a received message; it is closed with the message.
 * NULL, and a bad argument for the message (see troupe_arg_i64), when it cannot be opened. */
const troupe_sample *troupe_arg_sample(troupe_call *call, int index);

size_t troupe_sample_tensor_count(const troupe_sample *sample);
/* The i-th tensor and its name, in the order of the spec. */
troupe_named_tensor troupe_sample_at(const troupe_sample *sample, size_t index);
/* Finds a tensor by name and type; false when there is none. Its bytes are those of the object. */
bool troupe_sample_find(
    const troupe_sample *sample, const char *name, troupe_tensor_type type, troupe_tensor *tensor);
uint64_t troupe_sample_units(const troupe_sample *sample);
const troupe_span *troupe_sample_spans(const troupe_sample *sample, size_t *count);
const char *troupe_sample_finish(const troupe_sample *sample);
/* The digest that was recorded at the seal. */
uint64_t troupe_sample_digest(const troupe_sample *sample);
/* Computes the digest again and compares it with the recorded one and with `expected` (of the
 * journal). CORRUPT when any differs. */
troupe_status troupe_sample_verify(
    const troupe_sample *sample, uint64_t expected, troupe_error *err) TROUPE_MUST_USE;

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif
