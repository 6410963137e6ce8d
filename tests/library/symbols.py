#!/usr/bin/env python3
"""What libtroupe exports: the committed list, what the headers declare, and what the files hold.

The list is actors/library/libtroupe.map, which is also the linker's version script. After a change to a
public header
    tests/library/symbols.py --write
refreshes it, and gives a new header the two lines that make its declarations visible, so that each new
export shows in a diff.

symbols.py --check SHARED STATIC [INCLUDE]   each difference on a line of its own; exit 1 when there is one
symbols.py --self-test
"""
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
MAP = os.path.join(ROOT, "actors/library/libtroupe.map")
TOPS = ("runtime", "kernels", "scheduler", "actors")
REFRESH = "run tests/library/symbols.py --write and look at the diff"
OPEN = '#ifdef __cplusplus\nextern "C" {\n#endif\n'
CLOSE = "#ifdef __cplusplus\n}\n#endif\n#endif\n"
PUSH, POP = "#pragma GCC visibility push(default)\n", "#pragma GCC visibility pop\n"
HEAD = """# What libtroupe exports: all that its public headers declare, and nothing else. The linker reads this
# file. After a change to a header: tests/library/symbols.py --write
TROUPE_0 {
global:
"""
TAIL = "local:\n    *;\n};\n"


def headers(folder):
    """Paths of the headers below one include folder, as they are named in an #include."""
    for base, dirs, files in os.walk(folder):
        dirs.sort()
        for name in sorted(files):
            if name.endswith(".h"):
                yield os.path.relpath(os.path.join(base, name), folder)


def without_braces(text):
    """Text with every {...} replaced by one {}."""
    out, depth = [], 0
    for char in text:
        if char == "{":
            if depth == 0:
                out.append("{}")
            depth += 1
        elif char == "}":
            depth -= 1
        elif depth == 0:
            out.append(char)
    return "".join(out)


def declared_in(text):
    """Names of the functions and objects with external linkage that preprocessed C declares."""
    text = re.sub(r'extern\s+"C"\s*\{', "", text)
    text = re.sub(r"#[^\n]*", "", text)
    text = re.sub(r"__attribute__\s*\(\((?:[^()]|\([^()]*\))*\)\)", "", text)
    # The body of a function ends it; that of a type does not.
    text = re.sub(r"\)\s*\{\}", ");", without_braces(text))
    for statement in text.split(";"):
        words = statement.split()
        if not words or words[0] in ("typedef", "static", "enum", "_Static_assert"):
            continue
        function = re.search(r"\b(\w+)\s*\(", statement)
        if function:
            yield function.group(1)
        elif words[0] == "extern":
            yield re.search(r"(\w+)\s*(?:\[[^]]*\]\s*)*$", statement).group(1)


def declared(folders):
    """name -> header, over all headers of the include folders."""
    found = {}
    flags = [f"-I{folder}" for folder in folders]
    for folder in folders:
        for header in headers(folder):
            path = os.path.join(folder, header)
            lines = subprocess.run(["cc", "-std=c17", "-E", "-x", "c", *flags, path], capture_output=True,
                                   text=True, check=True).stdout.split("\n")
            mine, text = False, []
            for line in lines:
                marker = re.match(r'# \d+ "([^"]*)"', line)
                if marker:
                    mine = os.path.normpath(marker.group(1)) == os.path.normpath(path)
                elif mine:
                    text.append(line)
            for name in declared_in("\n".join(text)):
                found.setdefault(name, header)
    return found


def listed():
    with open(MAP, encoding="utf-8") as file:
        text = file.read()
    return set(re.findall(r"^    (\w+);$", text.split("local:")[0], flags=re.M))


def nm(path, *options):
    lines = subprocess.run(["nm", *options, path], capture_output=True, text=True, check=True).stdout.split("\n")
    for line in lines:
        words = line.split()
        if len(words) >= 3 and words[-2] != "A":
            yield words[-1].split("@")[0]


def check_shared(shared):
    dynamic = subprocess.run(["readelf", "-dlW", shared], capture_output=True, text=True, check=True).stdout
    soname = re.search(r"SONAME.*\[(.*)\]", dynamic)
    if not soname or not re.fullmatch(r"libtroupe\.so\.\d+", soname.group(1)):
        yield f"{shared}: its soname is {soname.group(1) if soname else 'missing'}, not libtroupe.so.N"
    with open(os.path.join(ROOT, "docs/LICENCES.md"), encoding="utf-8") as file:
        licences = file.read()
    for name in re.findall(r"NEEDED.*\[(lib[\w-]+)\.so", dynamic):
        if not re.search(rf"\| [^|]*\b{name}\b[^|]*\|", licences):
            yield f"{shared}: needs {name}, which is not in docs/LICENCES.md"
    if re.search(r"NEEDED.*jemalloc", dynamic):
        yield f"{shared}: needs jemalloc, which belongs to programs only"
    if re.search(r"^\s+TLS\s", dynamic, flags=re.M):
        yield f"{shared}: has thread-local storage, which makes dlclose a risk"


def check(shared, static, folders):
    wanted, exported, names = declared(folders), set(nm(shared, "-D", "--defined-only")), listed()
    inside = set(nm(static, "-g", "--defined-only"))
    for name in sorted((set(wanted) & inside & names) - exported):
        yield f"{wanted[name]} declares {name}, which is not exported; {REFRESH}"
    for name in sorted(set(wanted) - names):
        yield f"{wanted[name]} declares {name}, which is not in libtroupe.map: {REFRESH}"
    for name in sorted(names - set(wanted)):
        yield f"libtroupe.map lists {name}, which no public header declares: {REFRESH}"
    for name in sorted(set(wanted) - inside):
        yield f"{wanted[name]} declares {name}, which no file of the library defines"
    for name in sorted(exported - names):
        yield f"{shared} exports {name}, which is not in libtroupe.map"
    for name in sorted(name for name in inside if not re.match(r"(tr|troupe)_", name)):
        yield f"{static} defines {name}: a symbol begins with troupe_ (public) or tr_ (internal)"
    sections = subprocess.run(["readelf", "-SW", static], capture_output=True, text=True, check=True).stdout
    if re.search(r"\.(init_array|ctors)", sections):
        yield f"{static}: has code that runs when it is loaded"
    yield from check_shared(shared)


def make_visible(text):
    """A header's text with the lines that make its declarations visible; None when it has no place for them."""
    if PUSH in text:
        return text
    if OPEN not in text or not text.endswith(CLOSE):
        return None
    return text.replace(OPEN, OPEN + PUSH, 1)[: -len("#endif\n")] + POP + "#endif\n"


def source_folders():
    return [os.path.join(ROOT, top, "include") for top in TOPS]


def self_test():
    text = """
extern "C" {
typedef struct a { int x; void (*f)(int); } a;
enum { ONE = 1 };
struct b;
const struct b *troupe_b(void);
int *troupe_f(a *x, int (*compare)(const void *, const void *)) __attribute__((warn_unused_result));
__attribute__((noreturn, cold))
void
tr_stop(const char *condition, int line);
static inline int tr_inline(int x) { return other(x); }
extern const a troupe_object;
static inline int tr_second(int x)
{
    if (x) { return 1; }
    return 0;
}
__attribute__((warn_unused_result)) a troupe_g(const char *format, ...) __attribute__((format(printf, 1, 2)));
struct c { int y; };
void tr_after(void);
}
"""
    expected = ["troupe_b", "troupe_f", "tr_stop", "troupe_object", "troupe_g", "tr_after"]
    header = f"#ifndef A\n#define A\n\n{OPEN}\nint troupe_a;\n\n{CLOSE}"
    visible = make_visible(header)
    if make_visible(visible) != visible or visible.count(PUSH) != 1 or not visible.endswith(POP + "#endif\n"):
        print(f"self-test: made visible as {visible}")
        return 1
    found = list(declared_in(text))
    if found != expected:
        print(f"self-test: found {found}, expected {expected}")
        return 1
    print("symbols self-test: holds")
    return 0


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    if sys.argv[1:] == ["--write"]:
        for path in (os.path.join(folder, name) for folder in source_folders() for name in headers(folder)):
            with open(path, encoding="utf-8") as file:
                text = file.read()
            visible = make_visible(text)
            if visible is None and list(declared_in(text)):
                print(f"{path}: does not open and close with the lines of extern \"C\" as the others do")
                return 1
            if visible not in (None, text):
                print(f"{path}: made visible")
                with open(path, "w", encoding="utf-8") as file:
                    file.write(visible)
        names = sorted(declared(source_folders()))
        with open(MAP, "w", encoding="utf-8") as file:
            file.write(HEAD + "".join(f"    {name};\n" for name in names) + TAIL)
        print(f"libtroupe.map: {len(names)} names")
        return 0
    if sys.argv[1:2] != ["--check"] or len(sys.argv) not in (4, 5):
        print(__doc__)
        return 2
    found = list(check(sys.argv[2], sys.argv[3], sys.argv[4:] or source_folders()))
    for line in found:
        print(line)
    print(f"symbols: {len(found)} differences")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
