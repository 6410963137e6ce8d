/* Nothing that a worker started outlives it, whatever it did to hide; and nobody else is hurt. */
#include "sys/procfs.h"
#include "sys/sweep.h"
#include "sys/worker.h"
#include "worker_rig.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* The ways of killing, each tried where the machine has it. */
enum way {
    BY_MARK,
    BY_CGROUP
};

static tr_worker *
start_on_leash(heard *h, leash *l, enum way way, const char *role, const char *argument)
{
    tr_worker_options o = role_options(h);
    *l = leash_open();
    o.fds = &l->write_fd;
    o.fd_count = 1;
    o.no_cgroup = way == BY_MARK;
    tr_worker *worker = start_role(&o, role, argument);
    if (way == BY_CGROUP && worker->cgroup.dir_fd < 0) {
        tr_worker_free(worker);
        (void)leash_slack(l, 20000 * MS);
        print_message("no control group can be made here: not tested\n");
        skip();
    }
    return worker;
}

static bool
write_file(const char *dir, const char *name, const char *text)
{
    char path[512];
    (void)snprintf(path, sizeof path, "%s/%s", dir, name);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0) {
        return false;
    }
    const ssize_t wrote = write(fd, text, strlen(text));
    (void)close(fd);
    return wrote == (ssize_t)strlen(text);
}

/* Orphans become our zombies only if we adopt them; both must end well. */
static void
sweep_all(void)
{
    const uint64_t deadline_ns = now_ns() + 2000 * MS;
    while (waitpid(-1, NULL, WNOHANG) != -1 && now_ns() < deadline_ns) {
        (void)tr_sweep_orphans(NULL, 0);
    }
}

static void
kill_family(enum way way, const char *argument)
{
    heard h = {0};
    leash l;
    tr_worker *worker = start_on_leash(&h, &l, way, "family", argument);
    pump_until(worker, &h, "born");
    troupe_sleep_ns(30 * MS);
    tr_worker_kill(worker);
    pump(worker);
    assert_true(leash_slack(&l, 20000 * MS));
    tr_worker_free(worker);
    heard_fini(&h);
    sweep_all();
}

static void
children_in_other_sessions_are_killed_with_it(void **state)
{
    (void)state;
    kill_family(BY_MARK, NULL);
}

static void
children_in_other_sessions_are_killed_by_the_group(void **state)
{
    (void)state;
    kill_family(BY_CGROUP, NULL);
}

static void
children_without_environment_and_parent_are_killed_by_the_group(void **state)
{
    (void)state;
    kill_family(BY_CGROUP, "bare");
}

static void
leave_family(enum way way)
{
    heard h = {0};
    leash l;
    tr_worker *worker = start_on_leash(&h, &l, way, "family", "leave");
    pump(worker); /* it ends by itself */
    tr_death death;
    tr_worker_death(worker, &death);
    assert_int_equal(death.exit_code, 0);
    assert_true(leash_slack(&l, 20000 * MS));
    tr_worker_free(worker);
    heard_fini(&h);
    sweep_all();
}

static void
children_are_killed_when_it_ends_by_itself(void **state)
{
    (void)state;
    leave_family(BY_MARK);
}

static void
children_are_killed_by_the_group_when_it_ends_by_itself(void **state)
{
    (void)state;
    leave_family(BY_CGROUP);
}

static void
a_killed_worker_s_family_is_swept(void **state)
{
    (void)state;
    heard h = {0};
    leash l;
    tr_worker *worker = start_on_leash(&h, &l, BY_MARK, "family", NULL);
    pump_until(worker, &h, "born");
    tr_worker_signal(worker, SIGKILL); /* as a stranger would */
    pump(worker);
    assert_true(leash_slack(&l, 20000 * MS));
    tr_worker_free(worker);
    heard_fini(&h);
    sweep_all();
}

/* --- bombs ------------------------------------------------------------------------------------ */

static void
sweep_bomb(enum way way, const char *argument)
{
    heard h = {0};
    leash l;
    tr_worker *worker = start_on_leash(&h, &l, way, "bomb", argument);
    pump_until(worker, &h, "lit");
    troupe_sleep_ns(200 * MS); /* it is full, or nearly */
    const uint64_t begin = now_ns();
    tr_worker_kill(worker);
    pump(worker);
    const bool slack = leash_slack(&l, 20000 * MS);
    const uint64_t took = now_ns() - begin;
    tr_worker_free(worker);
    heard_fini(&h);
    sweep_all();
    print_message("bomb %s: gone after %.0f ms\n", argument, (double)took / 1e6);
    assert_true(slack);
    if (geteuid() == 0 ||
        way == BY_CGROUP) {             /* else nobody guarantees us a share of the processor */
        assert_true(took < 10000 * MS); /* 0.1 to 0.8 s when nothing else runs */
    }
}

static void
a_fork_bomb_in_its_group_is_gone_at_once(void **state)
{
    (void)state;
    sweep_bomb(BY_MARK, "g100");
}

static void
a_fork_bomb_in_many_sessions_is_swept(void **state)
{
    (void)state;
    sweep_bomb(BY_MARK, "s100");
}

static void
a_fork_bomb_in_many_sessions_is_gone_with_its_group(void **state)
{
    (void)state;
    sweep_bomb(BY_CGROUP, "s100");
}

/* --- orphans ---------------------------------------------------------------------------------- */

static void
orphans_are_swept_and_workers_and_strangers_are_not(void **state)
{
    (void)state;
    heard h = {0};
    leash kept_leash;
    tr_worker *kept = start_on_leash(&h, &kept_leash, BY_MARK, "family", NULL);
    pump_until(kept, &h, "born");
    /* A helper of some library, in a group of its own, that knows nothing of marks. */
    const pid_t stranger = fork();
    if (stranger == 0) {
        (void)close(kept_leash.write_fd);
        (void)setpgid(0, 0);
        (void)alarm(60);
        for (;;) {
            (void)pause();
        }
    }
    const int keep[] = {tr_worker_pid(kept), stranger};
    /* The double-forked one of the kept worker is an orphan: nobody's. */
    const uint64_t deadline_ns = now_ns() + 5000 * MS;
    size_t gone = 0;
    while (gone == 0 && now_ns() < deadline_ns) {
        gone = tr_sweep_orphans(keep, 2);
    }
    assert_int_equal(gone, 1);
    assert_int_equal(tr_sweep_orphans(keep, 2), 0);
    tr_worker_check(kept, now_ns());
    assert_false(tr_worker_exited(kept));
    assert_int_equal(kill(stranger, 0), 0);
    assert_int_equal(waitpid(stranger, NULL, WNOHANG), 0);
    /* Without being kept it is spared all the same, since it carries no mark of ours. */
    const int only_kept[] = {tr_worker_pid(kept)};
    assert_int_equal(tr_sweep_orphans(only_kept, 1), 0);
    assert_int_equal(waitpid(stranger, NULL, WNOHANG), 0);
    /* A worker that is not kept is nobody's. */
    tr_worker_free(kept);
    assert_true(leash_slack(&kept_leash, 20000 * MS));
    assert_int_equal(kill(stranger, SIGKILL), 0);
    assert_int_equal(waitpid(stranger, NULL, 0), stranger);
    heard_fini(&h);
    sweep_all();
}

static void
a_helper_that_died_in_our_group_is_left_to_who_started_it(void **state)
{
    (void)state;
    const pid_t helper = fork();
    if (helper == 0) {
        _exit(7);
    }
    siginfo_t info;
    assert_int_equal(waitid(P_PID, (id_t)helper, &info, WEXITED | WNOWAIT), 0);
    assert_int_equal(tr_sweep_orphans(NULL, 0), 0);
    int status = 0;
    assert_int_equal(waitpid(helper, &status, 0), helper);
    assert_int_equal(WEXITSTATUS(status), 7);
}

static void
a_mark_names_us_and_those_above_us(void **state)
{
    (void)state;
    char ours[TR_MARK_MAX];
    char first[TR_MARK_MAX];
    char second[TR_MARK_MAX];
    assert_true(tr_mark_of_us(ours));
    tr_mark_new(first);
    tr_mark_new(second);
    assert_int_equal(strncmp(first, ours, strlen(ours)), 0);
    assert_string_not_equal(first, second);
    assert_int_equal(setenv("TROUPE_WORKER_OF", ":1-2-3;", 1), 0);
    const char *const add[] = {"A=1", "HOME=x", NULL};
    char **env = tr_environ_marked(add, first);
    char want[256];
    (void)snprintf(want, sizeof want, "TROUPE_WORKER_OF=:1-2-3;%s", first);
    assert_string_equal(env[0], want);
    size_t homes = 0;
    size_t marks = 0;
    for (size_t i = 0; env[i] != NULL; i++) {
        homes += strncmp(env[i], "HOME=", 5) == 0 ? 1 : 0;
        marks += strncmp(env[i], "TROUPE_WORKER_OF=", 17) == 0 ? 1 : 0;
    }
    assert_int_equal(homes, 1);
    assert_int_equal(marks, 1);
    tr_free(env);
    /* It does not grow without end. */
    char many[2048] = "";
    for (size_t i = 0; i < 200; i++) {
        (void)snprintf(many + strlen(many), sizeof many - strlen(many), ":%zu-1-1;", i);
    }
    assert_int_equal(setenv("TROUPE_WORKER_OF", many, 1), 0);
    env = tr_environ_marked(NULL, first);
    assert_true(strlen(env[0]) < 700);
    assert_non_null(strstr(env[0], ":199-1-1;"));
    assert_int_equal(env[0][17], ':');
    tr_free(env);
    assert_int_equal(unsetenv("TROUPE_WORKER_OF"), 0);
}

/* --- the parent's death ----------------------------------------------------------------------- */

/* kill -9 of a parent that has workers, or is just starting them. */
static void
kill_spawner(const char *count, const char *when, uint64_t later_ns, bool heed)
{
    heard h = {0};
    leash l = leash_open();
    tr_worker_options o = role_options(&h);
    o.fds = &l.write_fd;
    o.fd_count = 1;
    o.no_cgroup = true;
    tr_worker *worker = start_role(&o, "spawner", count);
    pump_until(worker, &h, when);
    troupe_sleep_ns(later_ns);
    (void)kill(tr_worker_pid(worker), SIGKILL);
    if (heed) { /* else what it started must go by itself, not be hunted by us */
        pump(worker);
    }
    const bool slack = leash_slack(&l, 5000 * MS);
    tr_worker_free(worker);
    heard_fini(&h);
    sweep_all();
    assert_true(slack);
}

static void
workers_die_with_their_parent(void **state)
{
    (void)state;
    kill_spawner("4", "spawned", 0, false);
}

static void
workers_die_with_a_parent_that_is_killed_while_it_starts_them(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < 20; i++) {
        kill_spawner("1000", "begin", i * MS / 2, false);
    }
}

/* A node that was killed leaves a driver that it had started; the process above has marked both. */
static void
what_a_killed_worker_s_worker_left_is_swept_too(void **state)
{
    (void)state;
    kill_spawner("d3", "spawned", 0, true);
}

static void
groups_of_a_dead_spawner_are_removed_by_the_next(void **state)
{
    (void)state;
    char own[TR_CGROUP_PATH_MAX];
    struct tr_cgroup cgroup;
    if (!tr_cgroup_make(&cgroup, 0, false)) {
        print_message("no control group can be made here: not tested\n");
        skip();
    }
    assert_true(tr_cgroup_own(own, sizeof own));
    /* One whose maker is no more, with somebody in it; and the living one's stays. */
    char dead[TR_CGROUP_PATH_MAX + 64];
    const pid_t maker = fork();
    if (maker == 0) {
        _exit(0);
    }
    assert_int_equal(waitpid(maker, NULL, 0), maker);
    (void)snprintf(dead, sizeof dead, "%s/troupe-%d-1-1", own, (int)maker);
    assert_int_equal(mkdir(dead, 0755), 0);
    heard h = {0};
    tr_worker_options o = role_options(&h);
    o.no_cgroup = true;
    tr_worker *worker = start_role(&o, "sleep", NULL);
    char pid[16];
    (void)snprintf(pid, sizeof pid, "%d", tr_worker_pid(worker));
    assert_true(write_file(dead, "cgroup.procs", pid));
    const uint64_t deadline_ns = now_ns() + 5000 * MS;
    while (access(dead, F_OK) == 0 && now_ns() < deadline_ns) {
        struct tr_cgroup next;
        assert_true(tr_cgroup_make(&next, 0, false));
        tr_cgroup_remove(&next);
    }
    assert_int_equal(access(dead, F_OK), -1);
    assert_int_equal(access(cgroup.path, F_OK), 0);
    pump(worker);
    tr_death death;
    tr_worker_death(worker, &death);
    assert_int_equal(death.signal, SIGKILL);
    tr_worker_free(worker);
    char path[TR_CGROUP_PATH_MAX];
    memcpy(path, cgroup.path, sizeof path);
    tr_cgroup_remove(&cgroup);
    assert_int_equal(access(path, F_OK), -1);
    heard_fini(&h);
}

/* A node goes on without the driver that started it, and others leave it alone. */
static void
a_lasting_worker_outlives_its_dead_spawner_and_its_group(void **state)
{
    (void)state;
    heard h = {0};
    leash l;
    tr_worker *spawner = start_on_leash(&h, &l, BY_MARK, "spawner", "l1");
    pump_until(spawner, &h, "spawned");
    int lasting = 0; /* its worker is its only child */
    char path[64];
    char text[32];
    (void)snprintf(path, sizeof path, "/proc/%d/task/%d/children", tr_worker_pid(spawner),
        tr_worker_pid(spawner));
    if (!tr_file_read(path, text, sizeof text) || sscanf(text, "%d", &lasting) != 1) {
        fail_msg("no child in %s", path);
    }
    char group[TR_CGROUP_PATH_MAX];
    (void)snprintf(path, sizeof path, "/proc/%d/cgroup", lasting);
    assert_true(tr_file_read(path, group, sizeof group));
    if (strstr(group, "troupe-on-") == NULL) {
        tr_worker_free(spawner);
        (void)leash_slack(&l, 20000 * MS);
        heard_fini(&h);
        sweep_all();
        print_message("no control group can be made here: not tested\n");
        skip();
    }
    /* Its spawner dies as by a stranger, and nobody heeds. */
    (void)kill(tr_worker_pid(spawner), SIGKILL);
    assert_int_equal(waitpid(tr_worker_pid(spawner), NULL, 0), tr_worker_pid(spawner));
    for (int i = 0; i < 3; i++) {
        struct tr_cgroup next;
        assert_true(tr_cgroup_make(&next, 0, false));
        tr_cgroup_remove(&next);
    }
    struct tr_proc now;
    assert_true(tr_proc_read(lasting, &now));
    assert_int_not_equal(now.state, 'Z');
    tr_worker_free(spawner); /* which knows that all that it started is to go */
    assert_true(leash_slack(&l, 20000 * MS));
    heard_fini(&h);
    sweep_all();
    struct tr_cgroup next;
    assert_true(tr_cgroup_make(&next, 0, false));
    tr_cgroup_remove(&next);
    char own[TR_CGROUP_PATH_MAX];
    assert_true(tr_cgroup_own(own, sizeof own));
    (void)snprintf(group, sizeof group, "%s%s", own, strstr(group, "/troupe-on-"));
    group[strcspn(group, "\n")] = '\0';
    assert_int_equal(access(group, F_OK), -1);
}

/* A node in a group of its own has the groups of its workers within. */
static void
groups_within_a_group_go_with_it(void **state)
{
    (void)state;
    for (int each = 0; each < 2; each++) {
        heard h = {0};
        leash l;
        tr_worker *worker = start_on_leash(&h, &l, BY_CGROUP, "spawner", "c2");
        pump_until(worker, &h, "spawned");
        char path[TR_CGROUP_PATH_MAX];
        memcpy(path, worker->cgroup.path, sizeof path);
        struct stat st;
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(st.st_nlink, 4); /* itself and two within */
        if (each == 1) {
            tr_cgroup_kill_each(&worker->cgroup);
        }
        tr_worker_kill(worker);
        pump(worker);
        assert_true(leash_slack(&l, 20000 * MS));
        tr_worker_free(worker);
        heard_fini(&h);
        assert_int_equal(access(path, F_OK), -1);
        sweep_all();
    }
}

static void
without_cgroup_kill_each_process_is_killed(void **state)
{
    (void)state;
    heard h = {0};
    leash l;
    tr_worker *worker = start_on_leash(&h, &l, BY_CGROUP, "family", NULL);
    pump_until(worker, &h, "born");
    tr_cgroup_kill_each(&worker->cgroup); /* as before Linux 5.14 */
    assert_true(leash_slack(&l, 20000 * MS));
    pump(worker);
    tr_worker_free(worker);
    heard_fini(&h);
    sweep_all();
}

/* --- the kernel's killer ---------------------------------------------------------------------- */

/* A memory group of either version with 32 MiB; "" when none can be made. */
static void
make_memory_group(char *dir, size_t size)
{
    static const char *const bases[] = {"/sys/fs/cgroup/memory", "/sys/fs/cgroup"};
    static const char *const limits[] = {"memory.limit_in_bytes", "memory.max"};
    for (size_t i = 0; i < 2; i++) {
        (void)snprintf(dir, size, "%s/troupe-test-%d", bases[i], (int)getpid());
        if (mkdir(dir, 0755) == 0) {
            if (write_file(dir, limits[i], "33554432")) {
                return;
            }
            (void)rmdir(dir);
        }
    }
    dir[0] = '\0';
}

static void
the_kernels_oom_killer_is_named(void **state)
{
    (void)state;
    char dir[256];
    make_memory_group(dir, sizeof dir);
    if (dir[0] == '\0') {
        print_message("no memory group can be made here: the OOM killer is not tested\n");
        skip();
    }
    heard h = {0};
    int go[2];
    assert_int_equal(pipe(go), 0);
    tr_worker_options o = role_options(&h);
    o.fds = &go[0];
    o.fd_count = 1;
    tr_worker *worker = start_role(&o, "eat", "p200");
    pump_until(worker, &h, "ready");
    char pid[16];
    (void)snprintf(pid, sizeof pid, "%d", tr_worker_pid(worker));
    const bool joined = write_file(dir, "cgroup.procs", pid);
    assert_int_equal(write(go[1], "x", 1), 1);
    pump_until(worker, &h, joined ? "ready" : "eaten");
    tr_death death = {0};
    char text[1024] = "";
    if (joined) {
        pump(worker);
        tr_worker_death(worker, &death);
        tr_death_text(&death, NULL, text, sizeof text);
    }
    tr_worker_free(worker);
    (void)rmdir(dir);
    (void)close(go[0]);
    (void)close(go[1]);
    heard_fini(&h);
    assert_true(joined);
    assert_int_equal(death.signal, SIGKILL);
    if (death.oom_possible) {
        assert_non_null(strstr(text, "(SIGKILL), by the OOM killer or by somebody; "));
    } else {
        assert_true(death.oom);
        assert_non_null(strstr(text, "(SIGKILL), by the kernel's OOM killer; "));
    }
}

static void
the_machine_is_described(void **state)
{
    (void)state;
    char text[512];
    tr_worker_limits_text(text, sizeof text);
    print_message("%s\n", text);
    assert_non_null(strstr(text, "workers: killed by "));
    assert_non_null(strstr(text, "end: noticed by "));
}

static int
adopt(void **state)
{
    (void)state;
    troupe_error err = {0};
    return tr_subreaper(&err) == TROUPE_OK ? 0 : -1;
}

int
main(int argc, char **argv)
{
    role_main(argc, argv);
#define TEST(name) cmocka_unit_test_setup_teardown(name, rig_setup, rig_teardown)
    const struct CMUnitTest tests[] = {
        TEST(children_in_other_sessions_are_killed_with_it),
        TEST(children_in_other_sessions_are_killed_by_the_group),
        TEST(children_without_environment_and_parent_are_killed_by_the_group),
        TEST(children_are_killed_when_it_ends_by_itself),
        TEST(children_are_killed_by_the_group_when_it_ends_by_itself),
        TEST(a_killed_worker_s_family_is_swept),
        TEST(a_fork_bomb_in_its_group_is_gone_at_once),
        TEST(a_fork_bomb_in_many_sessions_is_swept),
        TEST(a_fork_bomb_in_many_sessions_is_gone_with_its_group),
        TEST(orphans_are_swept_and_workers_and_strangers_are_not),
        TEST(a_helper_that_died_in_our_group_is_left_to_who_started_it),
        TEST(a_mark_names_us_and_those_above_us),
        TEST(workers_die_with_their_parent),
        TEST(workers_die_with_a_parent_that_is_killed_while_it_starts_them),
        TEST(what_a_killed_worker_s_worker_left_is_swept_too),
        TEST(groups_of_a_dead_spawner_are_removed_by_the_next),
        TEST(a_lasting_worker_outlives_its_dead_spawner_and_its_group),
        TEST(groups_within_a_group_go_with_it),
        TEST(without_cgroup_kill_each_process_is_killed),
        TEST(the_kernels_oom_killer_is_named),
        TEST(the_machine_is_described),
    };
    const int failed = cmocka_run_group_tests(tests, adopt, NULL);
    close_image();
    return failed;
}
