#!/usr/bin/env python3
"""The house rules that a program can check: run by ctest as `tidy`, with tests of its own (--self-test).

1. Includes: only headers below an include/ cross a top folder's line; inside runtime/ left may not see right.
2. Symbols: each outside library and each source of time, chance and threads is used in its home only
   (undefined symbols of the object files, so that no macro or wrapper hides one).
3. No mutable globals of ours (.data and .bss of the object files are empty but where listed).
4. Lengths: .c files 700 lines, headers 350, functions 70 lines, lines 100 columns, no tabs.
5. Roles compare times of troupe_now_ns only: tr_now_ns is for statistics, and no simulator can move it.
6. Banned names, leftover promises, files that no CMakeLists or *.cmake names.

Usage: tidy.py SOURCE_DIR [BUILD_DIR]      each violation on a line of its own; exit 1 when there is one.
"""
import os
import re
import subprocess
import sys
import tempfile

RUNTIME_ORDER = ["base", "sys", "mem", "wire", "link", "loop", "actor", "store", "stream", "node", "sim"]
# Which top folders' public headers a top folder may include besides its own.
SEES = {
    "runtime": {"runtime"},
    "kernels": {"runtime", "kernels"},
    "scheduler": {"runtime", "scheduler"},
    "actors": {"runtime", "kernels", "scheduler", "actors"},
}
OWN_CLOCK = re.compile(r"tr_now_ns\(\).*[^-][<>]|[^-][<>].*tr_now_ns\(\)")
# symbol pattern -> path prefixes (of the source) in which it may be used
HOMES = [
    (r"clock_gettime|gettimeofday|time|clock|nanosleep|clock_nanosleep|usleep|sleep", ["runtime/sys/"]),
    (r"getrandom|getentropy|rand|srand|random|srandom|rand_r|drand48", ["runtime/sys/"]),
    (r"pthread_(create|join|mutex_.*|cond_.*|rwlock_.*|spin_.*|detach)|thrd_.*|mtx_.*|cnd_.*", ["runtime/sys/"]),
    (r"fork|vfork|posix_spawnp?|execv.*|waitpid|waitid", ["runtime/sys/"]),
    (r"zmq_.*", ["runtime/link/zmq"]),
    (r"sqlite3_.*", ["runtime/node/"]),
    (r"dnnl_.*", ["kernels/cpu/"]),
    (r"hwloc_.*", ["scheduler/"]),
    (r"msgpack_(?!pack_).*", []),
    (r"(cuda|cublas|nccl|cudnn).*|cu[A-Z].*", ["kernels/cuda/"]),
    (r"dlopen|dlsym", ["kernels/cuda/", "runtime/sys/"]),
    (r"mallocx|sdallocx|mallctl", ["runtime/mem/"]),
    (r"pcre2_.*", ["actors/reward/"]),
    (r"utf8proc_.*", ["actors/lm/"]),
    (r"strcpy|strcat|sprintf|vsprintf|gets|atoi|atol|atof|strtok", []),
    (r"__assert_fail", []),
]
# object file (source path prefix) -> why it may hold mutable data
GLOBALS_ALLOWED = {"runtime/sys/": "the process has one set of signal handlers"}
LINE_LIMIT, C_LIMIT, H_LIMIT, FUNCTION_LIMIT = 100, 700, 350, 70
BANNED = [(re.compile(r"\b(assert)\("), "TR_ASSERT"), (re.compile(r"\b(TODO|FIXME|XXX)\b"), "do it or file it")]


def sources(root):
    for top in ("runtime", "kernels", "scheduler", "actors", "examples", "tests", "bench"):
        for folder, dirs, files in os.walk(os.path.join(root, top)):
            dirs.sort()
            for name in sorted(files):
                if name.endswith((".c", ".h", ".cu", ".cuh")):
                    yield os.path.relpath(os.path.join(folder, name), root)


def public_headers(root):
    """header name as included -> top folder"""
    found = {}
    for top in SEES:
        base = os.path.join(root, top, "include")
        for folder, _, files in os.walk(base):
            for name in files:
                if name.endswith(".h"):
                    found[os.path.relpath(os.path.join(folder, name), base)] = top
    return found


def check_includes(path, text, headers):
    top = path.split("/")[0]
    if top not in SEES:
        return
    for number, line in enumerate(text.split("\n"), 1):
        match = re.match(r'\s*#\s*include\s+[<"]([^>"]+)[>"]', line)
        if not match:
            continue
        name = match.group(1)
        if "../" in name:
            yield f"{path}:{number}: include by ../ ({name}); name it from the folder's include directory"
        if name in headers and headers[name] not in SEES[top]:
            yield f"{path}:{number}: {top}/ may not see {headers[name]}/ ({name})"
        parts = path.split("/")
        if top == "runtime" and len(parts) > 2 and parts[1] in RUNTIME_ORDER:
            target = name.split("/")[0]
            if target in RUNTIME_ORDER and RUNTIME_ORDER.index(target) > RUNTIME_ORDER.index(parts[1]):
                yield f"{path}:{number}: runtime/{parts[1]} may not see runtime/{target} ({name})"


def functions(lines):
    """(name, first line, length) of each function body that starts with a brace in column 0."""
    start = None
    for i, line in enumerate(lines):
        if line == "{":
            start = i
        elif line == "}" and start is not None:
            name = ""
            for j in range(start - 1, max(start - 30, -1), -1):
                match = re.match(r"(\w+)\(", lines[j])
                if match:
                    name = match.group(1)
                    break
            yield name, start + 1, i - start - 1
            start = None


def check_text(path, text):
    lines = text.split("\n")
    limit = H_LIMIT if path.endswith((".h", ".cuh")) else C_LIMIT
    if len(lines) - 1 > limit:
        yield f"{path}: {len(lines) - 1} lines, the limit is {limit}; split it by what it does"
    for number, line in enumerate(lines, 1):
        if "\t" in line:
            yield f"{path}:{number}: a tab"
        if len(line) > LINE_LIMIT:
            yield f"{path}:{number}: {len(line)} columns"
        if path.startswith("actors/") and OWN_CLOCK.search(line):
            yield f"{path}:{number}: a decision by a clock of its own; use troupe_now_ns"
        if not path.startswith("tests/tidy"):
            for pattern, remedy in BANNED:
                if pattern.search(line) and "static_assert" not in line:
                    yield f"{path}:{number}: {pattern.search(line).group(1)}: {remedy}"
    for name, number, length in functions(lines):
        if length > FUNCTION_LIMIT:
            yield f"{path}:{number}: {name} has {length} lines, the limit is {FUNCTION_LIMIT}"


def object_source(obj):
    """build/x/runtime/CMakeFiles/troupe_runtime.dir/base/alloc.c.o -> runtime/base/alloc.c"""
    match = re.search(r"((?:runtime|kernels|scheduler|actors)(?:/[\w/]+)?)/CMakeFiles/[\w.-]+\.dir/(.*)\.o$", obj)
    return os.path.normpath(f"{match.group(1)}/{match.group(2)}") if match else None


def check_object(source, obj):
    undefined = subprocess.run(["nm", "-u", obj], capture_output=True, text=True, check=True).stdout
    for line in undefined.split("\n"):
        symbol = line.strip().removeprefix("U ").split("@")[0]
        for pattern, homes in HOMES:
            if re.fullmatch(pattern, symbol) and not any(source.startswith(home) for home in homes):
                where = " or ".join(homes) if homes else "nowhere"
                yield f"{source}: uses {symbol}, which belongs {where}"
    if any(source.startswith(prefix) for prefix in GLOBALS_ALLOWED):
        return
    table = subprocess.run(["objdump", "-t", obj], capture_output=True, text=True, check=True).stdout
    for line in table.split("\n"):
        match = re.match(r"[0-9a-f]+ .{7} (\.data|\.bss|\.tdata|\.tbss)\s+([0-9a-f]+) +(?:\.hidden )?(\S+)$", line)
        if match and int(match.group(2), 16) > 0 and not match.group(3).startswith("."):
            yield f"{source}: mutable global {match.group(3)}"


def check_listed(root, paths):
    lists = ""
    for folder, dirs, files in os.walk(root):
        dirs[:] = [d for d in dirs if not d.startswith((".", "build"))]
        for name in files:
            if name == "CMakeLists.txt" or name.endswith(".cmake"):
                with open(os.path.join(folder, name), encoding="utf-8") as file:
                    lists += file.read()
    for path in paths:
        stem = re.sub(r"(_test)?\.cu?$", "", os.path.basename(path))
        named = os.path.basename(path) in lists or re.search(rf"\b{re.escape(stem)}\b", lists)
        if path.endswith((".c", ".cu")) and not named:
            yield f"{path}: no CMakeLists.txt names it"


def check_tree(root, build):
    headers = public_headers(root)
    paths = list(sources(root))
    for path in paths:
        with open(os.path.join(root, path), encoding="utf-8") as file:
            text = file.read()
        yield from check_includes(path, text, headers)
        yield from check_text(path, text)
    yield from check_listed(root, paths)
    if build:
        for folder, _, files in os.walk(build):
            for name in sorted(files):
                obj = os.path.join(folder, name)
                source = object_source(os.path.relpath(obj, build)) if name.endswith(".c.o") else None
                if source and os.path.exists(os.path.join(root, source)):
                    yield from check_object(source, obj)


def self_test():
    headers = {"troupe/kernels.h": "kernels", "troupe/status.h": "runtime"}
    cases = [
        (list(check_includes("runtime/base/a.c", '#include "loop/loop.h"', headers)), 1),
        (list(check_includes("runtime/loop/a.c", '#include "base/base.h"', headers)), 0),
        (list(check_includes("runtime/loop/a.c", "#include <troupe/kernels.h>", headers)), 1),
        (list(check_includes("actors/lm/a.c", "#include <troupe/kernels.h>", headers)), 0),
        (list(check_includes("kernels/cpu/a.c", '#include "../x.h"', headers)), 1),
        (list(check_text("a.c", "int\nf(void)\n{\n" + "    x();\n" * 71 + "}\n")), 1),
        (list(check_text("a.c", "int\nf(void)\n{\n" + "    x();\n" * 70 + "}\n")), 0),
        (list(check_text("actors/a.c", "    if (tr_now_ns() - p->since_ns > ROOM_NS) {\n")), 1),
        (list(check_text("actors/a.c", "    p->busy_ns += tr_now_ns() - p->begun_ns;\n")), 0),
        (list(check_text("a.c", "\tx\n")), 1),
        (list(check_text("a.c", "x\n" * 701)), 1),
        (list(check_text("a.c", "    assert(x);\n")), 1),
        (list(check_text("a.c", "    static_assert(sizeof(x) == 4);\n")), 0),
    ]
    with tempfile.TemporaryDirectory() as folder:
        code = "#include <time.h>\nint counter;\nlong f(void);\nlong f(void) { return time(0) + counter++; }\n"
        with open(f"{folder}/a.c", "w", encoding="utf-8") as file:
            file.write(code)
        subprocess.run(["cc", "-c", f"{folder}/a.c", "-o", f"{folder}/a.o"], check=True)
        cases.append((list(check_object("actors/a.c", f"{folder}/a.o")), 2))
        cases.append((list(check_object("runtime/sys/a.c", f"{folder}/a.o")), 0))
    for index, (found, expected) in enumerate(cases):
        if len(found) != expected:
            print(f"self-test {index}: expected {expected} violations, found {found}")
            return 1
    source = object_source("runtime/CMakeFiles/troupe_runtime.dir/base/alloc.c.o")
    if source != "runtime/base/alloc.c":
        print(f"self-test: object_source gave {source}")
        return 1
    print(f"tidy self-test: {len(cases)} cases hold")
    return 0


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    found = list(check_tree(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None))
    for violation in found:
        print(violation)
    print(f"tidy: {len(found)} violations")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
