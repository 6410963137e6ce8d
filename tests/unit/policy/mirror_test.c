/* Reading a mirror: a good one is taken up whole, and of one that is not, nothing. */
#include "policy.h"
#include "trainer_support.h"

#include <troupe/ext/host.h>
#include <troupe/ext/sys.h>

#include <stdlib.h>
#include <string.h>

enum {
    STEP = 5,
    HEADER = 64
};

/* As it lies in the store. */
struct mirror {
    char magic[8];
    uint32_t format;
    uint32_t text_bytes;
    uint64_t step;
    uint64_t floats;
    uint64_t digest;
    uint64_t zero[3];
};

struct world {
    struct fixture model;
    tr_policy policy;
    troupe_store *store;
    tr_directory *directory;
    troupe_link *link;
    tr_host *host;
    troupe_ctx *ctx;
    uint64_t digest; /* of the mirror made last */
};

static struct world world;
static const troupe_class type = {.name = "policy"};

static int
setup(void **state)
{
    (void)state;
    const troupe_lm_config config = small_config();
    const troupe_trainer_options options = default_options();
    troupe_ref ref;
    world = (struct world){.store = troupe_store_new(16 << 20),
        .directory = tr_directory_new(),
        .link = troupe_link_local()};
    fixture_open(&world.model, &config, config.vocab, 1);
    tr_host_options host = {.sys = troupe_sys_posix(),
        .link = world.link,
        .directory = world.directory,
        .store = world.store,
        .epoch = 1};
    tr_spawn spawn = {.type = &type, .role = TR_NO_ROLE};
    assert_int_equal(tr_host_new(&host, &world.host, NULL), TROUPE_OK);
    assert_int_equal(tr_host_spawn(world.host, &spawn, &ref, NULL), TROUPE_OK);
    world.ctx = tr_host_actor(world.host, ref);
    world.policy = (tr_policy){.lm = world.model.lm,
        .trainer = open_trainer(&world.model, &options),
        .config = json_pack("{s:i}", "seed", 1)};
    return 0;
}

static int
teardown(void **state)
{
    (void)state;
    tr_host_free(world.host);
    world.link->free(world.link);
    tr_directory_free(world.directory);
    troupe_store_stats stats;
    troupe_store_get_stats(world.store, &stats);
    assert_int_equal(stats.objects, 0);
    troupe_store_free(world.store);
    troupe_trainer_free(world.policy.trainer);
    json_decref(world.policy.config);
    tr_buf_fini(&world.policy.line);
    fixture_close(&world.model);
    return 0;
}

static size_t
floats(void)
{
    return troupe_lm_get_layout(world.model.lm)->floats;
}

static size_t
text_size(const char *text)
{
    return (strlen(text) + HEADER - 1) / HEADER * HEADER;
}

/* The bytes of a mirror of STEP; the arrays are a ramp. */
static char *
make_bytes(size_t *size)
{
    tr_policy_state what = {.step = STEP,
        .checkpointed = 3,
        .offsets = {.metrics = 100, .samples = 200},
        .counts = {.trained_samples = 77},
        .line = tr_strdup("{}")};
    char *text = tr_policy_state_print(&world.policy, &what);
    tr_policy_state_fini(&what);
    const size_t at = HEADER + text_size(text);
    *size = at + 3 * floats() * sizeof(float);
    char *bytes = tr_zalloc(1, *size);
    memcpy(bytes + HEADER, text, strlen(text));
    for (size_t i = 0; i < 3 * floats(); i++) {
        const float value = (float)(i + 1);
        memcpy(bytes + at + i * sizeof value, &value, sizeof value);
    }
    world.digest = tr_xxh3(bytes + HEADER, *size - HEADER, 0);
    struct mirror header = {.magic = {'T', 'R', 'M', 'I', 'R', 'R', 'O', 'R'},
        .format = 1,
        .text_bytes = (uint32_t)strlen(text),
        .step = STEP,
        .floats = floats(),
        .digest = world.digest};
    memcpy(bytes, &header, sizeof header);
    free(text); /* from jansson */
    return bytes;
}

/* As an object that nobody but the test holds, and lets go of afterwards. */
static troupe_status
restore(const char *bytes, size_t size, uint64_t digest, int64_t step, troupe_error *err)
{
    troupe_object object;
    void *data = NULL;
    assert_int_equal(troupe_object_create(world.store, size, &object, &data), TROUPE_OK);
    memcpy(data, bytes, size);
    assert_int_equal(troupe_object_seal(world.store, object), TROUPE_OK);
    troupe_status status =
        tr_policy_mirror_restore(world.ctx, &world.policy, object, digest, step, err);
    assert_int_equal(troupe_object_release(world.store, object), TROUPE_OK);
    troupe_store_stats stats;
    troupe_store_get_stats(world.store, &stats);
    assert_int_equal(stats.objects, 0); /* it holds none either */
    return status;
}

static float
first_master(void)
{
    float *master = tr_zalloc(floats(), sizeof *master);
    troupe_error err = {0};
    check(troupe_trainer_get_state(world.policy.trainer, master, NULL, NULL, &err), &err);
    const float first = master[0];
    tr_free(master);
    return first;
}

static void
a_good_one_is_taken_up_whole(void **state)
{
    (void)state;
    troupe_error err = {0};
    size_t size = 0;
    char *bytes = make_bytes(&size);
    check(restore(bytes, size, world.digest, STEP, &err), &err);
    assert_int_equal(world.policy.step, STEP);
    assert_int_equal(world.policy.checkpointed, 3);
    assert_int_equal(world.policy.offsets.metrics, 100);
    assert_int_equal(world.policy.offsets.samples, 200);
    assert_int_equal(world.policy.counts.trained_samples, 77);
    assert_int_equal(world.policy.counts_at_commit.trained_samples, 77);
    assert_true(first_master() == 1.0F);
    tr_free(bytes);
}

static void
of_a_wrong_one_nothing_is_taken(void **state)
{
    (void)state;
    size_t size = 0;
    char *bytes = make_bytes(&size);
    const float before = first_master();

    const struct {
        size_t flip; /* SIZE_MAX: none */
        size_t size;
        int64_t step;
        uint64_t digest;
        const char *says;
    } wrong[] = {
        {SIZE_MAX, size, STEP + 1, world.digest, "not one of step 6"},
        {SIZE_MAX, size, STEP - 1, world.digest, "not one of step 4"},
        {SIZE_MAX, size, STEP, world.digest + 1, "bytes have changed"},
        {SIZE_MAX, size - 4, STEP, world.digest, "not one of step 5"},
        {SIZE_MAX, HEADER - 1, STEP, world.digest, "has 63 bytes"},
        {0, size, STEP, world.digest, "not one of"},
        {8, size, STEP, world.digest, "not one of"},
        {24, size, STEP, world.digest, "not one of"},
        {32, size, STEP, world.digest, "bytes have changed"},
        {HEADER + 1, size, STEP, world.digest, "bytes have changed"},
        {size - 1, size, STEP, world.digest, "bytes have changed"},
    };

    for (size_t i = 0; i < TR_COUNT(wrong); i++) {
        troupe_error err = {0};
        if (wrong[i].flip != SIZE_MAX) {
            bytes[wrong[i].flip] ^= 1;
        }
        assert_int_equal(
            restore(bytes, wrong[i].size, wrong[i].digest, wrong[i].step, &err), TROUPE_CORRUPT);
        assert_non_null(strstr(err.text, wrong[i].says));
        assert_int_equal(world.policy.step, 0);
        assert_true(first_master() == before);
        if (wrong[i].flip != SIZE_MAX) {
            bytes[wrong[i].flip] ^= 1;
        }
    }
    tr_free(bytes);
}

/* The clock of a run goes on where the incarnation before had it. */
static void
the_time_of_earlier_incarnations_counts(void **state)
{
    (void)state;
    world.policy.wall_before = 1000;
    world.policy.begun_ns = tr_now_ns();
    tr_policy_state now = tr_policy_state_now(&world.policy, STEP);
    assert_true(now.wall_s >= 1000 && now.wall_s < 1060);
    tr_policy_state_fini(&now);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_good_one_is_taken_up_whole, setup, teardown),
        cmocka_unit_test_setup_teardown(of_a_wrong_one_nothing_is_taken, setup, teardown),
        cmocka_unit_test_setup_teardown(the_time_of_earlier_incarnations_counts, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
