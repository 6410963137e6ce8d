#!/usr/bin/env python3
"""The manual pages against the product.

Each function of a public header is in the NAME section of a page; each option that a command's --help knows
is in that command's page, and no other option is; each command of `troupe help` has a page or stands in
one; each page that another one refers to exists. Where mandoc is there, it finds nothing to warn of.

Usage: man.py PREFIX        PREFIX: where troupe is installed
"""
import glob
import os
import re
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "library"))
import symbols  # noqa: E402 (the folder is only known here)

# page -> the words whose --help it covers
PAGES = {
    "troupe-audit.1": [["audit"]],
    "troupe-sim.1": [["sim"]],
    "troupe-model.1": [["model", "info"], ["model", "verify"], ["model", "generate"], ["model", "tokenize"]],
}


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def check_options(program, page, text, commands):
    known = {"help"}
    for words in commands:
        said = subprocess.run([program, *words, "--help"], capture_output=True, text=True, timeout=20).stdout
        known |= set(re.findall(r"--([a-z][a-z0-9-]*)", said))
    named = set(re.findall(r"Fl \\&-([a-z][a-z0-9-]*)", text))
    for option in sorted(known - named - {"help"}):
        yield f"{page} does not name --{option}, which --help does"
    for option in sorted(named - known):
        yield f"{page} names --{option}, which --help does not"


def check_commands(program, text):
    said = subprocess.run([program, "help"], capture_output=True, text=True, timeout=20).stdout
    for command in sorted(set(re.findall(r"^  troupe (\w+)", said, flags=re.M))):
        if not re.search(rf"^\.It Cm {command}\b", text, flags=re.M):
            yield f"docs/man/troupe.1 does not list the command {command}; add it there, and a page troupe-{command}.1"


def check_references(pages):
    names = {f"{name.rsplit('.', 1)[0]} {name.rsplit('.', 1)[1]}" for name in pages}
    for page, text in pages.items():
        for name, section in re.findall(r"^\.Xr (\S+) (\d)", text, flags=re.M):
            if f"{name} {section}" not in names:
                yield f"{page} refers to {name}({section}), which there is not"


def main():
    prefix = sys.argv[1]
    files = sorted(glob.glob(f"{prefix}/share/man/man*/*.[137]"))
    pages = {os.path.basename(path): read(path) for path in files}
    wrong = []
    if shutil.which("mandoc"):
        lint = subprocess.run(["mandoc", "-Tlint", "-W", "warning", *files], capture_output=True, text=True)
        wrong += lint.stdout.splitlines() + lint.stderr.splitlines()
    named = set()
    for page, text in pages.items():
        if page.endswith(".3"):
            named |= set(re.findall(r"^\.Nm (\w+)", text, flags=re.M))
    for name, header in sorted(symbols.declared([f"{prefix}/include"]).items()):
        if name not in named and name not in "".join(pages.values()):
            wrong.append(f"{header} declares {name}, which no page of section 3 names")
    program = f"{prefix}/bin/troupe"
    for page, commands in PAGES.items():
        wrong += check_options(program, page, pages.get(page, ""), commands)
    wrong += check_commands(program, pages.get("troupe.1", ""))
    wrong += check_references(pages)
    for line in wrong:
        print(line)
    print(f"man: {len(pages)} pages, {len(wrong)} things do not hold")
    return 1 if wrong or len(pages) < 30 else 0


if __name__ == "__main__":
    sys.exit(main())
