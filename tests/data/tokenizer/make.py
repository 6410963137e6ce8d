#!/usr/bin/env python3
"""Makes the small tokenizers and expected results beside it that are not of the shared fixtures.

    python3 make.py        with the Python packages tokenizers 0.23.3 and jinja2 3.1.6

Everything is trained on the text below, which was written for this purpose. Each NAME.cases.json is a list of
{text, ids, decoded, decoded_skip_special}, as the tokenizers library gives them (special tokens added where the
file's post-processor adds some); chat.cases.json holds chat templates and what jinja2 makes of them.
"""
import copy
import json
import os

import jinja2
import jinja2.sandbox
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

HERE = os.path.dirname(os.path.abspath(__file__))

TEXT = """
The carpenter measured the shelf twice before he cut it, because the wall was older than the house and leaned.
Nobody had told the children that the river would rise, so they built their dam of stones and sticks again and
again; each morning they found it gone, and each morning they began with the larger stones. Twelve boats left the
harbour at dawn. Nine came back before the storm, two came back after it, and one was never seen again, though a
fisherman said that he had heard its bell. If a train travels for 3 hours at 60 kilometres an hour, then it has
travelled 180 kilometres; if it travels for 7 hours, then it has travelled 420. She counted 12345 + 678 = 13023 and
wrote the result down, then crossed it out and wrote it again. "Don't worry," said the gardener, "it's only the
wind, and we've seen worse." They'll say that they're late; I'm sure that he'd agree. The answer to the question is
not in the book, it is in the margin of the book. Le café était fermé, alors nous avons marché jusqu'à la gare.
Über den Dächern hing der Rauch, und die Straße war still. Где находится библиотека? 数学は美しい。推理と計算。
def area(width, height):
    return width * height
for number in range(10):
    print(number, area(number, number + 1))
""" * 4

TEXTS = ["", " ", "  ", "a", "Hello world", " Hello  world ", "Hello\nworld\n\n", "\t\tif x == 1:\n\t\t\treturn y\r\n",
         "12345 + 678 = 13023", "I'm you're WE'LL it'S don't", "naïve café", "cafe\u0301 n\u0303", "数学推理 GRPO 训练",
         "Привет, мир!", "안녕하세요", "\u1112\u1161\u11ab\u1100\u1173\u11af", "مرحبا 123", "😀 👨\u200d👩\u200d👧 🇩🇪", "\u200b\u00a0\u3000x",
         "<s>the house</s>", "the<s> house", "x</s>y", "<s><s>", "<unk>", "<0x41><0x0A>", "▁the▁ house", "▁", "  ▁  ",
         "the  house   the", "\x00\x01\x7f", "ﬁ ﬂ Å Ⅳ ①②③", "e\u0323\u0301 e\u0301\u0323", "aaaaaaaaaaaaaaaa", "!!!???...---", "leading\n ",
         "trailing   ", "\ufeffBOM", "def f(a, b):\n    return a + b\n", "Straße STRASSE", "\U0001d518\U0001d52b x\u0300"]


def write(name, value):
    with open(os.path.join(HERE, name), "w", encoding="utf-8") as file:
        json.dump(value, file, ensure_ascii=False, indent=1)
        file.write("\n")


def cases(name, config, texts):
    library = Tokenizer.from_str(json.dumps(config))
    rows = []
    for text in texts:
        ids = library.encode(text).ids
        rows.append({"text": text, "ids": ids, "decoded": library.decode(ids, skip_special_tokens=False),
                     "decoded_skip_special": library.decode(ids)})
    with open(os.path.join(HERE, f"{name}.tokenizer.json"), "w", encoding="utf-8") as file:
        json.dump(config, file, ensure_ascii=False)
        file.write("\n")
    write(f"{name}.cases.json", rows)


def train(pre_tokenizer, special, alphabet, size):
    library = Tokenizer(models.BPE(unk_token="<unk>" if "<unk>" in special else None, fuse_unk=True, byte_fallback=True))
    library.pre_tokenizer = pre_tokenizer
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=special, initial_alphabet=alphabet, show_progress=False)
    library.train_from_iterator(TEXT.split("\n"), trainer)
    return json.loads(library.to_str())


def template(bos):
    single = [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    pair = single + [{"SpecialToken": {"id": "<s>", "type_id": 1}}, {"Sequence": {"id": "B", "type_id": 1}}]
    return {"type": "TemplateProcessing", "single": single, "pair": pair,
            "special_tokens": {"<s>": {"id": "<s>", "ids": [bos], "tokens": ["<s>"]}}}


def llama2():
    """The two forms in which Llama 2's tokenizer is found: normalizer steps, and Metaspace."""
    special = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]
    config = train(pre_tokenizers.Metaspace("▁", "always", True), special, ["▁"], 620)
    # The byte tokens are ordinary tokens of the model; only the first three are added ones.
    config["added_tokens"] = config["added_tokens"][:3]
    config["pre_tokenizer"] = None
    config["normalizer"] = json.loads(normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]).__getstate__())
    config["decoder"] = json.loads(decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]).__getstate__())
    config["post_processor"] = template(1)
    config["model"]["merges"] = [" ".join(pair) for pair in config["model"]["merges"]]
    cases("llama2-style", config, TEXTS)
    space = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": True}
    config.update(normalizer=None, pre_tokenizer=space, decoder=space)
    cases("metaspace-first", config, TEXTS)


def gpt2():
    config = train(pre_tokenizers.ByteLevel(add_prefix_space=False), ["<|endoftext|>"],
                   pre_tokenizers.ByteLevel.alphabet(), 420)
    config["model"].update(byte_fallback=False, fuse_unk=False, ignore_merges=True)
    config["pre_tokenizer"] = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    config["decoder"] = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    cases("gpt2-style", config, TEXTS + ["x<|endoftext|>y", "<|endoftext|>"])
    return config


def flags(base):
    """Every combination of the flags of added tokens, between words, spaces and each other."""
    config = copy.deepcopy(base)
    config["pre_tokenizer"]["add_prefix_space"] = False
    config["normalizer"] = {"type": "NFC"}
    names = ["single_word", "lstrip", "rstrip", "normalized", "special"]
    first = max(config["model"]["vocab"].values()) + 1
    contents = [f"<f{bits}>" for bits in range(32)] + ["<f", "f1>", "caf\u00e9", "cafe\u0301", "  "]
    for i, content in enumerate(contents):
        token = {"id": first + i, "content": content}
        token.update({name: bool(i >> bit & 1) for bit, name in enumerate(names)})
        config["added_tokens"].append(token)
    texts = []
    for content in contents:
        texts += [f"a {content} b", f"a{content}b", f" \t{content}\u3000\n", f"_{content}", f"{content}9 {content}{content}"]
    texts += ["<f1><f2><f3>", "<f1>x<f6>  <f6>x", "<f31> <f31>", "caf\u00e9 cafe\u0301 cafe\u0301s", "<f1", "a<f7>\u0301"]
    cases("added-flags", config, texts)


def characters():
    """A vocabulary of characters: no merges, no unknown token, what is unknown vanishes."""
    vocab = {c: i for i, c in enumerate("0123456789+-*/=() abcdefghijklmnopqrstuvwxyzé数")}
    config = {"version": "1.0", "truncation": None, "padding": None, "normalizer": None, "pre_tokenizer": None,
              "added_tokens": [{"id": len(vocab), "content": "<eos>", "single_word": False, "lstrip": False,
                                "rstrip": False, "normalized": False, "special": True}],
              "post_processor": None, "decoder": {"type": "Fuse"},
              "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                        "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "vocab": vocab,
                        "merges": []}}
    cases("characters", config, ["12+34=46<eos>", "Hello", "a数b推é\u0301", "", " ", "\n", "2 * (3 + 4)", "<eos><eos>x"])


# Templates of the shapes in use, written anew: what they print is what matters.
CHATML_LOOP = ("{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}"
               "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + "
               "'<|im_end|>' + '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")
CHATML_DEFAULT = ("{%- if messages[0].role == 'system' %}\n    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}\n"
                  "{%- else %}\n    {{- '<|im_start|>system\\nAnswer in one line.<|im_end|>\\n' }}\n{%- endif %}\n"
                  "{%- for message in messages %}\n    {%- if not (loop.first and message.role == 'system') %}\n"
                  "        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}\n    {%- endif %}\n"
                  "{%- endfor %}\n{%- if add_generation_prompt %}\n    {{- '<|im_start|>assistant\\n<think>\\n' }}\n{%- endif %}\n")
CHATML_THINK = """{%- set ns = namespace(searching=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.searching and message.role == "user" and not (message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.searching = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == "assistant" %}
        {%- set content = message.content %}
        {%- set reasoning = '' %}
        {%- if '</think>' in message.content %}
            {%- set content = message.content.split('</think>')[-1].lstrip('\\n') %}
            {%- set reasoning = message.content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index and (loop.last or reasoning) %}
            {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}"""
LLAMA3 = ("{{- bos_token }}{% for message in messages %}{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + "
          "message['content'] | trim + '<|eot_id|>' }}{% endfor %}{% if add_generation_prompt %}"
          "{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}")
LLAMA3_DATED = """{{- bos_token }}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{{- "Cutting Knowledge Date: December 2023\\n" }}
{{- "Today Date: " + date_string + "\\n\\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""
PLAIN = "{% for message in messages %}{{ message['content'] }}{% endfor %}"

TALKS = [
    [{"role": "user", "content": "What is 2+2?"}],
    [{"role": "system", "content": "  Be brief.\n"}, {"role": "user", "content": " \u00a0Hi \u2003"}],
    [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c\n"}],
    [{"role": "user", "content": "a"}, {"role": "assistant", "content": "<think>\n\nfirst\n</think>\n\nb"},
     {"role": "user", "content": "c"}, {"role": "assistant", "content": "x<think>y</think>z<think>\nw</think>\n\nd"}],
    [{"role": "user", "content": "q"}, {"role": "assistant", "content": "<think>use</think>call"},
     {"role": "user", "content": "<tool_response>\n4\n</tool_response>"}, {"role": "assistant", "content": "four"}],
    [{"role": "assistant", "content": "\n\nonly"}, {"role": "assistant", "content": "</think>"}],
    [{"role": "user", "content": ""}, {"role": "system", "content": "<|im_end|>"}],
    [{"role": "user", "content": "\x1c\x1f\u0085x\x1b\u200b\x1d"}],
]


def chat():
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    rows = []
    for name, text in (("chatml", CHATML_LOOP), ("chatml", CHATML_DEFAULT), ("chatml", CHATML_THINK), ("llama3", LLAMA3),
                       ("llama3", LLAMA3_DATED), ("plain", PLAIN)):
        compiled = environment.from_string(text)
        renders = []
        for talk in TALKS:
            for prompt in (False, True):
                rendered = compiled.render(messages=talk, add_generation_prompt=prompt, bos_token="<|begin_of_text|>")
                renders.append({"messages": talk, "add_generation_prompt": prompt, "text": rendered})
        rows.append({"name": name, "template": text, "renders": renders})
    write("chat.cases.json", rows)


def main():
    llama2()
    flags(gpt2())
    characters()
    chat()


if __name__ == "__main__":
    main()
