#!/usr/bin/env python3
"""Runs a guide: its programs are built and its console sessions compared, so that what it says holds.

In the fences of the guide
    ```c file=NAME       is (a further part of) a file
    ```c from=PATH       is text that stands, just so, in a file of the source tree
    ```console           are commands (after "$ ") and what they print
Other fences are only read by people. Usage: guide.py GUIDE SOURCE_DIR PREFIX WORK_DIR
"""
import os
import re
import shutil
import subprocess
import sys


def blocks(text):
    """(info string, first line's number, content) of each fenced block."""
    info, start, content = None, 0, []
    for number, line in enumerate(text.split("\n"), 1):
        if line.startswith("```"):
            if info is None:
                info, start, content = line[3:].strip(), number + 1, []
            else:
                yield info, start, "\n".join(content) + "\n"
                info = None
        elif info is not None:
            content.append(line)


def sessions(content):
    """(command, expected output) pairs."""
    pairs = []
    for line in content.rstrip("\n").split("\n"):
        if line.startswith("$ "):
            pairs.append([line[2:], ""])
        else:
            pairs[-1][1] += line + "\n"
    return pairs


def run(command, work, prefix):
    env = dict(os.environ, PKG_CONFIG_PATH=f"{prefix}/lib/pkgconfig", LD_LIBRARY_PATH=f"{prefix}/lib", LC_ALL="C")
    done = subprocess.run(["bash", "-c", command], cwd=work, env=env, capture_output=True, text=True, timeout=40)
    return done.returncode, done.stdout, done.stderr


def check(guide, source, prefix, work):
    with open(guide, encoding="utf-8") as file:
        text = file.read()
    written, commands = set(), 0
    for info, number, content in blocks(text):
        where = f"{os.path.basename(guide)}:{number}"
        named = re.search(r"\b(file|from)=(\S+)", info)
        if named and named.group(1) == "file":
            mode = "a" if named.group(2) in written else "w"
            with open(os.path.join(work, named.group(2)), mode, encoding="utf-8") as file:
                file.write(content)
            written.add(named.group(2))
        elif named:
            with open(os.path.join(source, named.group(2)), encoding="utf-8") as file:
                if content not in file.read():
                    yield f"{where}: {named.group(2)} does not hold this text"
        elif info == "console":
            for command, expected in sessions(content):
                commands += 1
                code, out, err = run(command, work, prefix)
                if code != 0 or out != expected:
                    yield f"{where}: $ {command}\nexit {code}, expected\n{expected}but it printed\n{out}{err}"
        elif info.split(" ")[0] in ("c", "cpp"):
            yield f"{where}: a block of {info} that names no file is compiled by nobody"
    if not written or not commands:
        yield f"{guide}: no programs or no commands in it"


def main():
    guide, source, prefix, work = sys.argv[1:5]
    shutil.rmtree(work, ignore_errors=True)
    os.makedirs(work)
    wrong = list(check(guide, source, prefix, work))
    for line in wrong:
        print(line)
    print(f"{os.path.basename(guide)}: {len(wrong)} things do not hold")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
