#!/usr/bin/env python3
"""Real processes of a run: what each does when parts of it print, block, fail, die and are stopped. After each case no
process of the run and no folder of it is left. Standard library only. Usage: processes.py CAST TROUPE [CASE...]"""
import contextlib
import ctypes
import glob
import json
import os
import re
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

CAST, TROUPE = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
CASES = []
LIMIT_S = float(os.environ.get("LIMIT_S", "40"))  # of a wait; less where failures are expected


def case(function):
    CASES.append(function)
    return function


class Run:
    """A run in a folder of its own for $XDG_RUNTIME_DIR, by which all its processes are found."""

    def __init__(self, work, *words, env=None, files=None, pipe=False, both=False):
        self.work = work
        self.dir = os.path.join(work, "x")
        os.makedirs(self.dir, mode=0o700, exist_ok=True)
        environment = {**os.environ, "XDG_RUNTIME_DIR": self.dir, **(env or {})}
        self.out_path = os.path.join(work, "out")
        self.err_path = os.path.join(work, "err")
        with open(self.out_path, "w", encoding="utf-8") as out, open(self.err_path, "w", encoding="utf-8") as err:
            command = [CAST, *words] if files is None else ["sh", "-c", f'ulimit -n {files}; exec "$@"', "sh", CAST, *words]
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE if pipe else out,
                                            stderr=subprocess.STDOUT if both else err, env=environment, cwd=work)
        self.environment = environment

    def pids(self):
        """pid -> short name of every process of the run that is no zombie"""
        found = {}
        mark = f"XDG_RUNTIME_DIR={self.dir}".encode()
        for path in glob.glob("/proc/[0-9]*"):
            try:
                with open(path + "/environ", "rb") as file:
                    ours = mark in file.read().split(b"\0")
                with open(path + "/stat", encoding="utf-8") as file:
                    state = file.read().rsplit(")", 1)[1].split()[0]
                with open(path + "/comm", encoding="utf-8") as file:
                    name = file.read().strip()
            except OSError:
                continue
            if ours and state != "Z":
                found[int(path[6:])] = name
        return found

    def freeze(self, pid):
        """Stops a process, and sees that it is stopped: all its threads have been told by then."""
        os.kill(pid, signal.SIGSTOP)

        def stopped():
            states = set()
            for path in glob.glob(f"/proc/{pid}/task/*/stat"):
                with contextlib.suppress(OSError), open(path, encoding="utf-8") as file:
                    states.add(file.read().rsplit(")", 1)[1].split()[0])
            return states == {"T"}

        self.wait_for(stopped, f"the stop of {pid}")

    def pid(self, name):
        pids = [pid for pid, comm in self.pids().items() if comm == name]
        if len(pids) != 1:
            raise AssertionError(f"{len(pids)} processes called {name}: {self.pids()}")
        return pids[0]

    def out(self):
        with open(self.out_path, encoding="utf-8", errors="replace") as file:
            return file.read()

    def err(self):
        with open(self.err_path, encoding="utf-8", errors="replace") as file:
            return file.read()

    def wait_for(self, condition, what, limit=LIMIT_S):
        until = time.monotonic() + limit
        while not condition():
            if time.monotonic() > until:
                raise AssertionError(f"{what} did not come within {limit} s\nout: {self.out()}\nerr: {self.err()}")
            time.sleep(0.02)

    def wait_out(self, pattern, count=1, limit=LIMIT_S):
        self.wait_for(lambda: len(re.findall(pattern, self.out())) >= count, f"{count} x /{pattern}/ in out", limit)

    def wait_err(self, pattern, count=1, limit=LIMIT_S):
        self.wait_for(lambda: len(re.findall(pattern, self.err())) >= count, f"{count} x /{pattern}/ in err", limit)

    def end(self, limit=LIMIT_S):
        """The exit code, once nothing of the run is left."""
        try:
            code = self.process.wait(limit)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"no end within {limit} s\nout: {self.out()}\nerr: {self.err()}") from None
        self.gone()
        return code

    def gone(self, limit=10):
        self.wait_for(lambda: not self.pids(), f"the end of {self.pids()}", limit)
        left = os.listdir(os.path.join(self.dir, "troupe")) if os.path.isdir(os.path.join(self.dir, "troupe")) else []
        if left:
            inside = {name: os.listdir(os.path.join(self.dir, "troupe", name)) for name in left}
            raise AssertionError(f"folders are left: {inside}\nout: {self.out()}\nerr: {self.err()}")

    def clean(self):
        for pid in self.pids():
            os.kill(pid, signal.SIGKILL)
        self.process.wait(10)


def check(condition, run, what):
    if not condition:
        raise AssertionError(f"{what}\nout: {run.out()}\nerr: {run.err()}")


def ends(run, code, *parts):
    got = run.end()
    text = run.out() + run.err()
    missing = [part for part in parts if not re.search(part, text)]
    check(got == code and not missing, run, f"exit {got} (wanted {code}), missing {missing}")


# --- plain ---------------------------------------------------------------------------------------------------------


@case
def every_replica_has_a_process_of_its_own(start):
    run = start("drive=serve", "replicas=3")
    run.wait_out(r"pid w\[\d\] \d+", 3)
    pids = re.findall(r"pid w\[\d\] (\d+)", run.out())
    names = run.pids()
    check(len(set(pids)) == 3 and all(names[int(pid)].startswith("w[") for pid in pids), run, f"{names}")
    check(sorted(names.values()).count("node") == 1 and len(names) == 5, run, f"{names}")
    run.process.send_signal(signal.SIGTERM)
    ends(run, 143, "stopped")


@case
def a_place_is_a_process_that_roles_share(start):
    run = start("drive=serve", "replicas=2", "place=gpu")
    run.wait_out(r"pid w\[\d\] \d+", 2)
    names = sorted(run.pids().values())
    check(names == ["cast", "gpu[0]", "gpu[1]", "node"], run, f"{names}")
    run.process.send_signal(signal.SIGINT)
    ends(run, 130, "stopped")


@case
def the_code_of_drive_and_of_quit(start):
    ends(start("method=echo", "text=a", "code=7"), 7, "status OK")


@case
def the_first_code_counts(start):
    ends(start("method=quit", "number=9", "code=7", "after=500"), 9)


@case
def colocated_is_one_process(start):
    run = start("--colocate", "drive=serve", "replicas=2")
    run.wait_out(r"pid w\[\d\] \d+", 2)
    check(len(run.pids()) == 1, run, f"{run.pids()}")
    run.process.send_signal(signal.SIGTERM)
    ends(run, 143)


@case
def a_class_on_the_heap_is_refused_unless_colocated(start):
    ends(start("heap=1"), 2, "role w: its class player is neither in the program nor in a library", "--colocate")
    ends(start("heap=1", "--colocate", "text=a"), 0, "status OK")


@case
def the_variable_set_by_hand_is_refused(start):
    for value in ("x", "1 node 0 1 1 1 0 1", "1 worker 2 3001 1 1 1 1", "1 driver 1 1 1 1 0 1"):
        run = start(env={"TROUPE_PROCESS": value})
        ends(run, 2, "TROUPE_PROCESS", "unset it")


@case
def output_is_prefixed_once(start):
    run = start("method=print", "text=words", "replicas=1")
    check(run.end() == 0, run, "code")
    out, err = run.out().split("\n"), run.err().split("\n")
    for line in ("w[0]: out: words", "w[0]: err: words", "w[0]: log: words"):
        right, other = (out, err) if ": out:" in line else (err, out)
        check(right.count(line) == 1, run, f"{line}: {right.count(line)} times")
        check(line not in other, run, f"{line}: on the other stream")


@case
def what_was_printed_is_kept_where_the_program_says(start):
    run = start("method=print", "text=words", "replicas=2", "logs=kept/log")
    check(run.end() == 0, run, "code")
    with open(os.path.join(run.work, "kept/log/w-0.log"), encoding="utf-8") as file:
        lines = file.read().split("\n")
    check({"out: words", "err: words"} <= set(lines), run, lines)
    check(sorted(os.listdir(os.path.join(run.work, "kept/log"))) == ["w-0.log", "w-1.log"], run, "files")
    run = start("method=print", "text=words", "replicas=1", "logs=/proc/none/log")
    ends(run, 0, "/proc/none/log: no logs are kept: ", "out: words")


@case
def a_flood_of_output_ends(start):
    run = start("method=flood", "number=50000", "replicas=1", "code=3")
    ends(run, 3, "line 49999 of a flood|lines were dropped")


# --- deaths ----------------------------------------------------------------------------------------------------------


@case
def callers_are_told_the_death_record(start):
    run = start("method=crash")
    ends(run, 1,
         r"crash: DIED w\[0\].crash: w\[0\] \(pid \d+\) was killed by signal 6 \(SIGABRT\) while in player.crash "
         r"for 0\.\d s; .*last lines: .*about to crash", r"cast: w\[0\] \(pid \d+\) was killed by signal 6")
    check("last words" in run.err().split("last lines:")[1], run, "what it printed is in its record, too")


@case
def an_exit_in_the_middle_of_a_method(start):
    ends(start("method=leave", "number=3"), 1, r"leave: DIED .*w\[0\] \(pid \d+\) ended with exit code 3 while in "
         r"player.leave")


@case
def a_failure_after_the_answer_decides(start):
    for _ in range(5):
        ends(start("method=answer_and_fail", "code=0"), 1, r"w\[0\] ended: failed after its answer")


@case
def a_process_of_an_actor_that_failed_is_replaced(start):
    run = start("drive=one", "method=fail", "restarts=2", "after=1000", "counts=2", "replicas=1")
    ends(run, 0, r"fail: DIED .*asked to fail", r"w\[0\] ended: asked to fail; it is made again in 0.1 s, 1 restarts "
         r"left", r"w\[0\] \(pid \d+\) is up again", "count OK 1\ncount OK 2")


@case
def an_actor_of_a_shared_place_is_made_again_in_it(start):
    run = start("drive=one", "method=fail", "restarts=2", "after=1000", "counts=1", "replicas=1", "place=p")
    ends(run, 0, r"w\[0\] ended: asked to fail; it is made again", "count OK 1")
    check("is up again" not in run.err(), run, "the process was replaced")


@case
def one_that_has_finished_is_not_replaced(start):
    ends(start("method=finish", "restarts=5", "after=500", "counts=1", "replicas=1"), 0,
         r"count NOT_FOUND|count GONE|count STOPPED")


@case
def the_process_of_one_that_has_finished_may_die(start):
    run = start("method=finish", "restarts=0", "replicas=2", "after=1000")
    run.wait_out("status OK")
    os.kill(run.pid("w[0]"), signal.SIGKILL)
    ends(run, 0, r"w\[0\] \(pid \d+\) was killed by signal 9 .*; its actors had finished")


@case
def a_killed_worker_is_replaced_within_its_limits(start):
    run = start("drive=serve", "replicas=2", "restarts=2", "backoff=50")
    for i in range(2):
        run.wait_out(r"pid w\[1\] \d+", i + 1)
        os.kill(run.pid("w[1]"), signal.SIGKILL)
    run.wait_out(r"pid w\[1\] \d+", 3)
    check(len(re.findall(r"pid w\[0\]", run.out())) == 1, run, "the other one was touched")
    os.kill(run.pid("w[1]"), signal.SIGKILL)
    ends(run, 1, r"cast: w\[1\] \(pid \d+\) was killed by signal 9 \(SIGKILL\)", "w: 3 deaths, 2 restarts")


@case
def two_are_killed_at_once(start):
    run = start("drive=serve", "replicas=3", "restarts=-1")
    run.wait_out(r"pid w\[\d\] \d+", 3)
    first, second = run.pid("w[0]"), run.pid("w[2]")
    os.kill(first, signal.SIGKILL)
    os.kill(second, signal.SIGKILL)
    run.wait_out(r"pid w\[0\] \d+", 2)
    run.wait_out(r"pid w\[2\] \d+", 2)
    run.process.send_signal(signal.SIGTERM)
    ends(run, 143)


@case
def one_is_killed_while_it_starts(start):
    run = start("drive=serve", "replicas=2", "restarts=-1", "backoff=1")
    for _ in range(20):
        time.sleep(0.01)
        for pid, name in run.pids().items():
            if name == "w[0]":
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
    run.wait_out(r"pid w\[1\] \d+")
    run.wait_for(lambda: "w[0]" in run.pids().values(), "w[0]")
    run.process.send_signal(signal.SIGTERM)
    ends(run, 143)


@case
def an_init_that_fails_at_first_ends_the_run(start):
    run = start("init=/proc/self/exe", "restarts=-1")
    ends(run, 1, r"cast: w\[\d\]: the file is there")


@case
def an_init_that_fails_at_a_restart_counts(start):
    flag = os.path.join(start.work, "flag")
    run = start("drive=serve", "replicas=1", "restarts=3", "backoff=20", f"init={flag}")
    run.wait_out(r"pid w\[0\] \d+")
    with open(flag, "w", encoding="utf-8"):
        pass
    os.kill(run.pid("w[0]"), signal.SIGKILL)
    ends(run, 1, r"w\[0\]: the file is there; it is made again in 0.0 s, 1 restarts left",
         r"cast: w\[0\]: the file is there", "w: 4 deaths, 3 restarts")


@case
def a_process_whose_actors_all_fail_to_be_made_is_lost_once(start):
    flag = os.path.join(start.work, "flag")
    run = start("drive=serve", "replicas=1", "place=p", "restarts=5", "backoff=2000", f"init={flag}")
    run.wait_out(r"pid w\[0\] \d+")
    with open(flag, "w", encoding="utf-8"):
        pass
    os.kill(run.pid("p[0]"), signal.SIGKILL)
    run.wait_err(r"[wv]\[0\]: the file is there; it is made again")
    os.unlink(flag)
    run.wait_err(r"p\[0\] \(pid \d+\) is up again")
    made = re.findall(r"the file is there; it is made again", run.err())
    check(len(made) == 1, run, f"counted {len(made)} times")
    run.process.send_signal(signal.SIGTERM)
    ends(run, 143)


@case
def a_memory_ceiling_kills_and_names(start):
    run = start("method=grow", f"memory={100 << 20}", "replicas=1")
    ends(run, 1, r"w\[0\] \(pid \d+\) .*(ceiling|limit).*")


@contextlib.contextmanager
def without_descriptors(pid):
    """The process can open nothing more meanwhile."""
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


@case
def one_that_cannot_be_started_again_is_tried_within_its_limits(start):
    run = start("drive=serve", "replicas=2", "restarts=3", "backoff=10")
    run.wait_out(r"pid w\[\d\] \d+", 2)
    with without_descriptors(run.pid("node")):
        os.kill(run.pid("w[1]"), signal.SIGKILL)
        ends(run, 1, r"w\[1\] \(pid \d+\) was killed by signal 9 .*, 2 restarts left",
             r"w\[1\] cannot be started: no descriptors .*; it is made again in 0.0 s, 0 restarts left",
             r"w\[1\] cannot be started: .*; the run ends", r"cast: w\[1\] cannot be started: .*\(ulimit -n\)")


@case
def one_that_could_not_be_started_comes_back_when_there_is_room(start):
    run = start("drive=serve", "replicas=2", "restarts=-1", "backoff=200")
    run.wait_out(r"pid w\[\d\] \d+", 2)
    with without_descriptors(run.pid("node")):
        os.kill(run.pid("w[1]"), signal.SIGKILL)
        run.wait_err(r"w\[1\] cannot be started: ", 2)
    run.wait_err(r"w\[1\] \(pid \d+\) is up again")
    run.process.send_signal(signal.SIGTERM)
    ends(run, 143, "stopped")


# --- calls to one that dies --------------------------------------------------------------------------------------------


def answers(run):
    found = re.search(r"answers (.*)", run.out())
    check(found, run, "no answers")
    return found.group(1).split()


@case
def calls_in_turn_to_an_actor_that_ends_once(start):
    run = start("drive=steps", "restarts=2", "replicas=1", "backoff=10")
    check(run.end() == 0, run, "code")
    got = answers(run)
    failed = [word for word in got if not word.isdigit()]
    numbers = [int(word) for word in got if word.isdigit()]
    check(len(got) == 200 and 1 <= len(failed) < 60, run, f"{len(failed)} failed")
    check(set(failed) <= {"DIED", "GONE", "NOT_FOUND"}, run, f"{set(failed)}")
    check(numbers == list(range(1, 101)) + list(range(1, len(numbers) - 99)), run, "order")


@case
def a_second_death_without_restarts_fails_the_rest(start):
    run = start("drive=steps", "restarts=0", "replicas=1")
    check(run.end() == 1, run, "code")
    got = answers(run)
    check(got[:100] == [str(i) for i in range(1, 101)] and not any(w.isdigit() for w in got[101:]), run, "answers")


@case
def queued_calls_that_may_be_sent_again_all_succeed(start):
    run = start("drive=queue-retry", "restarts=1", "replicas=1", "backoff=10")
    ends(run, 0, "wait OK failed 0")
    numbers = [int(word) for word in answers(run)]
    resets = [i for i in range(1, 100) if numbers[i] != numbers[i - 1] + 1]
    check(len(resets) == 1 and numbers[resets[0]] == 1 and numbers[0] == 1, run, f"{resets}")


@case
def queued_calls_at_most_once_come_back_as_died(start):
    run = start("drive=queue", "restarts=1", "replicas=1")
    ends(run, 0, r"wait OK failed \d\d")
    got = answers(run)
    good = [word for word in got if word.isdigit()]
    check(good == [str(i + 1) for i in range(len(good))] and set(got[len(good):]) == {"DIED"}, run, "answers")


# --- guards ------------------------------------------------------------------------------------------------------------


@case
def a_killed_node_is_replaced(start):
    run = start("drive=serve", "replicas=2")
    run.wait_out(r"pid w\[\d\] \d+", 2)
    before = run.pids()
    os.kill(run.pid("node"), signal.SIGKILL)
    run.wait_out(r"pid w\[\d\] \d+", 4)
    after = run.pids()
    check(len(set(before) & set(after)) == 1, run, f"{before} {after}")
    run.process.send_signal(signal.SIGTERM)
    ends(run, 143, r"the node part \(pid \d+\) was killed by signal 9 \(SIGKILL\).*; starting it again, life 2",
         r"stopped")


@case
def handles_of_a_dead_nodes_store_are_lost(start):
    run = start("drive=keep", "replicas=1")
    run.wait_out("kept")
    os.kill(run.pid("node"), signal.SIGKILL)
    ends(run, 0, "same place 1\n", "hold LOST LOST\n", "bytes aa\n", "release OK OK LOST\n")


@case
def a_killed_driver_is_replaced(start):
    run = start("drive=serve", "replicas=2")
    run.wait_out(r"pid w\[\d\] \d+", 2)
    workers = {pid for pid, name in run.pids().items() if name.startswith("w[")}
    run.process.kill()
    run.wait_out(r"driver \d+", 2)
    run.wait_out(r"pid w\[\d\] \d+", 4)
    check(workers <= set(run.pids()), run, "workers were touched")
    check(run.process.wait(5) == -9, run, "the shell sees the kill")
    os.kill(run.pid("cast"), signal.SIGTERM)
    run.gone()
    check("stopped" in run.out(), run, "not stopped in order")


@case
def a_driver_that_is_killed_before_it_has_joined_is_named(start):
    for _ in range(6):
        run = start("drive=serve", "replicas=1")
        run.wait_for(lambda r=run: "node" in r.pids().values(), "node")
        run.process.kill()
        run.wait_err(rf"the driver \(pid {run.process.pid}\) is gone; starting it again, life 2")
        run.wait_out(r"pid w\[0\] \d+")
        os.kill(run.pid("node"), signal.SIGTERM)
        run.gone()


@case
def a_node_that_somebody_else_waited_for_is_replaced(start):
    run = start("drive=reap", "replicas=1")
    run.wait_out(r"pid w\[0\] \d+")
    os.kill(run.pid("node"), signal.SIGKILL)
    run.wait_out(r"pid w\[0\] \d+", 2)
    run.process.send_signal(signal.SIGTERM)
    ends(run, 143, "starting it again, life 2")


@case
def node_and_driver_in_turn(start):
    run = start("drive=serve", "replicas=1", "restarts=-1")
    for i in range(3):
        run.wait_out(r"driver \d+", i + 1)
        run.wait_out(r"pid w\[0\] \d+", 2 * i + 1)
        os.kill(run.pid("node"), signal.SIGKILL)
        run.wait_out(r"pid w\[0\] \d+", 2 * i + 2)
        os.kill(run.pid("cast"), signal.SIGKILL)
    run.wait_out(r"driver \d+", 4)
    run.wait_out(r"pid w\[0\] \d+", 7)
    os.kill(run.pid("node"), signal.SIGTERM)
    run.gone()
    check("life 4" in run.err(), run, "lives")


@case
def a_node_that_does_not_live_long_ends_the_run(start):
    run = start("drive=serve", "replicas=1")
    run.wait_out(r"driver \d+")
    killed = 0
    until = time.monotonic() + 20
    while run.process.poll() is None and time.monotonic() < until:
        for pid, name in run.pids().items():
            if name == "node":
                os.kill(pid, signal.SIGKILL)
                killed += 1
        time.sleep(0.05)
    check(killed >= 5, run, f"{killed} kills")
    ends(run, 1, "the node part .* and is not started again")


@case
def a_driver_that_does_not_live_long_ends_the_run(start):
    run = start("drive=crash", "replicas=1")
    run.process.wait(10)
    run.wait_for(lambda: not run.pids(), "the end", 20)
    check(re.search("the driver .* and is not started again", run.err()), run, "reason")
    run.gone()


@case
def node_and_driver_at_once_leave_no_process(start):
    run = start("drive=serve", "replicas=2")
    run.wait_out(r"pid w\[\d\] \d+", 2)
    node = run.pid("node")
    run.freeze(run.process.pid)
    os.kill(node, signal.SIGKILL)
    run.process.kill()
    run.process.wait(5)
    run.wait_for(lambda: not run.pids(), f"the end of {run.pids()}", 10)
    shutil.rmtree(os.path.join(run.dir, "troupe"))


@case
def a_drive_that_only_calls_gets_its_node_back(start):
    run = start("drive=insist", "replicas=1")
    run.wait_out(r"pid w\[0\] \d+")
    os.kill(run.pid("node"), signal.SIGKILL)
    run.wait_out(r"pid w\[0\] \d+", 2, 12)
    run.process.send_signal(signal.SIGTERM)
    check(run.end(5) == 143, run, "it hears that it is to stop")


def hello(folder, to, sender, epoch):
    """A connection to a loop, whose other side says that it is `sender`."""
    size = 0
    for _ in range(2):  # the refusal of the first says what a hello must have
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        peer.settimeout(5)
        peer.connect(os.path.join(folder, os.readlink(os.path.join(folder, f"s-0-{to}"))))
        peer.send(struct.pack("<HBBIIIIIIIHHHH", 0x7075, 1, 0, 0, 0, 24, 1, 1, size, epoch, 0, sender, 0, to))
        said = peer.recv(1000)
        if said[2] == 2:
            return peer
        peer.close()
        size = int(re.search(rb"ours are of version 1 and up to (\d+);", said).group(1))
    raise AssertionError(said)


def loops(run):
    """The run's folder, and loop -> epoch of all that listen there."""
    folder = glob.glob(os.path.join(run.dir, "troupe", "*"))[0]
    names = [os.readlink(path).split(".") for path in glob.glob(os.path.join(folder, "s-*")) if os.path.islink(path)]
    return folder, {int(name[0].split("-")[2]): int(name[1]) for name in names}


@case
def one_that_sends_what_cannot_be_read_is_replaced(start):
    run = start("drive=serve", "replicas=2", "restarts=3", "backoff=20")
    run.wait_out(r"pid w\[\d\] \d+", 2)
    pid = run.pid("w[1]")
    folder, epochs = loops(run)
    workers = sorted(loop for loop, epoch in epochs.items() if epoch > 1)
    with hello(folder, workers[0], workers[-1], epochs[workers[-1]]) as peer:  # a loop of w[0] hears one of w[1]
        peer.send(b"x" * 64)
        run.wait_err(rf"w\[0\]: link: loop 0.{workers[-1]} \(epoch \d+, .*\) was cut: packet: ")
        run.wait_err(rf"w\[1\] \(pid {pid}\) has sent what cannot be read: packet: .*: it is killed")
        run.wait_err(rf"w\[1\] \(it has sent what cannot be read\) \(pid {pid}\) was killed by signal 9 .*made again")
    run.wait_out(r"pid w\[1\] \d+", 2)
    check("w[0]" in run.pids().values() and len(re.findall(r"pid w\[0\]", run.out())) == 1, run, "w[0] was touched")
    run.process.send_signal(signal.SIGTERM)
    ends(run, 143)


# --- signs of life -------------------------------------------------------------------------------------------------------


@case
def a_stopped_process_is_named(start):
    run = start("drive=serve", "replicas=2")
    run.wait_out(r"pid w\[\d\] \d+", 2)
    pid = run.pid("w[1]")
    os.kill(pid, signal.SIGSTOP)
    run.wait_err(rf"w\[1\] \(pid {pid}\) has not answered for [45] s: its process is stopped \(state T\)", 1, 6)
    os.kill(pid, signal.SIGCONT)
    run.wait_err(rf"w\[1\] \(pid {pid}\) answers again after \d+ s", 1, 6)
    run.process.send_signal(signal.SIGTERM)
    ends(run, 143)


@case
def a_process_that_stays_silent_is_replaced(start):
    run = start("drive=serve", "replicas=2", "restarts=1", "silent=6")
    run.wait_out(r"pid w\[\d\] \d+", 2)
    pid = run.pid("w[1]")
    os.kill(pid, signal.SIGSTOP)
    run.wait_err(rf"w\[1\] \(pid {pid}\) has not answered for [67] s: it is killed", 1, 9)
    run.wait_err(rf"w\[1\] \(pid {pid}\) was killed by signal 9 \(SIGKILL\), by its node after [67] s without a sign of life; it was stopped")
    run.wait_out(r"pid w\[1\] \d+", 2)
    run.process.send_signal(signal.SIGTERM)
    ends(run, 143)


@case
def a_stopped_node_is_named_and_goes_on(start):
    run = start("drive=serve", "replicas=1")
    run.wait_out(r"pid w\[0\] \d+")
    node = run.pid("node")
    os.kill(node, signal.SIGSTOP)
    run.wait_err(rf"cast: the node part \(pid {node}\) has not answered for [56] s: its process is stopped \(state T\)", 1, 8)
    os.kill(node, signal.SIGCONT)
    run.wait_err(rf"cast: the node part \(pid {node}\) answers again after [5678] s", 1, 3)
    run.process.send_signal(signal.SIGTERM)
    ends(run, 143)
    check("killed" not in run.err(), run, "somebody was killed")


@case
def a_stopped_driver_is_named_and_goes_on(start):
    run = start("drive=serve", "replicas=1")
    run.wait_out(r"pid w\[0\] \d+")
    pid = run.process.pid
    os.kill(pid, signal.SIGSTOP)
    run.wait_err(rf"the driver \(pid {pid}\) has not answered for [45] s: its process is stopped", 1, 7)
    os.kill(pid, signal.SIGCONT)
    run.wait_err(rf"the driver \(pid {pid}\) goes on", 1, 3)
    run.process.send_signal(signal.SIGTERM)
    ends(run, 143)


@case
def a_node_that_stays_silent_is_replaced(start):
    run = start("drive=insist", "replicas=1", "silent=6")
    run.wait_out(r"pid w\[0\] \d+")
    node = run.pid("node")
    os.kill(node, signal.SIGSTOP)
    run.wait_err(rf"the node part \(pid {node}\) has not answered for [67] s: it is killed", 1, 9)
    run.wait_out(r"pid w\[0\] \d+", 2, 9)
    os.kill(run.process.pid, signal.SIGKILL)  # its successor watches too, though the node is no child of its
    run.process.wait(5)
    run.wait_out(r"driver \d+", 2)
    run.wait_out(r"pid w\[0\] \d+", 3)
    node = run.pid("node")
    os.kill(node, signal.SIGSTOP)
    run.wait_err(rf"the node part \(pid {node}\) has not answered for [67] s: it is killed", 1, 9)
    run.wait_out(r"pid w\[0\] \d+", 4, 9)
    os.kill(run.pid("cast"), signal.SIGTERM)
    run.gone()


@case
def a_watcher_that_was_stopped_itself_kills_nobody(start):
    run = start("drive=serve", "replicas=1", "silent=5")
    run.wait_out(r"pid w\[0\] \d+")
    names = run.pids()
    pids = sorted(names, key=lambda pid: names[pid] != "node")
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(7)
    for pid in pids:  # the node first: it looks before the worker can beat
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.6)
    time.sleep(1)
    check("killed" not in run.err(), run, "somebody was killed")
    run.process.send_signal(signal.SIGTERM)
    ends(run, 143)


@case
def a_stopped_process_does_not_hold_up_the_end(start):
    run = start("drive=serve", "replicas=2", "grace=30000")
    run.wait_out(r"pid w\[\d\] \d+", 2)
    os.kill(run.pid("w[1]"), signal.SIGSTOP)
    run.process.send_signal(signal.SIGTERM)
    check(run.end(12) == 143, run, "exit code")
    check("w[1] (pid" in run.err() and "it is killed" in run.err() and "w[0]: asked to stop" in run.err(), run, "words")


@case
def one_that_cannot_die_does_not_hold_up_the_end(start):
    run = start("drive=serve", "replicas=2", "grace=30000")
    run.wait_out(r"pid w\[\d\] \d+", 2)
    pid = run.pid("w[1]")
    # A process that somebody traces is not seen to be dead by its parent until the tracer has looked.
    if ctypes.CDLL(None).ptrace(ctypes.c_long(0x4206), ctypes.c_long(pid), None, None) != 0:
        print("        tracing is not allowed here")
        return
    os.kill(pid, signal.SIGSTOP)
    run.process.send_signal(signal.SIGTERM)
    code = run.process.wait(25)
    os.waitpid(pid, 0x40000000)
    run.gone()
    check(code == 143 and re.search(rf"w\[1\] \(pid {pid}\) was killed and is not dead after 5 s", run.err()), run, "named")


@case
def one_that_computes_for_very_long_is_named(start):
    run = start("method=block", "number=7000", "replicas=1", "silent=1")
    ends(run, 0, r"w\[0\] \(pid \d+\) is in player.block for 5.\d s: it computes for long, or it hangs")


@case
def a_pooled_actor_that_blocks_is_named(start):
    run = start("method=block", "number=6000", "replicas=1", "pooled=1", "after=1000")
    ends(run, 0, r"w\[0\] \(pid \d+\) is in pooled.block for [45].\d s", r"w\[0\] \(pid \d+\) goes on")


@case
def one_with_a_thread_of_its_own_may_compute(start):
    run = start("method=block", "number=6000", "replicas=1")
    ends(run, 0, "status OK")
    check("is in" not in run.err() and "answered" not in run.err(), run, "it was named")


# --- stopping --------------------------------------------------------------------------------------------------------------


@case
def a_signal_to_the_node_stops_all(start):
    run = start("drive=serve", "replicas=2")
    run.wait_out(r"pid w\[\d\] \d+", 2)
    os.kill(run.pid("node"), signal.SIGINT)
    ends(run, 130, "stopped")


@case
def a_run_is_stopped_while_it_starts(start):
    for ms in (5, 15, 25, 35, 50, 70):
        run = start("drive=serve", "replicas=3", "grace=3000")
        time.sleep(ms / 1000)
        run.process.send_signal(signal.SIGTERM)
        begun = time.monotonic()
        code = run.end()
        check(code in (143, -15) and time.monotonic() - begun < 4, run, f"{ms} ms: exit {code}")


@case
def a_second_signal_kills_all_at_once(start):
    for to in ("cast", "node"):
        run = start("drive=one", "method=block", "number=30000", "replicas=2", "grace=30000")
        run.wait_out(r"driver \d+")
        run.wait_for(lambda r=run: "w[1]" in r.pids().values(), "w[1]")
        time.sleep(0.3)
        begun = time.monotonic()
        pid = run.pid(to)
        os.kill(pid, signal.SIGTERM)
        time.sleep(1.2)
        os.kill(pid, signal.SIGTERM)
        code = run.process.wait(10)
        check(code in (-15, 143), run, f"{to}: exit {code}")
        run.gone()
        check(time.monotonic() - begun < 5, run, "at once")


@case
def a_reader_that_leaves_ends_no_run(start):
    for both in (False, True):
        run = start("drive=serve", "replicas=2", "restarts=-1", pipe=True, both=both)
        run.wait_for(lambda r=run: "w[1]" in r.pids().values(), "w[1]")
        run.process.stdout.close()
        pid = run.pid("w[0]")
        os.kill(pid, signal.SIGKILL)  # which is told to nobody
        run.wait_for(lambda r=run, p=pid: "w[0]" in r.pids().values() and p not in r.pids(), "w[0] again")
        run.process.send_signal(signal.SIGTERM)
        check(run.process.wait(20) == 143, run, "the run ends in order")
        run.gone()


@case
def too_few_descriptors_are_refused_by_name(start):
    run = start("drive=serve", "replicas=2", files=40)
    ends(run, 2, r"needs up to \d+ open files in a process, and the limit is 40; raise it")


@case
def a_batch_system_that_signals_every_process_gets_an_orderly_end(start):
    run = start("drive=one", "method=block", "number=2000", "replicas=2")
    run.wait_for(lambda: "w[1]" in run.pids().values(), "w[1]")
    time.sleep(0.5)
    for pid in sorted(run.pids(), key=lambda pid: pid != run.process.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        time.sleep(0.02)  # the driver passes its own on before the others get theirs
    ends(run, 143, r"w\[0\]: asked to stop", r"w\[1\]: asked to stop")
    with open(run.err_path, encoding="utf-8") as file:
        check("killed by signal" not in file.read(), run, "no worker died of it")


@case
def a_relay_that_is_late_counts_no_second_signal(start):
    run = start("drive=one", "method=block", "number=3000", "replicas=1")
    run.wait_for(lambda: "w[0]" in run.pids().values(), "w[0]")
    time.sleep(0.5)
    os.kill(run.pid("node"), signal.SIGTERM)
    time.sleep(1.3)
    run.process.send_signal(signal.SIGTERM)
    ends(run, 143, r"w\[0\]: asked to stop")


@case
def a_quit_ends_everything_at_once(start):
    run = start("drive=one", "method=block", "number=60000", "replicas=2")
    run.wait_for(lambda: "w[1]" in run.pids().values(), "w[1]")
    run.process.send_signal(signal.SIGQUIT)
    check(run.end(5) == -signal.SIGQUIT, run, "ended by SIGQUIT")


@case
def a_closed_terminal_ends_the_run_in_order(start):
    run = start("drive=serve", "replicas=2")
    run.wait_out(r"pid w\[\d\] \d+", 2)
    run.process.send_signal(signal.SIGHUP)
    run.process.send_signal(signal.SIGHUP)  # the terminal's and its shell's
    ends(run, 129, r"w\[0\]: asked to stop", r"w\[1\]: asked to stop")


@case
def the_grace_time_ends_with_a_kill_that_is_named(start):
    run = start("drive=one", "method=block", "number=60000", "replicas=2", "grace=700")
    run.wait_for(lambda: "w[1]" in run.pids().values(), "w[1]")
    time.sleep(0.5)
    run.process.send_signal(signal.SIGTERM)
    ends(run, 143, r"w\[0\] \(pid \d+\) did not end within its grace time: it is killed")


@case
def a_worker_dies_while_the_run_is_stopping(start):
    run = start("drive=one", "method=block", "number=60000", "replicas=2", "grace=3000")
    run.wait_for(lambda: "w[1]" in run.pids().values(), "w[1]")
    time.sleep(0.5)
    pid = run.pid("w[0]")
    run.process.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    os.kill(pid, signal.SIGKILL)
    ends(run, 143, rf"w\[0\] \(pid {pid}\) was killed by signal 9 .*, while the run was ending")


# --- the store ---------------------------------------------------------------------------------------------------------------


@case
def what_a_dead_worker_held_returns(start):
    for sealed in (0, 1):
        run = start("drive=leaks", f"number={sealed}", "replicas=2", "restarts=5")
        ends(run, 0, "objects before 0\n", "objects with 3\n", "objects after 0\n")


# --- the commands ------------------------------------------------------------------------------------------------------------


def troupe(run, *words):
    return subprocess.run([TROUPE, *words], env=run.environment, capture_output=True, text=True, timeout=LIMIT_S,
                          check=False)


@case
def status_shows_processes_and_waits(start):
    run = start("drive=one", "method=block", "number=20000", "replicas=2", "title=/tmp/some-run")
    run.wait_for(lambda: "w[1]" in run.pids().values(), "w[1]")
    time.sleep(0.5)
    shown = troupe(run, "status", "--waits", "--json", "/tmp/some-run/")
    check(shown.returncode == 0, run, shown.stderr)
    one = json.loads(shown.stdout)["runs"][0]
    processes = {p["name"]: p for p in one["status"]["processes"]}
    check(set(processes) == {"node", "driver", "w[0]", "w[1]"}, run, shown.stdout)
    check(all(p["pid"] in run.pids() for p in processes.values()), run, shown.stdout)
    check(processes["w[0]"]["doing"].startswith("player.block for "), run, shown.stdout)
    check(processes["w[0]"]["rss_bytes"] > 0 and processes["w[0]"]["answers"], run, shown.stdout)
    check(all(p["rss_bytes"] > 0 and p["starts"] == 1 and p["process_state"] in "RSD" for p in processes.values()), run,
          shown.stdout)
    silent = [loop for loop in one["waits"] if "silent" in loop]
    check(len(silent) == 1 and silent[0]["process"] == "w[0]", run, shown.stdout)
    waits = [w for loop in one["waits"] for w in loop.get("waits", []) if w["whom"] == "w[0].block"]
    check(len(waits) == 1 and waits[0]["who"] == "driver" and waits[0]["left_s"] > 0, run, shown.stdout)
    every = [w for loop in one["waits"] for w in loop.get("waits", [])]
    # What the question itself consists of is left out, and who waits for a time says what for.
    check(not any(w["whom"].endswith(".waits") for w in every), run, shown.stdout)
    timers = [w for w in every if w["kind"] == "timer"]
    check(timers and all(w["whom"] for w in timers), run, shown.stdout)
    plain = troupe(run, "status", "--waits")
    check("driver waits for answer w[0].block" in plain.stdout and "player.block" in plain.stdout, run, plain.stdout)
    stopped = troupe(run, "stop", "/tmp/some-run", "--grace", "1")
    check(stopped.returncode == 0 and "has ended" in stopped.stdout, run, stopped.stderr)
    ends(run, 143, r"w\[0\] \(pid \d+\) did not end within its grace time")


@case
def stop_means_the_run_of_that_directory(start):
    first = start("drive=serve", "replicas=1", "title=run")
    second = start("drive=serve", "replicas=1", "title=run/", env={"XDG_RUNTIME_DIR": first.dir})
    named = [start("drive=serve", "replicas=1", "title=some name", env={"XDG_RUNTIME_DIR": first.dir}) for _ in range(2)]
    for run in (first, second, *named):
        run.wait_out(r"pid w\[0\] \d+")
    for run in (first, second):
        os.makedirs(os.path.join(run.work, "run"))

    def stop(cwd, *words):
        return subprocess.run([TROUPE, "stop", *words], env=first.environment, capture_output=True, text=True,
                              timeout=LIMIT_S, check=False, cwd=cwd)

    nobody = stop(start.work, "run")
    check(nobody.returncode == 2 and "no run called" in nobody.stderr, first, nobody.stderr)
    both = stop(start.work, "some name")
    check(both.returncode == 2 and both.stderr.startswith('troupe stop: 2 runs are called "some name"'), first, both.stderr)
    check(len(both.stderr.splitlines()) == 3, first, both.stderr)
    check(stop(first.work, "run/").returncode == 0 and first.process.wait(LIMIT_S) == 143, first, "the first")
    check(second.process.poll() is None, second, "the second was stopped")
    check(stop(start.work, os.path.join(second.work, "run")).returncode == 0 and second.process.wait(LIMIT_S) == 143, second, "the second")
    for run in named:
        run.process.send_signal(signal.SIGTERM)
        check(run.process.wait(LIMIT_S) == 143, run, "by name")


@case
def no_grace_is_no_grace_and_a_later_stop_may_shorten_it(start):
    for words in (["0"], ["60", "0.5"]):
        run = start("drive=one", "method=block", "number=60000", "replicas=1", "title=r", "grace=50000")
        run.wait_for(lambda run=run: "w[0]" in run.pids().values(), "w[0]")
        time.sleep(0.5)
        begun = time.monotonic()
        asked = [subprocess.Popen([TROUPE, "stop", "r", "--grace", word], env=run.environment, stdout=subprocess.DEVNULL)
                 for word in words]
        check(all(stop.wait(LIMIT_S) == 0 for stop in asked), run, "troupe stop")
        check(time.monotonic() - begun < 20, run, f"{time.monotonic() - begun:.1f} s")
        ends(run, 143, r"w\[0\] \(pid \d+\) did not end within its grace time")
    for words, text in ((["x", "--grace", "3601"], "give seconds, 0 to 3600"), (["x", "--grac", "3"], "did you mean --grace"),
                        (["x", "--grace"], "give seconds"), (["x", "y"], "one word too many")):
        refused = troupe(run, "stop", *words)
        check(refused.returncode == 2 and text in refused.stderr, run, refused.stderr)
    check("did you mean --waits" in troupe(run, "status", "--wait").stderr, run, "status --wait")


@case
def a_stopped_process_is_told_by_status(start):
    run = start("drive=serve", "replicas=2")
    run.wait_out(r"pid w\[\d\] \d+", 2)
    pid = run.pid("w[1]")
    os.kill(pid, signal.SIGSTOP)
    time.sleep(5)
    shown = troupe(run, "status", "--waits")
    os.kill(pid, signal.SIGCONT)
    check(re.search(rf"w\[1\] +{pid} +up +T .*does not answer", shown.stdout), run, shown.stdout)
    check("w[1], loop main: silent: does not answer within 1 s" in shown.stdout, run, shown.stdout)
    check(troupe(run, "stop", os.listdir(os.path.join(run.dir, "troupe"))[0]).returncode == 0, run, "stop")
    ends(run, 143)


@case
def clean_removes_what_a_power_cut_leaves(start):
    run = start("drive=serve", "replicas=1")
    run.wait_out(r"pid w\[\d\] \d+")
    check(troupe(run, "clean").stdout == "", run, "a living run was cleaned")
    run.freeze(run.pid("node"))
    run.freeze(run.process.pid)
    for pid in list(run.pids()):
        with contextlib.suppress(ProcessLookupError):  # the node's end takes the workers along
            os.kill(pid, signal.SIGKILL)
    run.process.wait(5)
    run.wait_for(lambda: not run.pids(), "the end")
    check("dead; troupe clean" in troupe(run, "status").stdout, run, "status")
    check(troupe(run, "stop", "x").returncode == 2, run, "stop of nothing")
    cleaned = troupe(run, "clean")
    check(cleaned.returncode == 0 and cleaned.stdout.startswith("removed "), run, cleaned.stderr)
    check(troupe(run, "status").stdout == "no run is going on\n", run, "status after")
    run.gone()


def main():
    chosen = sys.argv[3:]
    failed = []
    for function in CASES:
        name = function.__name__
        if chosen and name not in chosen:
            continue
        work = tempfile.mkdtemp(prefix="troupe-test-")
        runs = []

        def start(*words, work=work, runs=runs, **options):
            folder = os.path.join(work, str(len(runs)))
            os.makedirs(folder)
            runs.append(Run(folder, *words, **options))
            return runs[-1]

        start.work = work
        begun = time.monotonic()
        try:
            function(start)
            print(f"ok      {time.monotonic() - begun:6.2f} s  {name}", flush=True)
        except (AssertionError, OSError, subprocess.SubprocessError, KeyError) as error:
            print(f"FAILED  {time.monotonic() - begun:6.2f} s  {name}: {error}", flush=True)
            failed.append(name)
        finally:
            for run in runs:
                run.clean()
            shutil.rmtree(work, ignore_errors=True)
    print(f"{len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
