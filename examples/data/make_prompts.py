#!/usr/bin/env python3
"""Writes the prompts of the shipped tasks, from a seed and nothing else (standard library only).

  add   two numbers of two digits; the answer is their sum, last digit first: 37+48= -> 58
  sort  three digits in ascending order: 371> -> 137

Usage: make_prompts.py add|sort DIR [--seed N]     writes DIR/prompts.jsonl and DIR/eval.jsonl (disjoint)
"""
import argparse
import json
import os
import random


def add_rows():
    for a in range(10, 100):
        for b in range(10, 100):
            yield {"prompt": f"{a}+{b}=", "answer": str(a + b)[::-1]}


def sort_rows():
    for n in range(1000):
        yield {"prompt": f"{n:03d}>", "answer": "".join(sorted(f"{n:03d}"))}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("task", choices=["add", "sort"])
    parser.add_argument("dir")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    rows = list(add_rows() if args.task == "add" else sort_rows())
    random.Random(args.seed).shuffle(rows)
    held_out = 500 if args.task == "add" else 100
    for name, part in (("eval.jsonl", rows[:held_out]), ("prompts.jsonl", rows[held_out:])):
        with open(os.path.join(args.dir, name), "w", encoding="utf-8") as file:
            for row in part:
                file.write(json.dumps(row, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
