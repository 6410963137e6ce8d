"""Ray's own microbenchmark rows, in the form in which troupe's bench_rates prints its own.

    ray_rates.py [--quick] [--json FILE]

The rows, their arguments and the timing rule (warm up a second, then four repeats of two seconds,
mean of the four) are those of `ray microbenchmark`; --quick takes two repeats of one second. Rows
of n actors use n = half of the cores, at least 1. Where Ray is not installed it prints "not run".
"""
import argparse
import json
import os
import statistics
import sys
import time

try:
    import numpy as np
    import ray
except ImportError as missing:
    print(f"ray: not run ({missing})")
    sys.exit(0)


@ray.remote(num_cpus=0)
class Server:
    def small_value(self):
        return b"ok"

    def small_value_arg(self, _value):
        return b"ok"


@ray.remote(num_cpus=0)
class Client:
    def __init__(self, servers):
        self.servers = servers

    def batch(self, calls):
        done = []
        for server in self.servers:
            done.extend(server.small_value.remote() for _ in range(calls))
        ray.get(done)


@ray.remote
def work(actors, calls):
    ray.get([actors[i % len(actors)].small_value.remote() for i in range(calls)])


def timed(function, multiplier, repeats, seconds):
    begin, count = time.perf_counter(), 0
    while time.perf_counter() - begin < seconds / 2:
        function()
        count += 1
    step = count // 10 + 1
    rates = []
    for _ in range(repeats):
        begin, count = time.perf_counter(), 0
        while time.perf_counter() - begin < seconds:
            for _ in range(step):
                function()
            count += step
        rates.append(multiplier * count / (time.perf_counter() - begin))
    return rates


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    repeats, seconds = (2, 1.0) if arguments.quick else (4, 2.0)
    ray.init(num_cpus=max(4, os.cpu_count()), include_dashboard=False, log_to_driver=False,
             object_store_memory=2 * 10**9)
    n = max(1, os.cpu_count() // 2)
    server = Server.remote()
    servers = [Server.remote() for _ in range(n)]
    client = Client.remote(servers)
    small = ray.put(0)
    zeros = np.zeros(10 * 2**20, dtype=np.int64)  # 84 MB; never written, as in Ray's own row
    ones = np.ones(2**17, dtype=np.int64)  # 1 MiB, written
    calls = 1000

    def spawn():
        made = [Server.remote() for _ in range(4)]
        ray.get([actor.small_value.remote() for actor in made])
        for actor in made:
            ray.kill(actor)

    rows = [
        ("1:1 actor calls sync", lambda: ray.get(server.small_value.remote()), 1),
        ("1:1 actor calls async", lambda: ray.get(
            [server.small_value.remote() for _ in range(calls)]), calls),
        ("1:1 actor calls with object", lambda: ray.get(
            [server.small_value_arg.remote(small) for _ in range(calls)]), calls),
        ("1:n actor calls async", lambda: ray.get(client.batch.remote(calls)), calls * n),
        ("n:n actor calls async", lambda: ray.get(
            [work.remote(servers, calls) for _ in range(2)]), 2 * calls),
        ("get calls (small object)", lambda: ray.get(small), 1),
        ("put calls (small object)", lambda: ray.put(0), 1),
        ("put 1 MiB, written (GB/s)", lambda: ray.put(ones), ones.nbytes / 1e9),
        ("put 84 MB, zero pages (GB/s)", lambda: ray.put(zeros), zeros.nbytes / 1e9),
        ("process actors created and called", spawn, 4),
    ]
    out = []
    for name, function, multiplier in rows:
        rates = timed(function, multiplier, repeats, seconds)
        mean, deviation = statistics.mean(rates), statistics.pstdev(rates)
        print(f"{name:44s} {mean:14.2f} /s   sd {deviation:.2f}", flush=True)
        out.append({"row": name, "per_s": mean, "sd": deviation})
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump({"system": "ray", "version": ray.__version__, "rows": out}, file, indent=1)
    ray.shutdown()


if __name__ == "__main__":
    main()
