/* Objects and samples: every rule of the handles, and bytes that were tampered with. */
#include "check.h"
#include "store/sample.h"

#include <troupe/ext/base.h>

/* --- objects -------------------------------------------------------------------------------- */

static void
an_object_is_written_sealed_read_and_returned(void **state)
{
    (void)state;
    troupe_store *store = troupe_store_new(1000);
    troupe_object object;
    void *bytes = NULL;
    const void *read = NULL;
    size_t size = 0;
    assert_int_equal(troupe_object_create(store, 100, &object, &bytes), TROUPE_OK);
    assert_int_equal((uintptr_t)bytes % 64, 0);
    memset(bytes, 7, 100);
    assert_int_equal(troupe_object_hold(store, object, &read, &size), TROUPE_INVALID);
    assert_int_equal(troupe_object_seal(store, object), TROUPE_OK);
    assert_int_equal(troupe_object_seal(store, object), TROUPE_INVALID);
    assert_int_equal(troupe_object_hold(store, object, &read, &size), TROUPE_OK);
    assert_ptr_equal(read, bytes);
    assert_int_equal(size, 100);
    assert_int_equal(troupe_object_release(store, object), TROUPE_OK);
    assert_int_equal(troupe_object_hold(store, object, NULL, NULL), TROUPE_OK);
    assert_int_equal(troupe_object_release(store, object), TROUPE_OK);
    assert_int_equal(troupe_object_release(store, object), TROUPE_OK);
    assert_int_equal(troupe_object_release(store, object), TROUPE_LOST);
    assert_int_equal(troupe_object_hold(store, object, &read, &size), TROUPE_LOST);
    assert_int_equal(troupe_object_seal(store, object), TROUPE_LOST);
    troupe_store_stats stats;
    troupe_store_get_stats(store, &stats);
    assert_int_equal(stats.objects, 0);
    assert_int_equal(stats.bytes, 0);
    assert_int_equal(stats.bytes_high, 100);
    assert_int_equal(stats.created, 1);
    troupe_store_free(store);
}

static void
a_stale_handle_never_reaches_the_next_object(void **state)
{
    (void)state;
    troupe_store *store = troupe_store_new(1000);
    troupe_object old, object;
    void *bytes = NULL;
    assert_int_equal(troupe_object_create(store, 10, &old, &bytes), TROUPE_OK);
    assert_int_equal(troupe_object_release(store, old), TROUPE_OK); /* given up, unsealed */
    assert_int_equal(troupe_object_create(store, 10, &object, &bytes), TROUPE_OK);
    assert_int_equal(object.index, old.index);
    assert_true(object.generation != old.generation);
    assert_int_equal(troupe_object_release(store, old), TROUPE_LOST);
    assert_int_equal(troupe_object_seal(store, object), TROUPE_OK);
    assert_int_equal(troupe_object_hold(store, old, NULL, NULL), TROUPE_LOST);
    assert_int_equal(
        troupe_object_hold(store, (troupe_object){.index = 999, .generation = 1}, NULL, NULL),
        TROUPE_LOST);
    assert_int_equal(troupe_object_hold(store, (troupe_object){0}, NULL, NULL), TROUPE_LOST);
    assert_int_equal(troupe_object_release(store, object), TROUPE_OK);
    troupe_store_free(store);
}

static void
the_budget_blocks_and_frees(void **state)
{
    (void)state;
    troupe_store *store = troupe_store_new(1000);
    troupe_object a, b;
    void *bytes = NULL;
    assert_int_equal(troupe_object_create(store, 1001, &a, &bytes), TROUPE_NO_SPACE);
    assert_int_equal(troupe_object_create(store, 0, &a, &bytes), TROUPE_INVALID);
    assert_int_equal(troupe_object_create(store, 600, &a, &bytes), TROUPE_OK);
    assert_int_equal(troupe_object_create(store, 401, &b, &bytes), TROUPE_AGAIN);
    assert_int_equal(troupe_object_create(store, 400, &b, &bytes), TROUPE_OK);
    assert_int_equal(troupe_object_release(store, a), TROUPE_OK);
    assert_int_equal(troupe_object_create(store, 600, &a, &bytes), TROUPE_OK);
    troupe_store_stats stats;
    troupe_store_get_stats(store, &stats);
    assert_int_equal(stats.bytes, 1000);
    assert_int_equal(stats.objects, 2);
    troupe_store_free(store); /* what is left goes with it */
}

static void
a_handle_is_a_word_and_back(void **state)
{
    (void)state;
    troupe_object object = {.index = 7, .generation = 0xfffffffe};
    troupe_object back = troupe_object_of_word(troupe_object_word(object));
    assert_int_equal(back.index, object.index);
    assert_int_equal(back.generation, object.generation);
    assert_true(troupe_object_word((troupe_object){0}) == 0);
}

static void
sizes_of_tensors_are_checked(void **state)
{
    (void)state;
    size_t bytes = 0;
    troupe_tensor tensor = {.type = TROUPE_TENSOR_F64, .rank = 2, .shape = {3, 5}};
    assert_int_equal(troupe_tensor_bytes(&tensor, &bytes), TROUPE_OK);
    assert_int_equal(bytes, 120);
    tensor.rank = 0;
    assert_int_equal(troupe_tensor_bytes(&tensor, &bytes), TROUPE_OK);
    assert_int_equal(bytes, 8);
    tensor.rank = 5;
    assert_int_equal(troupe_tensor_bytes(&tensor, &bytes), TROUPE_INVALID);
    tensor = (troupe_tensor){.type = TROUPE_TENSOR_U8, .rank = 1, .shape = {-1}};
    assert_int_equal(troupe_tensor_bytes(&tensor, &bytes), TROUPE_INVALID);
    tensor = (troupe_tensor){
        .type = TROUPE_TENSOR_U8, .rank = 4, .shape = {1 << 16, 1 << 16, 1 << 16, 1 << 16}};
    assert_int_equal(troupe_tensor_bytes(&tensor, &bytes), TROUPE_INVALID);
    tensor =
        (troupe_tensor){.type = TROUPE_TENSOR_U8, .rank = 3, .shape = {1 << 16, 1 << 16, 1 << 9}};
    assert_int_equal(troupe_tensor_bytes(&tensor, &bytes), TROUPE_INVALID); /* 2^41 */
    tensor = (troupe_tensor){.type = (troupe_tensor_type)9, .rank = 0};
    assert_int_equal(troupe_tensor_bytes(&tensor, &bytes), TROUPE_INVALID);
}

/* --- samples -------------------------------------------------------------------------------- */

static const int32_t tokens[5] = {5, 6, 7, 8, 2};
static const float logprobs[5] = {-0.1F, -0.2F, -0.3F, -0.4F, -0.5F};
static const uint8_t flags[3] = {1, 0, 1};
static const troupe_span spans[2] = {{.unit = 0, .version = 3}, {.unit = 2, .version = 4}};
static const troupe_named_tensor tensors[3] = {
    {.name = "tokens",
        .tensor = {.type = TROUPE_TENSOR_I32, .rank = 1, .shape = {5}, .data = tokens}},
    {.name = "logprobs",
        .tensor = {.type = TROUPE_TENSOR_F32, .rank = 1, .shape = {5}, .data = logprobs}},
    {.name = "flags",
        .tensor = {.type = TROUPE_TENSOR_U8, .rank = 2, .shape = {3, 1}, .data = flags}},
};

static troupe_sample_spec
good_spec(void)
{
    return (troupe_sample_spec){.tensors = tensors,
        .tensor_count = 3,
        .units = 5,
        .spans = spans,
        .span_count = 2,
        .finish = "stop"};
}

static void
a_sample_gives_back_what_it_was_made_of(void **state)
{
    (void)state;
    troupe_store *store = troupe_store_new(1 << 20);
    troupe_sample_spec spec = good_spec();
    troupe_object object;
    troupe_sample *sample = NULL;
    troupe_tensor tensor;
    uint64_t digest = 0;
    size_t count = 0;
    assert_int_equal(troupe_sample_seal(store, &spec, &object, &digest, NULL), TROUPE_OK);
    assert_int_equal(troupe_sample_open(store, object, &sample, NULL), TROUPE_OK);
    assert_true(troupe_sample_find(sample, "logprobs", TROUPE_TENSOR_F32, &tensor));
    assert_int_equal(tensor.rank, 1);
    assert_int_equal(tensor.shape[0], 5);
    assert_int_equal((uintptr_t)tensor.data % 64, 0);
    assert_memory_equal(tensor.data, logprobs, sizeof logprobs);
    assert_false(troupe_sample_find(sample, "logprobs", TROUPE_TENSOR_F64, &tensor));
    assert_false(troupe_sample_find(sample, "rewards", TROUPE_TENSOR_F32, &tensor));
    assert_int_equal(troupe_sample_tensor_count(sample), 3);
    assert_string_equal(troupe_sample_at(sample, 2).name, "flags");
    assert_memory_equal(troupe_sample_at(sample, 2).tensor.data, flags, 3);
    const troupe_span *read = troupe_sample_spans(sample, &count);
    assert_int_equal(count, 2);
    assert_memory_equal(read, spans, sizeof spans);
    assert_int_equal(troupe_sample_units(sample), 5);
    assert_string_equal(troupe_sample_finish(sample), "stop");
    assert_true(troupe_sample_digest(sample) == digest);
    assert_int_equal(troupe_sample_verify(sample, digest, NULL), TROUPE_OK);
    assert_int_equal(troupe_sample_verify(sample, digest + 1, NULL), TROUPE_CORRUPT);
    /* The sample has a hold of its own. */
    assert_int_equal(troupe_object_release(store, object), TROUPE_OK);
    assert_memory_equal(troupe_sample_at(sample, 0).tensor.data, tokens, sizeof tokens);
    troupe_sample_close(sample);
    troupe_store_stats stats;
    troupe_store_get_stats(store, &stats);
    assert_int_equal(stats.objects, 0);
    troupe_store_free(store);
}

/* The definition, written out again with nothing but the hash. */
static uint64_t
digest_by_hand(void)
{
    static const size_t sizes[3] = {sizeof tokens, sizeof logprobs, sizeof flags};
    uint64_t digest = 0, units = 5;
    char finish[16] = "stop";
    for (int i = 0; i < 3; i++) {
        uint8_t head[72] = {0};
        uint32_t type = (uint32_t)tensors[i].tensor.type, rank = (uint32_t)tensors[i].tensor.rank;
        memcpy(head, tensors[i].name, strlen(tensors[i].name));
        memcpy(head + 32, &type, 4);
        memcpy(head + 36, &rank, 4);
        memcpy(head + 40, tensors[i].tensor.shape, rank * 8);
        digest = tr_xxh3(head, sizeof head, digest);
        digest = tr_xxh3(tensors[i].tensor.data, sizes[i], digest);
    }
    digest = tr_xxh3(&units, 8, digest);
    digest = tr_xxh3(spans, sizeof spans, digest);
    return tr_xxh3(finish, sizeof finish, digest);
}

static void
the_digest_is_the_defined_one(void **state)
{
    (void)state;
    troupe_store *store = troupe_store_new(1 << 20);
    troupe_sample_spec spec = good_spec();
    troupe_object object;
    uint64_t digest = 0;
    assert_int_equal(troupe_sample_seal(store, &spec, &object, &digest, NULL), TROUPE_OK);
    assert_true(digest == digest_by_hand());
    troupe_store_free(store);
}

/* Whatever bit of the object is turned over, opening or verifying finds it. */
static void
every_flipped_bit_of_a_sample_is_found(void **state)
{
    (void)state;
    troupe_store *store = troupe_store_new(1 << 20);
    troupe_sample_spec spec = good_spec();
    troupe_object object;
    uint64_t digest = 0;
    const void *bytes = NULL;
    size_t size = 0;
    assert_int_equal(troupe_sample_seal(store, &spec, &object, &digest, NULL), TROUPE_OK);
    assert_int_equal(troupe_object_hold(store, object, &bytes, &size), TROUPE_OK);
    uint8_t *copy = tr_alloc(size);
    memcpy(copy, bytes, size);
    for (size_t bit = 0; bit < size * 8; bit++) {
        copy[bit / 8] ^= (uint8_t)(1u << (bit % 8));
        troupe_sample *sample = NULL;
        troupe_status status = troupe_sample_parse(copy, size, &sample, NULL);
        if (status == TROUPE_OK) {
            status = troupe_sample_verify(sample, digest, NULL);
            troupe_sample_close(sample);
        }
        if (status != TROUPE_CORRUPT) {
            fail_msg("bit %zu of byte %zu was flipped and not found", bit % 8, bit / 8);
        }
        copy[bit / 8] ^= (uint8_t)(1u << (bit % 8));
    }
    for (size_t cut = 0; cut < size; cut++) {
        troupe_sample *sample = NULL;
        uint8_t *part = tr_alloc(cut);
        memcpy(part, copy, cut);
        assert_int_equal(troupe_sample_parse(part, cut, &sample, NULL), TROUPE_CORRUPT);
        tr_free(part);
    }
    tr_free(copy);
    troupe_store_free(store);
}

static void
a_spec_that_makes_no_sense_is_refused_by_name(void **state)
{
    (void)state;
    troupe_store *store = troupe_store_new(1 << 20);
    static const troupe_span late[1] = {{.unit = 1, .version = 3}};
    static const troupe_span back[2] = {{.unit = 0, .version = 3}, {.unit = 2, .version = 2}};
    static const troupe_span same[2] = {{.unit = 0, .version = 3}, {.unit = 0, .version = 4}};
    static const troupe_span beyond[2] = {{.unit = 0, .version = 3}, {.unit = 5, .version = 4}};
    troupe_named_tensor twice[2] = {tensors[0], tensors[0]};
    troupe_named_tensor unnamed[1] = {tensors[0]};
    unnamed[0].name = "";
    troupe_named_tensor shape[1] = {tensors[0]};
    shape[0].tensor.shape[0] = -5;
    troupe_sample_spec specs[9];
    for (size_t i = 0; i < TR_COUNT(specs); i++) {
        specs[i] = good_spec();
    }
    const char *words[9] = {
        "spans", "spans", "spans", "spans", "two tensors", "name", "shape", "finish", "finish"};
    specs[0].spans = late;
    specs[0].span_count = 1;
    specs[1].spans = back;
    specs[2].spans = same;
    specs[3].spans = beyond;
    specs[4].tensors = twice;
    specs[4].tensor_count = 2;
    specs[5].tensors = unnamed;
    specs[5].tensor_count = 1;
    specs[6].tensors = shape;
    specs[6].tensor_count = 1;
    specs[7].finish = "";
    specs[8].finish = "a reason that is too long";
    for (size_t i = 0; i < TR_COUNT(specs); i++) {
        troupe_error err = {.status = TROUPE_OK, .text = ""};
        troupe_object object;
        assert_int_equal(troupe_sample_seal(store, &specs[i], &object, NULL, &err), TROUPE_INVALID);
        if (strstr(err.text, words[i]) == NULL) {
            fail_msg("case %zu: \"%s\" does not name %s", i, err.text, words[i]);
        }
    }
    troupe_store_stats stats;
    troupe_store_get_stats(store, &stats);
    assert_int_equal(stats.created, 0);
    troupe_store_free(store);
}

static void
an_empty_sample_and_empty_tensors_are_samples(void **state)
{
    (void)state;
    troupe_store *store = troupe_store_new(1 << 20);
    troupe_named_tensor none = {
        .name = "none", .tensor = {.type = TROUPE_TENSOR_F32, .rank = 1, .shape = {0}}};
    troupe_sample_spec spec = {.tensors = &none, .tensor_count = 1, .finish = "abort"};
    troupe_object object;
    troupe_sample *sample = NULL;
    uint64_t digest = 0;
    assert_int_equal(troupe_sample_seal(store, &spec, &object, &digest, NULL), TROUPE_OK);
    assert_int_equal(troupe_sample_open(store, object, &sample, NULL), TROUPE_OK);
    assert_int_equal(troupe_sample_verify(sample, digest, NULL), TROUPE_OK);
    troupe_sample_close(sample);
    /* No room: the status of the store, and nothing is left. */
    troupe_store *small = troupe_store_new(100);
    spec = good_spec();
    assert_int_equal(troupe_sample_seal(small, &spec, &object, NULL, NULL), TROUPE_NO_SPACE);
    troupe_store_free(small);
    troupe_store_free(store);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_object_is_written_sealed_read_and_returned),
        cmocka_unit_test(a_stale_handle_never_reaches_the_next_object),
        cmocka_unit_test(the_budget_blocks_and_frees),
        cmocka_unit_test(a_handle_is_a_word_and_back),
        cmocka_unit_test(sizes_of_tensors_are_checked),
        cmocka_unit_test(a_sample_gives_back_what_it_was_made_of),
        cmocka_unit_test(the_digest_is_the_defined_one),
        cmocka_unit_test(every_flipped_bit_of_a_sample_is_found),
        cmocka_unit_test(a_spec_that_makes_no_sense_is_refused_by_name),
        cmocka_unit_test(an_empty_sample_and_empty_tensors_are_samples),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
