#!/usr/bin/env python3
"""Greedy accuracy of a model directory on held-out prompts by Hugging Face transformers: another implementation's word on
a checkpoint of ours. Prints one line; "not run" where transformers or torch is missing.

Usage: hf_eval.py MODEL_DIR EVAL.jsonl [--max-new N]
"""
import argparse
import json
import sys

try:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
except ImportError as error:
    print(f"not run: {error}")
    sys.exit(0)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("eval")
    parser.add_argument("--max-new", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32)
    rows = [json.loads(line) for line in open(args.eval, encoding="utf-8")]
    right = 0
    by_length = {}
    for row in rows:
        ids = tokenizer(row["prompt"], add_special_tokens=False)["input_ids"]
        by_length.setdefault(len(ids), []).append((ids, row["answer"]))
    with torch.no_grad():
        for batch in by_length.values():
            out = model.generate(torch.tensor([ids for ids, _ in batch]), do_sample=False,
                                 max_new_tokens=args.max_new)
            for (ids, answer), got in zip(batch, out):
                right += tokenizer.decode(got[len(ids):], skip_special_tokens=True) == answer
    print(f"transformers: {right} of {len(rows)} right, accuracy {right / len(rows):.3f}")


if __name__ == "__main__":
    main()
