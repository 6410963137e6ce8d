#!/usr/bin/env python3
"""More of processes.py: what only shows when a death meets another death, a stop or a restart at a moment that the test
chooses. Nothing is slept for: a process is held by a file, or says itself how far it is. Usage: survive.py CAST TROUPE
[CASE...]"""
import json
import os
import re
import signal

import processes
from processes import case, check, ends, troupe

processes.CASES.clear()


def touch(start, name):
    path = os.path.join(start.work, name)
    with open(path, "w", encoding="utf-8"):
        pass
    return path


def last_pid(run, name):
    return int(re.findall(rf"pid {re.escape(name)} (\d+)", run.out())[-1])


# --- the directory ---------------------------------------------------------------------------------------------------


@case
def one_that_starts_slowly_hears_who_came_meanwhile(start):
    hold = os.path.join(start.work, "hold")
    run = start("drive=serve", "method=peer", "replicas=2", "restarts=-1", "backoff=1", f"hold={hold}")
    run.wait_out(r"pid w\[0\] \d+")
    before = run.pid("w[1]")
    touch(start, "hold")
    os.kill(run.pid("w[0]"), signal.SIGKILL)
    run.wait_err(r"w\[0\]: held in init")
    os.kill(before, signal.SIGKILL)
    run.wait_err(r"w\[1\] \(pid \d+\) is up again")
    os.unlink(hold + ".held")
    run.wait_out(rf"pid w\[0\] {run.pid('w[1]')}\n")
    run.process.send_signal(signal.SIGTERM)
    ends(run, 143)


# --- limits ------------------------------------------------------------------------------------------------------------


@case
def one_death_of_a_place_is_one_for_each_of_its_roles(start):
    run = start("drive=serve", "replicas=1", "place=gpu", "restarts=2", "backoff=100")
    run.wait_out(r"pid w\[0\] \d+")
    os.kill(run.pid("gpu[0]"), signal.SIGKILL)
    run.wait_err(r"gpu\[0\] .*SIGKILL.*; it is made again in 0.1 s, 1 restarts left")
    run.process.send_signal(signal.SIGTERM)
    ends(run, 143)


@case
def a_node_that_dies_over_and_over_is_given_up(start):
    run = start("drive=serve", "replicas=1")
    killed = set()
    for _ in range(16):
        run.wait_for(lambda: run.process.poll() is not None or set(nodes(run)) - killed, "a node")
        for pid in nodes(run):
            killed.add(pid)
            os.kill(pid, signal.SIGKILL)
    ends(run, 1, r"cast: the node part .*SIGKILL.*; it was started \d+ times and is not started again")


def nodes(run):
    return [pid for pid, name in run.pids().items() if name == "node"]


@case
def a_driver_that_dies_over_and_over_is_given_up(start):
    run = start("drive=serve", "replicas=1")
    for i in range(16):
        run.wait_for(lambda i=i: len(drivers(run)) > i or not run.pids(), "a driver or the end")
        if len(drivers(run)) > i:
            os.kill(drivers(run)[i], signal.SIGKILL)
    run.gone()
    check(len(drivers(run)) < 16, run, "no end")


def drivers(run):
    return [int(pid) for pid in re.findall(r"driver (\d+)\n", run.out())]


# --- what a death leaves --------------------------------------------------------------------------------------------------


@case
def restarts_leave_no_descriptor_behind(start):
    run = start("drive=serve", "replicas=1", "restarts=-1", "backoff=1")
    run.wait_out(r"pid w\[0\] \d+")
    node = run.pid("node")

    def again(said):
        os.kill(run.pid("w[0]"), signal.SIGKILL)
        run.wait_out(r"pid w\[0\] \d+", said + 1)
        os.kill(drivers(run)[-1], signal.SIGKILL)
        run.wait_out(r"pid w\[0\] \d+", said + 2)

    def descriptors():
        return len(os.listdir(f"/proc/{node}/fd"))

    again(1)
    before = descriptors()
    again(3)
    again(5)
    run.wait_for(lambda: descriptors() <= before, f"{before} descriptors again, now {descriptors()}", 5)
    os.kill(node, signal.SIGTERM)
    run.gone()


@case
def what_a_dead_driver_held_returns(start):
    run = start("drive=hoard", "replicas=1")
    run.wait_out("objects 1\n")
    run.process.kill()
    run.wait_out("objects 1\n", 2)
    os.kill(run.pid("node"), signal.SIGTERM)
    run.gone()


@case
def who_waits_hears_of_the_node_s_death(start):
    run = start("method=block", "number=60000", "replicas=1")
    run.wait_for(lambda: doing(run).startswith("player.block"), "the call")
    node = run.pid("node")
    os.kill(node, signal.SIGKILL)
    ends(run, 0, rf"block: DIED w\[0\].block: the node part \(pid {node}\) was killed by signal 9", "life 2")


def doing(run):
    shown = troupe(run, "status", "--json")
    runs = json.loads(shown.stdout)["runs"] if shown.returncode == 0 else []
    processes_ = runs[0]["status"].get("processes", []) if runs else []
    return "".join(p.get("doing", "") for p in processes_ if p["name"] == "w[0]")


# --- stopping ----------------------------------------------------------------------------------------------------------------


@case
def status_and_stop_while_one_is_down(start):
    run = start("drive=serve", "replicas=2", "restarts=-1", "backoff=10000")
    run.wait_out(r"pid w\[\d\] \d+", 2)
    os.kill(run.pid("w[1]"), signal.SIGKILL)
    run.wait_err(r"w\[1\] .*; it is made again in 10.0 s")
    shown = troupe(run, "status", "--json")
    found = {p["name"]: p for p in json.loads(shown.stdout)["runs"][0]["status"]["processes"]}
    check(found["w[1]"]["state"] == "down" and found["w[1]"]["pid"] == 0, run, shown.stdout)
    run.process.send_signal(signal.SIGTERM)
    ends(run, 143, "stopped")


@case
def a_stop_does_not_wait_for_one_that_is_coming(start):
    early = os.path.join(start.work, "early")
    run = start("drive=serve", "replicas=2", "restarts=-1", "backoff=1", f"early={early}")
    run.wait_out(r"pid w\[\d\] \d+", 2)
    touch(start, "early")
    os.kill(run.pid("w[1]"), signal.SIGKILL)
    run.wait_err(r"w\[1\]: held before it is a worker")
    run.process.send_signal(signal.SIGTERM)
    ends(run, 143, r"w\[1\] \(pid \d+\) was killed .*, while the run was ending")
    check("grace time" not in run.err(), run, "it was waited for")


@case
def a_stop_has_the_grace_time_that_was_asked_for(start):
    run = start("method=block", "number=600000", "replicas=1", "grace=600000")
    run.wait_for(lambda: doing(run).startswith("player.block"), "the call")
    name = os.listdir(os.path.join(run.dir, "troupe"))[0]
    check(troupe(run, "stop", name, "--grace", "0.2").returncode == 0, run, "stop")
    ends(run, 143, r"w\[0\] \(pid \d+\) did not end within its grace time")


@case
def a_node_that_dies_at_the_end_is_not_replaced(start):
    run = start("method=stay", "replicas=1", "grace=600000")
    run.wait_err(r"w\[0\]: asked to stop")
    os.kill(run.pid("node"), signal.SIGKILL)
    ends(run, 1, r"cast: the node part \(pid \d+\) was killed by signal 9 .*, while the run was ending")
    check("life 2" not in run.err(), run, "replaced")


# --- codes -------------------------------------------------------------------------------------------------------------------


@case
def a_quit_as_the_actors_come_up_ends_the_run_with_its_code(start):
    for moment in ("init", "start"):
        for words in ((), ("--colocate",)):
            run = start(*words, f"quit={moment}", "drive=serve", "replicas=2")
            ends(run, 9)
            check("life 2" not in run.err() and "pid w" not in run.out(), run, "not ended")


@case
def the_code_of_a_quit_comes_before_what_drive_returns(start):
    ends(start("drive=quit", "replicas=1"), 77)
    ends(start("--colocate", "drive=quit", "replicas=1"), 77)


@case
def the_exit_of_the_driver_fails_its_run(start):
    for words in ((), ("--colocate",)):
        ends(start(*words, "drive=exit", "replicas=1"), 1, "cast: the driver: it has enough")


@case
def an_actor_that_is_freed_at_the_end_makes_no_other(start):
    for words in ((), ("--colocate",)):
        run = start(*words, "method=echo", "text=a", "fini=spawn", "replicas=2", "pooled=1")
        ends(run, 0, "spawn in fini: STOPPED")
        check("invariant" not in run.err() and "killed" not in run.err(), run, "a crash")


if __name__ == "__main__":
    raise SystemExit(processes.main())
