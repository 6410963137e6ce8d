"""Kills and stops the processes of a running grpo job, and measures what it costs.

    chaos.py GRPO TROUPE OUT [--kinds rollout,reward,...] [--kills N] [--steps N] [--mode sync|async]
             [--signal KILL|STOP] [--stop-s S] [--gap S] [--seed N] [--json FILE] [-- GRPO OPTIONS]

Kinds are roles of the job (rollout, reward, reference, policy), `two` (two workers at once, of any
roles), `any` (a random worker), `node` and `driver`. For every kind jobs are run until N kills have
been made; within a job kills are a random time apart (mean --gap seconds after training goes on). Of
each kill it measures, from the outside:

    notice   until the job says that the process is gone (its line on standard error)
    again    until the next training step is on record (metrics.jsonl grows)
    caught   until a step is on record that was not before: what was undone is done again

and of each job: exit code, steps done, held-out accuracy, `troupe audit`, and that no process and no
object in shared memory is left (the node tells what is). With --mode sync the final model and optimiser are compared, byte for byte,
with those of a job that nobody disturbed. Exit 1 when anything of this fails.
"""
import argparse
import hashlib
import json
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time


def job_processes(program, out):
    """[(name, pid)] of a run: every process of it has the command line of the first, its name is
    its actor's, `node`, or, of the driver, the program's own."""
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/cmdline", "rb") as file:
                words = file.read().split(b"\0")
            with open(f"/proc/{entry}/comm", encoding="utf-8", errors="replace") as file:
                name = file.read().strip()
        except OSError:
            continue
        if words[0] == program.encode() and out.encode() in words:
            own = os.path.basename(program)[:15]
            found.append(("driver" if name == own else name, int(entry)))
    return found


def role_of(name):
    return name.split("[")[0]


class Job:
    """One run of grpo, its output read line by line with the time of each line."""

    def __init__(self, arguments, out, seed):
        self.out = out
        self.lines = []
        self.environment = dict(os.environ, NO_COLOR="1")
        command = [arguments.grpo, "--out", out, "--steps", str(arguments.steps), "--mode",
                   arguments.mode, "--seed", str(seed)] + arguments.options
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                        text=True, errors="replace", start_new_session=True)
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            self.lines.append((time.monotonic(), line.rstrip("\n")))

    def said(self, since, pattern):
        for when, line in self.lines:
            if when >= since and re.search(pattern, line):
                return when
        return None

    def steps(self):
        try:
            with open(os.path.join(self.out, "metrics.jsonl"), "rb") as file:
                return file.read().count(b"\n")
        except OSError:
            return 0

    def over(self):
        """The output ends when the last process that can write to it has gone."""
        return not self.reader.is_alive()

    def wait_step(self, size, timeout):
        """Until the record of steps grows from `size` on; a new policy or node may first cut it
        back to what its state covers. Returns the time (None: not yet) and the size to go on from."""
        end = time.monotonic() + timeout
        while True:
            now = self.size()
            if now > size:
                return time.monotonic(), now
            size = now
            if time.monotonic() >= end or self.over():
                return None, size
            time.sleep(0.002)

    def size(self):
        try:
            return os.stat(os.path.join(self.out, "metrics.jsonl")).st_size
        except OSError:
            return 0


def choose(kind, processes, rng):
    workers = [p for p in processes if role_of(p[0]) not in ("node", "driver")]
    if kind == "two":
        return rng.sample(workers, 2) if len(workers) >= 2 else []
    pool = workers if kind == "any" else [p for p in processes if role_of(p[0]) == kind]
    return [rng.choice(pool)] if pool else []


def digest(directory):
    """Of what a checkpoint holds of the model and the optimiser."""
    whole = hashlib.sha256()
    for name in sorted(os.listdir(directory)):
        if name.endswith(".safetensors"):
            with open(os.path.join(directory, name), "rb") as file:
                whole.update(name.encode() + hashlib.sha256(file.read()).digest())
    return whole.hexdigest()


def last_checkpoint(out):
    numbers = [int(n.split("-")[1]) for n in os.listdir(out) if re.fullmatch(r"checkpoint-\d+", n)]
    return os.path.join(out, f"checkpoint-{max(numbers)}") if numbers else None


def leftovers(pids):
    left = []
    for pid in pids:
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
                if file.read().rsplit(")", 1)[1].split()[0] != "Z":
                    left.append(pid)
        except OSError:
            pass
    return left


class Chaos:
    def __init__(self, arguments):
        self.arguments = arguments
        self.rng = random.Random(arguments.seed)
        self.failures = []
        self.rows = []
        self.undisturbed = {}

    def fail(self, text):
        self.failures.append(text)
        print(f"FAILED: {text}", flush=True)

    def strike(self, job, victims):
        """One kill (or stop) of `victims`; its times in seconds, None for what was not seen."""
        size, steps = job.size(), job.steps()
        begin = time.monotonic()
        for _, pid in victims:
            try:
                os.kill(pid, signal.SIGKILL if self.arguments.signal == "KILL" else signal.SIGSTOP)
            except ProcessLookupError:
                return None
        if self.arguments.signal == "STOP":
            time.sleep(self.arguments.stop_s)
            named = all(job.said(begin, re.escape(name) + r".*(not answered|stopped)") or
                        job.said(begin, f"pid {pid}.*(not answered|stopped)")
                        for name, pid in victims)
            for _, pid in victims:
                try:
                    os.kill(pid, signal.SIGCONT)
                except ProcessLookupError:
                    pass
            again, _ = job.wait_step(job.size(), 120)
            return {"victims": [v[0] for v in victims], "named": named,
                    "again": again - begin - self.arguments.stop_s if again else None}
        pattern = "|".join(rf"pid {pid}\b.*(killed|gone|died|ended)" for _, pid in victims)
        notice = None
        again = None
        end = begin + 120
        while time.monotonic() < end and again is None and not job.over():
            notice = notice or job.said(begin, pattern)
            again, size = job.wait_step(size, 0.02)
            # A step that was under way when its process was killed does not count.
            again = again if notice is not None else None
        notice = notice or job.said(begin, pattern)
        caught_up = None
        while time.monotonic() < end and caught_up is None and not job.over():
            caught_up = time.monotonic() if job.steps() > steps else None
            time.sleep(0.005)
        return {"victims": [v[0] for v in victims], "notice": notice - begin if notice else None,
                "again": again - begin if again else None,
                "caught_up": caught_up - begin if caught_up else None}

    def run(self, kind, number, seed, kills_left):
        out = os.path.join(self.arguments.out, f"{kind}-{number}")
        shutil.rmtree(out, ignore_errors=True)
        begin = time.monotonic()
        job = Job(self.arguments, out, seed)
        pids = set()
        made = []
        while not job.over():
            job.wait_step(job.size(), 60)
            time.sleep(self.rng.expovariate(1 / self.arguments.gap) if kind else 0.5)
            if kind is None or len(made) >= kills_left or job.over():
                continue
            processes = job_processes(self.arguments.grpo, out)
            pids.update(pid for _, pid in processes)
            victims = choose(kind, processes, self.rng)
            if not victims or job.steps() >= self.arguments.steps:
                continue
            struck = self.strike(job, victims)
            if struck is not None:
                made.append(struck)
        code = job.process.wait(timeout=120)
        wall = time.monotonic() - begin
        self.check(kind, number, seed, job, code, pids, made)
        return made, wall, job

    def check(self, kind, number, seed, job, code, pids, made):
        where = f"{kind or 'undisturbed'} job {number}"
        driver_killed = kind == "driver" and any(self.arguments.signal == "KILL" for _ in made)
        if code != 0 and not (driver_killed and code == -signal.SIGKILL):
            self.fail(f"{where}: exit code {code}: {[line for _, line in job.lines[-6:]]}")
        if job.steps() != self.arguments.steps:
            self.fail(f"{where}: {job.steps()} of {self.arguments.steps} steps are on record")
        if job.said(0, "were not released by the end"):
            self.fail(f"{where}: {[line for _, line in job.lines if 'were not released' in line]}")
        audit = subprocess.run([self.arguments.troupe, "audit", job.out], capture_output=True,
                               text=True, timeout=300, check=False)
        if audit.returncode != 0:
            self.fail(f"{where}: audit: {audit.stdout[-600:]}{audit.stderr[-300:]}")
        time.sleep(0.3)
        left = leftovers(pids)
        if left:
            self.fail(f"{where}: processes left: {left}")
        if self.arguments.mode == "sync":
            checkpoint = last_checkpoint(job.out)
            bits = digest(checkpoint) if checkpoint else "none"
            if kind is None:
                self.undisturbed[seed] = bits
            elif bits != self.undisturbed[seed]:
                self.fail(f"{where}: the final checkpoint differs from the undisturbed run's")

    def accuracy(self, job):
        with open(os.path.join(job.out, "metrics.jsonl"), encoding="utf-8") as file:
            values = [json.loads(line).get("accuracy") for line in file]
        values = [v for v in values if v is not None]
        return values[-1] if values else float("nan")

    def kind(self, kind):
        made, jobs, accuracies, walls = [], 0, [], []
        while len(made) < self.arguments.kills and jobs < 4 * self.arguments.kills:
            more, wall, job = self.run(kind, jobs, self.arguments.seed, self.arguments.kills - len(made))
            made += more
            jobs += 1
            walls.append(wall)
            accuracies.append(self.accuracy(job))
            if self.failures and self.arguments.keep_going is False:
                break
        self.row(kind, made, jobs, accuracies, walls)

    def row(self, kind, made, jobs, accuracies, walls):
        def spread(key):
            values = sorted(m[key] for m in made if m.get(key) is not None)
            if not values:
                return "-", len(made)
            p50 = statistics.median(values)
            p99 = values[min(len(values) - 1, int(0.99 * len(values)))]
            return f"{p50:.3f} / {p99:.3f}", len(made) - len(values)
        notice, unseen = spread("notice")
        again, never = spread("again")
        caught_up, _ = spread("caught_up")
        lost = sum(m.get("caught_up") or 0 for m in made)
        named = f", named {sum(1 for m in made if m.get('named'))}" if any("named" in m for m in made) else ""
        text = (f"| {kind or 'none'} | {len(made)}{named} | {jobs} | {notice} | {again} | "
                f"{caught_up} | {statistics.mean(accuracies):.3f} | {statistics.mean(walls):.1f} | "
                f"{100 * (1 - lost / sum(walls)):.1f} % |")
        print(text + (f"   ({unseen} not told, {never} at the end)" if unseen or never else ""), flush=True)
        self.rows.append({"kind": kind, "kills": made, "jobs": jobs, "accuracy": accuracies,
                          "wall_s": walls})


def main():
    own = sys.argv[1:]
    options = []
    if "--" in own:
        options = own[own.index("--") + 1:]
        own = own[:own.index("--")]
    parser = argparse.ArgumentParser()
    parser.add_argument("grpo")
    parser.add_argument("troupe")
    parser.add_argument("out")
    parser.add_argument("--kinds", default="rollout,reward,reference,policy,two,node,driver")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--mode", default="async")
    parser.add_argument("--signal", default="KILL", choices=["KILL", "STOP"])
    parser.add_argument("--stop-s", type=float, default=30)
    parser.add_argument("--gap", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json")
    parser.add_argument("--keep-going", action="store_true")
    arguments = parser.parse_args(own)
    arguments.options = options
    os.makedirs(arguments.out, exist_ok=True)
    chaos = Chaos(arguments)
    print("| killed | kills | jobs | notice p50 / p99 s | training again p50 / p99 s | caught up p50 / p99 s "
          "| accuracy | job s | time not lost |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |", flush=True)
    _, wall, job = chaos.run(None, 0, arguments.seed, 0)
    chaos.row(None, [], 1, [chaos.accuracy(job)], [wall])
    for kind in arguments.kinds.split(","):
        if chaos.failures and not arguments.keep_going:
            break
        chaos.kind(kind)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump({"rows": chaos.rows, "failures": chaos.failures}, file, indent=1)
    print(f"{len(chaos.failures)} failures")
    sys.exit(1 if chaos.failures else 0)


if __name__ == "__main__":
    main()
