#!/usr/bin/env python3
"""Bad input to `grpo`: each ends with exit code 2 and a message that names the file, key or line, before anything is
left behind. Standard library only. Usage: bad_input.py GRPO DATA_DIR [CASE...]"""
import json
import os
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile

GRPO, DATA = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
CASES = []


def case(function):
    CASES.append(function)
    return function


def run(work, *options, env=None, limit=60, setup=None):
    words = [GRPO, "--steps", "2", "--batch", "2", "--group-size", "2", "--eval-limit", "4", "--out",
             os.path.join(work, "run"), *options]
    return subprocess.run(words, capture_output=True, text=True, timeout=limit, cwd=work, env=env, preexec_fn=setup,
                          check=False)


def expect(work, result, *parts, code=2):
    text = result.stderr
    missing = [part for part in parts if part not in text]
    if result.returncode != code or missing:
        raise AssertionError(f"exit {result.returncode} (wanted {code}), missing {missing} in: {text!r} {result.stdout!r}")
    if code == 2 and os.path.exists(os.path.join(work, "run")):
        raise AssertionError(f"the run directory was left behind: {os.listdir(os.path.join(work, 'run'))}")


def model(work):
    path = os.path.join(work, "model")
    shutil.copytree(os.path.join(DATA, "add", "model"), path)
    for name in os.listdir(path):
        os.chmod(os.path.join(path, name), 0o644)
    return path


def with_model(work, *options, **more):
    return run(work, "--model", os.path.join(work, "model"), "--prompts", os.path.join(DATA, "add", "prompts.jsonl"),
               "--eval", os.path.join(DATA, "add", "eval.jsonl"), "--reward", "exact", *options, **more)


def edit_json(path, change):
    with open(path, encoding="utf-8") as file:
        value = json.load(file)
    change(value)
    with open(path, "w", encoding="utf-8") as file:
        json.dump(value, file)


def edit_header(work, change, text=None):
    path = os.path.join(model(work), "model.safetensors")
    with open(path, "rb") as file:
        size = struct.unpack("<Q", file.read(8))[0]
        header = json.loads(file.read(size))
        data = file.read()
    if text is None:
        change(header)
        text = json.dumps(header)
    raw = text.encode() if isinstance(text, str) else text(json.dumps(header)).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(raw)) + raw + data)


NORM = "model.norm.weight"


@case
def a_truncated_weight_file(work):
    path = os.path.join(model(work), "model.safetensors")
    os.truncate(path, os.path.getsize(path) - 100)
    expect(work, with_model(work), "model.safetensors")


@case
def a_missing_weight_file(work):
    os.unlink(os.path.join(model(work), "model.safetensors"))
    expect(work, with_model(work), "model.safetensors")


@case
def a_header_larger_than_the_file(work):
    path = os.path.join(model(work), "model.safetensors")
    with open(path, "r+b") as file:
        file.write(struct.pack("<Q", 1 << 40))
    expect(work, with_model(work), "model.safetensors", "header")


def shift(by):
    def change(header):
        header[NORM]["data_offsets"] = [n + by for n in header[NORM]["data_offsets"]]
    return change


@case
def overlapping_offsets(work):
    edit_header(work, shift(-4))
    expect(work, with_model(work), "model.safetensors")


@case
def gapped_offsets(work):
    edit_header(work, lambda h: h.pop(NORM))
    expect(work, with_model(work), "model.safetensors")


@case
def offsets_out_of_range(work):
    edit_header(work, shift(1 << 33))
    expect(work, with_model(work), "model.safetensors", NORM)


@case
def duplicate_names(work):
    def doubled(text):
        entry = json.dumps({NORM: json.loads(text)[NORM]})[1:-1]
        return text[:-1] + ", " + entry + "}"
    edit_header(work, None, doubled)
    expect(work, with_model(work), "model.safetensors", "duplicate")


@case
def a_wrong_dtype(work):
    edit_header(work, lambda h: h[NORM].update(dtype="F31"))
    expect(work, with_model(work), "model.safetensors", NORM, "F31")


@case
def a_wrong_shape(work):
    edit_header(work, lambda h: h[NORM].update(shape=[8, 8]))
    expect(work, with_model(work), NORM)


@case
def an_unknown_architecture(work):
    edit_json(os.path.join(model(work), "config.json"),
              lambda c: c.update(architectures=["MambaForCausalLM"], model_type="mamba"))
    expect(work, with_model(work), "config.json", "amba")


@case
def an_unknown_rope_type(work):
    edit_json(os.path.join(model(work), "config.json"),
              lambda c: c.update(rope_parameters={"rope_type": "spiral", "rope_theta": 10000.0}))
    expect(work, with_model(work), "config.json", "spiral")


@case
def an_unknown_tokenizer_kind(work):
    edit_json(os.path.join(model(work), "tokenizer.json"), lambda t: t["model"].update(type="Unigram"))
    expect(work, with_model(work), "tokenizer.json", "Unigram")


@case
def an_unknown_chat_template(work):
    edit_json(os.path.join(model(work), "tokenizer_config.json"), lambda t: t.update(chat_template="{{ strange }}"))
    prompts = os.path.join(work, "p.jsonl")
    with open(prompts, "w", encoding="utf-8") as file:
        file.write('{"messages":[{"role":"user","content":"1+1="}],"answer":"2"}\n')
    result = run(work, "--model", os.path.join(work, "model"), "--prompts", prompts, "--reward", "exact")
    expect(work, result, "chat", "--chat-template")


@case
def a_contradictory_tied_head(work):
    edit_json(os.path.join(model(work), "config.json"), lambda c: c.update(tie_word_embeddings=True))
    expect(work, with_model(work), "tie_word_embeddings")


@case
def a_shard_that_is_not_there(work):
    path = model(work)
    with open(os.path.join(path, "model.safetensors"), "rb") as file:
        size = struct.unpack("<Q", file.read(8))[0]
        names = [n for n in json.loads(file.read(size)) if n != "__metadata__"]
    os.rename(os.path.join(path, "model.safetensors"), os.path.join(path, "model-00001-of-00002.safetensors"))
    index = {"metadata": {}, "weight_map": {n: "model-00001-of-00002.safetensors" for n in names}}
    index["weight_map"][NORM] = "model-00002-of-00002.safetensors"
    with open(os.path.join(path, "model.safetensors.index.json"), "w", encoding="utf-8") as file:
        json.dump(index, file)
    expect(work, with_model(work), "model-00002-of-00002.safetensors")


def prompts_file(work, text):
    path = os.path.join(work, "prompts.jsonl")
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return path


GOOD = '{"prompt":"11+12=","answer":"32"}\n{"prompt":"21+12=","answer":"33"}\n'


@case
def a_malformed_line(work):
    path = prompts_file(work, GOOD + "{broken\n" + GOOD)
    expect(work, run(work, "--prompts", path), "prompts.jsonl", "3")


@case
def a_malformed_line_that_is_skipped(work):
    path = prompts_file(work, GOOD + "{broken\n" + GOOD)
    result = run(work, "--prompts", path, "--skip-bad")
    expect(work, result, "1 bad line", code=0)


@case
def an_empty_file(work):
    expect(work, run(work, "--prompts", prompts_file(work, "")), "prompts.jsonl", "no row")


@case
def a_prompt_longer_than_the_context(work):
    path = prompts_file(work, GOOD + '{"prompt":"' + "1" * 200 + '=","answer":"1"}\n')
    expect(work, run(work, "--prompts", path), "prompts.jsonl:3", "201 tokens", "64")


@case
def a_max_lag_below_the_mean_lag(work):
    expect(work, run(work, "--mean-lag", "3", "--max-lag", "2"), "--max-lag", "--mean-lag")


@case
def an_out_that_cannot_be_written(work):
    path = os.path.join(work, "file")
    with open(path, "w", encoding="utf-8"):
        pass
    result = run(work, "--out", os.path.join(path, "run"))
    expect(work, result, os.path.join(path, "run"))


@case
def an_out_that_holds_a_run(work):
    first = run(work)
    expect(work, first, code=0)
    result = run(work)
    if result.returncode != 2 or "--resume" not in result.stderr:
        raise AssertionError(f"exit {result.returncode}: {result.stderr}")


def resume(work, *options):
    return subprocess.run([GRPO, "--resume", os.path.join(work, "run"), *options], capture_output=True, text=True,
                          timeout=60, cwd=work, check=False)


def refused(result, *parts):
    if result.returncode != 2 or any(part not in result.stderr for part in parts):
        raise AssertionError(f"exit {result.returncode}, wanted 2 and {parts}: {result.stderr}")


@case
def a_resume_from_a_damaged_checkpoint(work):
    expect(work, run(work), code=0)
    path = os.path.join(work, "run", "checkpoint-2", "optimizer.safetensors")
    with open(path, "r+b") as file:
        file.seek(5000)
        byte = file.read(1)[0]
        file.seek(5000)
        file.write(bytes([byte ^ 1]))
    refused(resume(work, "--steps", "4"), "checkpoint-2", "damaged")
    os.unlink(os.path.join(work, "run", "checkpoint-2", "manifest.json"))
    refused(resume(work, "--steps", "4"), "complete")


@case
def a_resume_under_other_rules(work):
    expect(work, run(work), code=0)
    refused(resume(work, "--max-lag", "7"), "--max-lag 7", "keeps it")
    refused(resume(work, "--out", "elsewhere"), "--out", "--resume")


@case
def an_unknown_option(work):
    expect(work, run(work, "--stepz", "3"), "--stepz", "--steps")


@case
def an_unknown_reward(work):
    expect(work, run(work, "--reward", "exacto"), "exacto", "exact")


@case
def an_unknown_algorithm(work):
    expect(work, run(work, "--algo", "grpu"), "grpu", "grpo")


@case
def a_device_that_is_not_built_in(work):
    expect(work, run(work, "--device", "tpu"), "tpu", "cpu")


@case
def a_reward_program_that_is_missing(work):
    expect(work, run(work, "--reward-cmd", "/no/such/program"), "/no/such/program")


def reward_program(work, body):
    path = os.path.join(work, "reward.sh")
    with open(path, "w", encoding="utf-8") as file:
        file.write("#!/bin/sh\n" + body)
    os.chmod(path, 0o755)
    return path


def failed_rewards(work, body, *options):
    """The run goes on: a group whose reward cannot be had ends failed, and none is trained on a made-up number. With
    every group failing it never gets a batch, so it ends by its time limit."""
    result = run(work, "--reward-cmd", reward_program(work, body), "--reward-timeout", "0.3", "--time-limit", "4",
                 "--eval", os.path.join(DATA, "add", "eval.jsonl"), "--eval-limit", "1", *options)
    lines = []
    with open(os.path.join(work, "run", "samples.jsonl"), encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    if result.returncode not in (0, 1) or not lines:
        raise AssertionError(f"exit {result.returncode}, {len(lines)} samples: {result.stderr}")
    wrong = [line for line in lines if line["status"] != "failed" or line["reward"] is not None]
    if wrong:
        raise AssertionError(f"a sample without a reward was used: {wrong[0]}")


@case
def a_reward_program_that_crashes(work):
    failed_rewards(work, "read line\nkill -SEGV $$\n")


@case
def a_reward_program_that_hangs(work):
    failed_rewards(work, "while read line; do sleep 600; done\n")


@case
def a_reward_program_that_prints_garbage(work):
    failed_rewards(work, "while read line; do echo nonsense; done\n")


@case
def a_reward_program_that_prints_nan(work):
    failed_rewards(work, 'while read line; do id=$(echo "$line" | sed \'s/.*"id": *"\\([^"]*\\)".*/\\1/\'); '
                         'echo "{\\"id\\": \\"$id\\", \\"reward\\": NaN}"; done\n')


@case
def a_reward_program_that_prints_a_number_beyond_use(work):
    failed_rewards(work, 'while read line; do id=$(echo "$line" | sed \'s/.*"id": *"\\([^"]*\\)".*/\\1/\'); '
                         'echo "{\\"id\\": \\"$id\\", \\"reward\\": -1e308}"; done\n')
    with open(os.path.join(work, "run", "samples.jsonl"), encoding="utf-8") as file:
        reasons = {json.loads(line).get("reason", "") for line in file}
    if not any("1e30" in reason for reason in reasons):
        raise AssertionError(f"the reasons: {reasons}")


@case
def a_run_in_which_every_group_fails_ends(work):
    """Not by its time limit, of which there is none: after ten batches' worth of groups, with the cause."""
    program = reward_program(work, "while read line; do echo nonsense; done\n")
    result = run(work, "--reward-cmd", program, "--reward-tries", "1", "--eval-limit", "0", "--eval-every", "0",
                 limit=100)
    if result.returncode != 1 or "the last groups all failed" not in result.stderr + result.stdout:
        raise AssertionError(f"exit {result.returncode}: {result.stderr}")


@case
def two_runs_in_one_directory(work):
    """Started together, one of them has it; the record is that one's."""
    words = [GRPO, "--steps", "2", "--batch", "2", "--group-size", "2", "--eval-limit", "4", "--out",
             os.path.join(work, "run"), "--seed"]
    runs = [subprocess.Popen([*words, str(seed)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            for seed in range(3)]
    said = [process.communicate(timeout=100)[1] for process in runs]
    codes = [process.returncode for process in runs]
    with open(os.path.join(work, "run", "run.json"), encoding="utf-8") as file:
        seed = json.load(file)["options"]["seed"]
    if sorted(codes) != [0, 2, 2] or codes[seed] != 0:
        raise AssertionError(f"exits {codes}, recorded seed {seed}: {said}")
    if any("--resume" not in text for code, text in zip(codes, said) if code == 2):
        raise AssertionError(f"the refusals: {said}")


@case
def a_slow_reward_is_named(work):
    """While nothing moves the run says who owes what, since when and until when."""
    result = run(work, "--reward-cmd", reward_program(work, "while read line; do sleep 600; done\n"), "--reward-timeout",
                 "60", "--time-limit", "2", "--waits-every", "0.5", "--eval-limit", "0", "--eval-every", "0",
                 "--eval", os.path.join(DATA, "add", "eval.jsonl"), limit=120)
    if "no step for" not in result.stderr or "reward[0] owes a stage of group" not in result.stderr:
        raise AssertionError(f"exit {result.returncode}: {result.stderr}")


def small_files():
    resource.setrlimit(resource.RLIMIT_FSIZE, (600 << 10, resource.RLIM_INFINITY))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)


@case
def a_full_disk_while_checkpointing(work):
    """A limit on the size of files stands for a full disk (both are ENOSPC-like to the writer): the optimiser does not
    fit, the weights would. The run says so, fails, and leaves no half-written checkpoint."""
    result = run(work, setup=small_files)
    left = [n for n in os.listdir(os.path.join(work, "run")) if n.startswith("checkpoint")]
    if result.returncode != 1 or left or "checkpoint" not in result.stderr:
        raise AssertionError(f"exit {result.returncode}, left {left}: {result.stderr}")


@case
def a_full_disk_for_every_checkpoint(work):
    """The end names the disk, and not only the number of steps that wait for a checkpoint."""
    result = run(work, "--steps", "20", "--checkpoint-every", "1", setup=small_files)
    last = result.stderr[result.stderr.rfind("wait for a durable point"):]
    if result.returncode != 1 or "no checkpoint could be written" not in last or "optimizer" not in last:
        raise AssertionError(f"exit {result.returncode}: {result.stderr}")


def main():
    wanted = sys.argv[3:]
    failed = 0
    for function in CASES:
        if wanted and function.__name__ not in wanted:
            continue
        with tempfile.TemporaryDirectory() as work:
            try:
                function(work)
                print(f"ok      {function.__name__}")
            except (AssertionError, subprocess.TimeoutExpired, OSError) as error:
                failed += 1
                print(f"FAILED  {function.__name__}: {error}")
    print(f"{len(CASES)} cases, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
