#!/usr/bin/env python3
"""A reward program: the share of the answer's digits, its end included, that are right.

It is started once per reward actor and kept running. For each sample it reads one line from its standard
input, a JSON object with `id`, `prompt`, `text` (the response), `answer` and the row's other fields, and
writes one line, {"id": the same, "reward": number} or {"id": the same, "error": "why"}. What it has to say
to people goes to standard error. When its input ends, it ends.
"""
import json
import sys

for line in sys.stdin:
    sample = json.loads(line)
    text, answer = sample["text"], sample["answer"]
    if answer is None:
        # An error is no number: the sample is asked for again, and then its group fails with this text.
        reply = {"id": sample["id"], "error": "the row has no answer"}
    else:
        right = sum(a == b for a, b in zip(text, answer)) + (len(text) == len(answer))
        reply = {"id": sample["id"], "reward": right / (len(answer) + 1)}
    # The flush matters: an answer that stays in a buffer is an answer that never came.
    print(json.dumps(reply), flush=True)
