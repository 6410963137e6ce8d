#!/usr/bin/env python3
"""Writes the manual pages of section 3 from the public headers, which are the contracts.

One page for each header: troupe/actor.h gives troupe_actor.3, troupe/ext/link.h troupe_ext_link.3. The
header's comment becomes the description, each `--- section ---` a subsection, each declaration an item with
the comment above it, so a page cannot say what the header does not. The build runs this; nothing that it
writes is committed.

Usage: headers.py OUT_DIR INCLUDE_DIR...        headers.py --self-test
"""
import os
import re
import sys

DATE = "November 30, 2026"
ATTRIBUTES = re.compile(r"\bTROUPE_MUST_USE\b|\bTROUPE_PRINTF\(\d+, \d+\)|__attribute__\(\(.*?\)\)", re.S)


def headers(folder):
    for base, dirs, files in os.walk(folder):
        dirs.sort()
        for name in sorted(files):
            if name.endswith(".h"):
                yield os.path.relpath(os.path.join(base, name), folder)


def page_name(header):
    name = header.removeprefix("troupe/").removesuffix(".h").replace("/", "_")
    return "troupe" if name == "troupe" else f"troupe_{name}"


def comment_text(comment):
    """The lines of a /* ... */ without its marks."""
    inner = re.sub(r"^/\*+ ?|\s*\*/$", "", comment.strip())
    return [re.sub(r"^\s*\* ?", "", line) if i else line for i, line in enumerate(inner.split("\n"))]


def tokens(text):
    """Top-level pieces of a header: ("comment", text) or ("code", text), in order."""
    text = re.sub(r'#\s*ifdef __cplusplus.*?#\s*endif[^\n]*\n', "", text, flags=re.S)
    text = re.sub(r"^#\s*(pragma|include|ifndef \w+_H\b|endif\s*$|if\b|else|undef|ifdef)[^\n]*\n", "", text,
                  flags=re.M)
    text = re.sub(r"^#\s*define \w+_H\s*\n", "", text, flags=re.M)
    text = re.sub(r"^# +define [^\n]*\n", "", text, flags=re.M)  # for other compilers
    position = 0
    while position < len(text):
        match = re.compile(r"\s*(/\*.*?\*/)", re.S).match(text, position)
        if match:
            yield "comment", match.group(1)
            position = match.end()
            continue
        match = re.compile(r"\s*(#\s*define(?:[^\n]*\\\n)*[^\n]*)").match(text, position)
        if match:
            yield "code", match.group(1)
            position = match.end()
            continue
        end = end_of_declaration(text, position)
        if end is None:
            return
        trailing = re.compile(r"[ \t]*(/\*.*?\*/)", re.S).match(text, end)
        code = text[position:end].strip()
        position = end
        if trailing:
            yield "trailing", trailing.group(1)
            position = trailing.end()
        if code:
            yield "code", code


def end_of_declaration(text, position):
    depth, i = 0, position
    while i < len(text):
        if text.startswith("/*", i):
            i = text.index("*/", i) + 2
            continue
        if text[i] == "{":
            depth += 1
        elif text[i] == "}":
            depth -= 1
            if depth == 0 and re.match(r"\s*\n\s*\n|\s*\n\S|\s*$", text[i + 1:]) and "(" in text[position:i].split("{")[0]:
                return i + 1 # a function's body
        elif text[i] == ";" and depth == 0:
            return i + 1
        i += 1
    return None


def function_of(code):
    """(return type, name, arguments) of a function's declaration, or None."""
    code = re.sub(r"/\*.*?\*/", "", ATTRIBUTES.sub("", code), flags=re.S)
    code = " ".join(code.split("{")[0].split()).rstrip("; ")
    if code.startswith(("typedef", "struct {", "enum", "extern const", "#")):
        return None
    match = re.match(r"(?:static inline )?(.*?[\s*])(\w+)\((.*)\)$", code)
    if not match:
        return None
    arguments, depth, current = [], 0, ""
    for char in match.group(3):
        if char == "," and depth == 0:
            arguments.append(current.strip())
            current = ""
            continue
        depth += (char == "(") - (char == ")")
        current += char
    return match.group(1).strip(), match.group(2), arguments + [current.strip()]


def macro_of(code):
    match = re.match(r"#\s*define (\w+)\(([^)]*)\)", code)
    return (match.group(1), [a.strip() for a in match.group(2).split(",")]) if match else None


def escape(line):
    line = line.replace("\\", "\\e")
    return "\\&" + line if line.startswith((".", "'")) else line


def quoted(argument):
    return '"' + argument.replace("\\", "\\e").replace('"', "\\(dq") + '"'


def paragraph(lines):
    """A paragraph's lines, a sentence on each, as mdoc wants it."""
    text = " ".join(line.strip() for line in lines)
    return [escape(line) for line in re.sub(r"([.!?][)\"]?) +(?=[A-Z*(0-9])", r"\1\n", text).split("\n")]


def prose(lines):
    """mdoc of a comment: paragraphs, and what is indented as it stands."""
    out, block, literal = [], [], False

    def flush():
        nonlocal block
        while block and not block[-1].strip():
            block.pop()
        if block and literal:
            out.extend([".Bd -literal -offset indent", *(escape(line) for line in block), ".Ed"])
        elif block:
            out.extend(([".Pp"] if out else []) + paragraph(block))
        block = []

    for line in lines:
        indented = re.match(r" {2,}\S", line) is not None
        if indented != literal and (line.strip() or not literal):
            flush()
            literal = indented
        if line.strip() or (literal and block):
            block.append(line)
        elif not literal:
            flush()
    flush()
    return "\n".join(out)


def describe(code):
    """The head of an item: a function, a macro, or text as it stands."""
    function, macro = function_of(code), macro_of(code)
    if function:
        arguments = " ".join(quoted(a) for a in function[2])
        return function[1], f".It Fn {function[1]} {arguments}"
    if macro:
        return macro[0], f".It Fn {macro[0]} {' '.join(quoted(a) for a in macro[1])}"
    return None, None


def first_sentence(text):
    text = " ".join(text)
    sentence = re.split(r"(?<=[a-z0-9)])\.(?:\s|$)", text)[0]
    return sentence.removeprefix("troupe: ").rstrip(".")


class Page:
    def __init__(self, header, text):
        self.header, self.names, self.synopsis, self.body, self.open = header, [], [], [], False
        self.after_constant = False
        parts = list(tokens(text))
        self.about = comment_text(parts[0][1])
        self.includes = re.findall(r"#include <(troupe/[^>]+)>", text)
        pending = None
        for kind, content in parts[1:]:
            if kind == "comment" and re.match(r"/\* ?---", content):
                self.section(comment_text(content))
                pending = None
            elif kind in ("comment", "trailing"):
                pending = self.flush(pending) if pending and kind == "comment" else pending
                pending = (pending or []) + comment_text(content)
            else:
                self.item(code=content, comment=pending or [])
                pending = None
        self.flush(pending)
        self.close()

    def close(self):
        if self.open:
            self.body.append(".El")
        self.open = False

    def flush(self, pending):
        """A comment that stands alone."""
        if pending:
            self.close()
            self.body += [".Pp", prose(pending)] if self.body and not self.body[-1].startswith(".Ss") else [prose(pending)]

    def section(self, lines):
        text = " ".join(lines).strip()
        match = re.match(r"-+ (.*?) -{2,}\s*(.*)", text)
        self.close()
        title = match.group(1) if match else text.strip("- ")
        self.body.append(f".Ss {title[:1].upper() + title[1:]}")
        rest = [] if not match else [match.group(2)] if match.group(2) else []
        if rest:
            self.body.append(prose(rest))

    def item(self, code, comment):
        if re.match(r"(struct|typedef struct|union) \w+( \w+)?;$|extern \"C\"|\}$", code) and not comment:
            return
        name, head = describe(code)
        if not self.open:
            self.body.append(".Bl -tag -width Ds")
            self.open = True
        if name:
            self.names.append(name)
            function = function_of(code)
            if function:
                self.synopsis += [f".Ft {quoted(function[0])}", f".Fo {name}"]
                self.synopsis += [f".Fa {quoted(a)}" for a in function[2]] + [".Fc"]
            else:
                self.synopsis.append(".Fd " + quoted(f"#define {name}({', '.join(macro_of(code)[1])})"))
            self.body.append(head)
            if comment:
                self.body.append(prose(comment))
            return
        constant = code.startswith("#define")
        if constant and not comment and self.body[-1] == ".Ed" and self.after_constant:
            self.body[-1:] = [escape(code), ".Ed"]  # the next one of a list of constants
            return
        self.after_constant = constant
        names = re.findall(r"\btroupe_\w+(?=\s*;$)|(?<=extern const troupe_class )\w+|\btroupe_\w+(?=\)\()", code)
        named = names[-1] if names else re.sub(r"[^\w].*", "", code.split()[-1] if code.startswith("#") else "")
        title = re.search(r"\}\s*(\w+);$", code) or re.search(r"define (\w+)", code) or re.search(r"\(\*(\w+)\)", code)
        title = title.group(1) if title else named or "constants"
        self.body.append(f".It Vt {title}")
        if comment:
            self.body.append(prose(comment))
        self.body += [".Bd -literal"] + [escape(line) for line in code.split("\n")] + [".Ed"]

    def text(self, pages):
        name = page_name(self.header)
        names = [name] + [n for n in dict.fromkeys(self.names) if n != name]
        out = [f'.\\" Made from <{self.header}> by docs/man/headers.py.', f".Dd {DATE}",
               f".Dt {name.upper()} 3", ".Os", ".Sh NAME"]
        out += [f".Nm {n} ," for n in names[:-1]] + [f".Nm {names[-1]}"]
        out += [f".Nd {escape(first_sentence(self.about))}", ".Sh LIBRARY",
                "libtroupe (pkg-config name", ".Pa troupe ) ,", "linked by", ".Fl ltroupe",
                ".Sh SYNOPSIS", f".In {self.header}"] + self.synopsis
        out += [".Sh DESCRIPTION", prose(self.about)] + self.body
        seen = sorted({page_name(i) for i in self.includes if i in pages} - {name})
        out += [".Sh SEE ALSO"] + [f".Xr {s} 3 ," for s in seen] + [".Xr troupe 7"]
        return "\n".join(out) + "\n"


def self_test():
    header = """/* Things. What they are.
 *
 *   A    first
 *   B    second */
#ifndef TROUPE_T_H
#define TROUPE_T_H

#include <troupe/status.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* A number. */
#define TROUPE_N 3

/* --- making --- */

typedef struct troupe_t troupe_t;
/* Makes one. */
TROUPE_MUST_USE troupe_status troupe_t_new(
    troupe_t **out, int (*compare)(const void *, const void *), troupe_error *err);
void troupe_t_free(troupe_t *t); /* NULL is allowed */
static inline int
troupe_t_two(void)
{
    return 2;
}
#define troupe_t_make(a, ...) troupe_t_new(a, __VA_ARGS__)

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif
"""
    page = Page("troupe/t.h", header)
    text = page.text({"troupe/status.h"})
    wanted = [".Nm troupe_t_make", ".Nd Things", ".Ss Making", '.Fa "int (*compare)(const void *, const void *)"',
              "NULL is allowed", ".Xr troupe_status 3 ,", "  A    first", "#define TROUPE_N 3"]
    missing = [w for w in wanted if w not in text]
    if page.names != ["troupe_t_new", "troupe_t_free", "troupe_t_two", "troupe_t_make"] or missing:
        print(f"self-test: names {page.names}, missing {missing}\n{text}")
        return 1
    print("man self-test: holds")
    return 0


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    out, found = sys.argv[1], {}
    for folder in sys.argv[2:]:
        for header in headers(folder):
            with open(os.path.join(folder, header), encoding="utf-8") as file:
                found[header] = file.read()
    os.makedirs(out, exist_ok=True)
    for header, text in found.items():
        with open(os.path.join(out, page_name(header) + ".3"), "w", encoding="utf-8") as file:
            file.write(Page(header, text).text(found))
    print(f"man: {len(found)} pages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
