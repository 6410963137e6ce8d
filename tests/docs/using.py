#!/usr/bin/env python3
"""docs/USING.md against a run: its tables and lists name what there is, all of it and nothing else.

Usage: using.py SOURCE_DIR GRPO WORK_DIR
"""
import json
import os
import re
import shutil
import subprocess
import sys


def section(text, title):
    """What stands between a heading and the next one of its rank or above."""
    match = re.search(rf"^(#+) {re.escape(title)}$\n(.*?)(?=^#{{1,3}} |\Z)", text, flags=re.M | re.S)
    return match.group(2) if match else ""


def first_cells(text):
    """The `names` in the first cell of each row of the tables."""
    names = set()
    for line in text.split("\n"):
        if line.startswith("| `"):
            names |= set(re.findall(r"`([^`]+)`", line.split(" | ")[0]))
    return names


def compare(what, documented, real):
    for name in sorted(real - documented):
        yield f"{what}: {name} exists and is not in USING.md"
    for name in sorted(documented - real):
        yield f"{what}: {name} is in USING.md and does not exist"


def keys(path):
    with open(path, encoding="utf-8") as file:
        return set().union(*(json.loads(line).keys() for line in file))


def check(source, grpo, work):
    with open(os.path.join(source, "docs/USING.md"), encoding="utf-8") as file:
        text = file.read()
    run = os.path.join(work, "run")
    done = subprocess.run([grpo, "--task", "add", "--steps", "2", "--batch", "4", "--group-size", "4", "--eval-limit",
                           "20", "--out", run], capture_output=True, text=True, timeout=60)
    if done.returncode != 0:
        yield f"grpo: exit {done.returncode}\n{done.stdout}{done.stderr}"
        return
    yield from compare("metrics.jsonl", first_cells(section(text, "metrics.jsonl")), keys(f"{run}/metrics.jsonl"))
    # A reason is only there for a sample that was not trained on.
    yield from compare("samples.jsonl", first_cells(section(text, "samples.jsonl")),
                       keys(f"{run}/samples.jsonl") - {"reason"})
    yield from compare("run directory", {name.replace("-N/", "-2") for name in
                                         first_cells(section(text, "The run directory"))}, set(os.listdir(run)))
    yield from compare("checkpoint", first_cells(section(text, "checkpoint-N")), set(os.listdir(f"{run}/checkpoint-2")))
    # The option language names its words when one is unknown.
    options = section(text, "Options of grpo, by theme")
    said = subprocess.run([grpo, "--help"], capture_output=True, text=True, timeout=20).stdout
    yield from compare("options", set(re.findall(r"`--([a-z0-9-]+)", options)),
                       set(re.findall(r"^  --([a-z0-9-]+)", said, flags=re.M)))
    for option in ("algo", "correction"):
        said = subprocess.run([grpo, f"--{option}", "no such", "--out", f"{run}-x"], capture_output=True, text=True,
                              timeout=20).stderr
        known = said.split("known: ")[-1].strip().split(", ")
        for name in known:
            if f"`{name}`" not in options:
                yield f"--{option}: {name} is not in USING.md"
    rewards = section(text, "Rewards")
    said = subprocess.run([grpo, "--reward", "no such", "--out", f"{run}-x"], capture_output=True, text=True,
                          timeout=20).stderr
    for name in first_cells(rewards):
        if name not in said:
            yield f"--reward: {name} is in USING.md, and grpo does not offer it: {said}"
    for content, path in re.findall(r"^```\w+ from=(\S+)\n(.*?)^```", text, flags=re.M | re.S):
        with open(os.path.join(source, content), encoding="utf-8") as file:
            if path not in file.read():
                yield f"{content} does not hold the text that USING.md shows of it"


def main():
    source, grpo, work = sys.argv[1:4]
    shutil.rmtree(work, ignore_errors=True)
    os.makedirs(work)
    wrong = list(check(source, grpo, work))
    for line in wrong:
        print(line)
    print(f"USING.md: {len(wrong)} things do not hold")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
