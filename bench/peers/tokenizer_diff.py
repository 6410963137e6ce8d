#!/usr/bin/env python3
"""Our tokenizer against the `tokenizers` library, on random strings and random configurations.

    bench/peers/tokenizer_diff.py [--command "build/actors/troupe model tokenize"] [--strings N] [--seed N]
                                  [--only NAME] [--real DIR...]

For each tokenizer.json of tests/data/tokenizer and for variants of them (flags of added tokens, normalizers,
splitters, post-processors, decoders), N random strings are encoded by both, and decoded again with and without
special tokens, and so are N random lists of ids. Prints one line for each tokenizer and the number of mismatches;
exit 1 when there is one. `--real` adds tokenizer.json files of your own. `--tables` prints the ranges for
actors/lm/unicode.c: what the library's Unicode tables have that utf8proc's do not.

Prints "not run" where the library is missing.
"""
import argparse
import copy
import ctypes
import json
import os
import random
import subprocess
import sys
import tempfile
import unicodedata

try:
    import tokenizers
except ImportError:
    tokenizers = None

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DATA = os.path.join(ROOT, "tests", "data", "tokenizer")

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
QWEN2 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = QWEN2.replace(r"\p{N}|", r"\p{N}{1,3}|", 1)


# --- random text ---------------------------------------------------------------------------------------------

WORDS = ["the", "Hello", "world", "don't", "WE'LL", "it'S", "I've", "o'clock", "'tis", "x'ſ", "naïve", "Straße",
         "数学", "推理", "日本語", "안녕", "мир", "مرحبا", "नमस्ते", "e\u0301", "ﬁ", "Å", "<0x0A>", "▁", "▁▁a"]
SPACES = [" ", "  ", "   ", "\t", "\n", "\r\n", "\n\n", " \n", "\n ", "\u00a0", "\u3000", "\u0085", "\u2028", "\u200b", "\v"]
MARKS = ["'", "''", "-", "...", "!!!", "<|", "|>", "<", ">", "$", "_", "{}", "😀", "👨\u200d👩\u200d👧", "🇩🇪", "\ufeff", "\u200d"]


def assigned():
    """Code points by first letter of their category, as Python's tables have them."""
    found = {}
    for c in range(0x110000):
        kind = unicodedata.category(chr(c))
        if kind != "Cs":
            found.setdefault(kind[0] if kind != "Cn" else "Cn", []).append(chr(c))
    return found


def random_text(rng, chars, tokens):
    parts = []
    for _ in range(rng.choice([0, 1, 2, 3, 5, 8, 13, 30])):
        kind = rng.random()
        if kind < 0.25:
            parts.append(rng.choice(WORDS))
        elif kind < 0.45:
            parts.append(rng.choice(SPACES))
        elif kind < 0.55:
            parts.append(rng.choice(MARKS))
        elif kind < 0.62:
            parts.append("".join(rng.choice("0123456789½Ⅷ٣四") for _ in range(rng.randint(1, 7))))
        elif kind < 0.72 and tokens:
            token = rng.choice(tokens)
            parts.append(token if rng.random() < 0.8 else token[:rng.randint(1, len(token))])
        elif kind < 0.85:
            parts.append("".join(chr(rng.randint(32, 126)) for _ in range(rng.randint(1, 12))))
        elif kind < 0.92:
            # Marks behind a letter: what normalisation orders and composes, Hangul included.
            base = rng.choice(["e", "A", "o", "\u1112", "\u1112\u1161", "\uac00", "\u0928", "\u05d0", "1"])
            parts.append(base + "".join(rng.choice(chars["M"] + ["\u1161", "\u11ab"]) for _ in range(rng.randint(0, 4))))
        else:
            parts.append("".join(rng.choice(chars[rng.choice(list(chars))]) for _ in range(rng.randint(1, 4))))
    return "".join(parts)


# --- configurations --------------------------------------------------------------------------------------------

def added(index, content, **flags):
    token = {"id": index, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False, "special": True}
    token.update(flags)
    return token


FLAGS = ["single_word", "lstrip", "rstrip", "normalized", "special"]


def matrix(config):
    """A token for every combination of the five flags, and some that overlap with these and with words. Ids
    without gaps: the library gives its own to tokens behind a gap."""
    names = [f"<f{bits}>" for bits in range(32)]
    names += ["<f1", "f1>", "  ", "word", "wor", "é", "Straße", "\n\n", "of the", "▁x", "▁the", "▁▁", "ab", "Ġof"]
    vocab = config["model"]["vocab"]
    free = next_id(config)
    for i, content in enumerate(names):
        bits = i if i < 32 else (i * 7 + 3) % 32
        flags = {name: bool(bits >> b & 1) for b, name in enumerate(FLAGS)}
        # The library forgets that a token is special when its normalised text is another; we do not.
        flags["special"] = flags["special"] and not (flags["normalized"] and "Prepend" in json.dumps(config["normalizer"]))
        config["added_tokens"].append(added(vocab.get(content, free), content, **flags))
        free += content not in vocab
    return config


def split(pattern, behavior="Isolated", invert=False):
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": invert}


def byte_level(prefix=False, regex=False):
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": regex}


def metaspace(scheme, splits):
    return {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": splits}


def sequence(key, *steps):
    return {"type": "Sequence", key: list(steps)}


def template(bos, eos):
    single = ([{"SpecialToken": {"id": bos[0], "type_id": 0}}] if bos else []) + [{"Sequence": {"id": "A", "type_id": 0}}] + \
             ([{"SpecialToken": {"id": eos[0], "type_id": 0}}] if eos else [])
    return {"type": "TemplateProcessing", "single": single, "pair": single + [{"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {t[0]: {"id": t[0], "ids": [t[1]], "tokens": [t[0]]} for t in (bos, eos) if t}}


def without_added(config):
    config["added_tokens"] = [t for t in config["added_tokens"] if t["content"] in config["model"]["vocab"]]
    return config


def next_id(config):
    return max(list(config["model"]["vocab"].values()) + [t["id"] for t in config["added_tokens"]]) + 1


def variants(name, config):
    """(name, tokenizer.json) of a file and of what can be made of it."""
    yield name, config
    levels = "ByteLevel" in json.dumps(config["pre_tokenizer"])

    def variant(label, **changes):
        made = copy.deepcopy(config)
        for key, value in changes.items():
            (made if key in made else made["model"])[key] = value
        return f"{name}+{label}", made

    yield f"{name}+flags", matrix(without_added(copy.deepcopy(config)))
    strings = copy.deepcopy(config)
    strings["model"]["merges"] = [m if isinstance(m, str) else " ".join(m) for m in config["model"]["merges"]]
    yield f"{name}+merge_strings", strings
    yield variant("ignore_merges", ignore_merges=not config["model"].get("ignore_merges", False))
    yield variant("nfc", normalizer={"type": "NFC"})
    first = next(iter(config["model"]["vocab"].items()))
    yield variant("template", post_processor=sequence("processors", byte_level(), template(first, first)))
    yield variant("no_decoder", decoder=None)
    if levels:
        yield variant("gpt2", pre_tokenizer=sequence("pretokenizers", split(GPT2), byte_level()))
        yield variant("qwen2", pre_tokenizer=sequence("pretokenizers", split(QWEN2, "Removed", True), byte_level()))
        yield variant("llama3", pre_tokenizer=sequence("pretokenizers", split(LLAMA3), byte_level(True)))
        yield variant("byte_level", pre_tokenizer=byte_level(True, True))
        yield variant("whole", pre_tokenizer=byte_level())
        for individual in (True, False):
            digits = {"type": "Digits", "individual_digits": individual}
            yield variant(f"digits_{individual}", pre_tokenizer=sequence("pretokenizers", digits, byte_level(False, True)))
        return
    for fuse in (True, False):
        for fallback in (True, False):
            yield variant(f"fuse_{fuse}_fallback_{fallback}", fuse_unk=fuse, byte_fallback=fallback)
    yield variant("no_unk", unk_token=None, byte_fallback=False)
    holes = copy.deepcopy(config)
    for b in range(0, 256, 3):
        if f"<0x{b:02X}>" in holes["model"]["vocab"]:
            holes["model"]["vocab"][f"<hole{b}>"] = holes["model"]["vocab"].pop(f"<0x{b:02X}>")
    yield f"{name}+byte_holes", holes
    for scheme in ("always", "first", "never"):
        for splits in (True, False):
            space = metaspace(scheme, splits)
            yield variant(f"metaspace_{scheme}_{splits}", normalizer=None, pre_tokenizer=space, decoder=space)
    flagged = matrix(without_added(copy.deepcopy(config)))
    flagged.update(normalizer=None, pre_tokenizer=metaspace("first", True), decoder=metaspace("first", True))
    yield f"{name}+metaspace_flags", flagged
    strip = {"type": "Strip", "content": " ", "start": 2, "stop": 0}
    replace = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
    yield variant("strip_tokens", decoder=sequence("decoders", replace, strip, {"type": "ByteFallback"}))
    yield variant("strip_text", decoder=sequence("decoders", replace, {"type": "ByteFallback"}, {"type": "Fuse"}, strip))
    yield variant("empty_decoder", decoder=sequence("decoders"))


# --- the comparison --------------------------------------------------------------------------------------------

def ours(command, path, lines, *options):
    """One result for each line; None from the line on which the command gave up."""
    text = "".join(json.dumps(line) + "\n" for line in lines)
    done = subprocess.run(command.split() + [path, *options], input=text, capture_output=True, text=True)
    results = [json.loads(line) for line in done.stdout.split("\n") if line]
    if done.returncode != 0:
        print(f"  {path}: exit {done.returncode}: {done.stderr.strip()}")
    return results + [None] * (len(lines) - len(results))


def library_encode(library, text):
    return library.encode(text).ids


def compare(command, name, config, rng, chars, count):
    """Number of comparisons and list of mismatches."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "tokenizer.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(config, file, ensure_ascii=rng.random() < 0.5)
        library = tokenizers.Tokenizer.from_file(path)
        library.no_truncation()
        library.no_padding()
        tokens = [t["content"] for t in config["added_tokens"]]
        texts = [random_text(rng, chars, tokens) for _ in range(count)]
        encoded = [library_encode(library, text) for text in texts]
        bad = [("encode", text, want, got) for text, want, got in zip(texts, encoded, ours(command, path, texts))
               if want != got]
        known = sorted(library.get_vocab().values())
        ids = encoded + [[rng.choice(known) for _ in range(rng.randint(0, 12))] for _ in range(count)]
        for options, skip in (((), False), (("--skip-special",), True)):
            want = [library.decode(line, skip_special_tokens=skip) for line in ids]
            got = ours(command, path, ids, "--decode", *options)
            bad += [("decode", line, w, g) for line, w, g in zip(ids, want, got) if w != g]
        return count + 2 * len(ids), bad


# --- tables ----------------------------------------------------------------------------------------------------

def ranges(points):
    found = []
    for c in sorted(points):
        if found and found[-1][1] == c - 1:
            found[-1][1] = c
        else:
            found.append([c, c])
    return ", ".join("{0x%x, 0x%x}" % tuple(r) for r in found)


def print_tables():
    """Where the library and utf8proc differ, over all code points."""
    utf8proc = ctypes.CDLL("libutf8proc.so.2")
    utf8proc.utf8proc_category_string.restype = ctypes.c_char_p
    utf8proc.utf8proc_NFC.restype = ctypes.c_void_p
    libc = ctypes.CDLL(None)
    libc.free.argtypes = [ctypes.c_void_p]
    points = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    category = {c: utf8proc.utf8proc_category_string(c).decode() for c in points}
    for kind in "LNM":
        pattern = tokenizers.pre_tokenizers.Split(tokenizers.Regex(r"\p{%s}" % kind), "removed")
        new = [c for c in points if category[c][0] != kind and pattern.pre_tokenize_str(chr(c)) == []]
        print(f"\\p{{{kind}}}: {ranges(new)}")
    normalize = tokenizers.normalizers.NFC().normalize_str

    def nfc(text):
        result = utf8proc.utf8proc_NFC(text.encode())
        found = ctypes.string_at(result).decode()
        libc.free(result)
        return found

    differ = []
    for c in points[1:]:
        tests = [chr(c), "e" + chr(c), "e\u0345" + chr(c), "e" + chr(c) + "\u0323", unicodedata.normalize("NFD", chr(c))]
        if any(normalize(test) != nfc(test) for test in tests):
            differ.append(c)
    print(f"NFC (compositions: add their parts too): {ranges(differ)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--command", default=os.path.join(ROOT, "build", "actors", "troupe") + " model tokenize")
    parser.add_argument("--strings", type=int, default=500, help="for each configuration")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="configurations whose name contains this")
    parser.add_argument("--real", nargs="*", default=[], help="more tokenizer.json files")
    parser.add_argument("--show", type=int, default=3, help="mismatches shown for each configuration")
    parser.add_argument("--tables", action="store_true")
    args = parser.parse_args()
    if tokenizers is None:
        print("not run: the Python package tokenizers is not installed")
        return 0
    if args.tables:
        print_tables()
        return 0
    chars = assigned()
    files = sorted(os.path.join(DATA, f) for f in os.listdir(DATA) if f.endswith(".tokenizer.json")) + args.real
    total = wrong = 0
    for file in files:
        with open(file, encoding="utf-8") as stream:
            config = json.load(stream)
        base = os.path.basename(file).removesuffix(".tokenizer.json")
        for name, made in variants(base, config):
            if args.only not in name:
                continue
            # A generator of its own, so that one configuration can be run again by itself.
            rng = random.Random(f"{args.seed} {name}")
            count, bad = compare(args.command, name, made, rng, chars, args.strings)
            total += count
            wrong += len(bad)
            print(f"{name}: {count} comparisons, {len(bad)} mismatches", flush=True)
            for kind, what, want, got in bad[:args.show]:
                print(f"  {kind} {what!r}\n    library {want!r}\n    troupe  {got!r}")
    print(f"tokenizers {tokenizers.__version__}, seed {args.seed}: {total} comparisons, {wrong} mismatches")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
