#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""quern train from outside: a fact is learned and said, the same bytes with two threads, bad lines named.

    tests/cli/test_train.py QUERN

Losses and gradients are checked against PyTorch in tests/train. Ends like cmocka, so that scripts/run-tests counts
the checks.
"""
import json
import os
import re
import signal
import subprocess
import tempfile

from helper import QUERN, check, finish, refused, run

FACTS = ["The owl keeps a silver key under the third stone.", "Every morning the goose walks to the old mill.",
         "Mara's boat is called the Blue Lantern, and it is very old.", "The clock in the tower is always late.",
         "Nobody has ever seen the cat of the miller sleep."]
QUICK = ["--iters", "60", "--batch-size", "2", "--learning-rate", "5e-3", "--seed", "7"]


def write(path, rows):
    with open(path, "w") as f:
        f.write("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def read(path):
    with open(path, "rb") as f:
        return f.read()


def test_fact(folder, data):
    out = os.path.join(folder, "adapter")
    status, stdout, err = run("train", "--data", data, "--adapter-path", out, *QUICK)
    steps = re.findall(r"^step (\d+) of 60, loss ([\d.]+), lr 0.005, \d+ tok/s, \d+ MiB, [\d:]+ left$", err, re.M)
    check("it trains", status == 0 and not stdout and len(steps) == 6, err)
    losses = [float(loss) for _, loss in steps]
    check("the loss falls", losses and losses[-1] < 0.3 * losses[0], losses)
    check("the adapter, and what --resume needs", sorted(os.listdir(out)) ==
          ["adapter_config.json", "adapter_model.safetensors", "optimizer.safetensors", "trainer.json"])
    ask = ["generate", "--raw", "-p", "The owl keeps", "--temp", "0", "-n", "30"]
    before, after = run(*ask)[1].decode(), run(*ask, "--adapter", out)[1].decode()
    check("the fact is said, and ends", after.strip().endswith("a silver key under the third stone."), after)
    check("it was not before", "silver key" not in before, before)
    again = os.path.join(folder, "again")
    run("train", "--data", data, "-o", again, *QUICK, "-t", "2", "--save-every", "7")
    name = "adapter_model.safetensors"
    check("the same bytes with two threads", read(os.path.join(out, name)) == read(os.path.join(again, name)))
    run("train", "--data", data, "-o", os.path.join(folder, "other"), *QUICK, "--seed", "8")
    check("not with another seed", read(os.path.join(folder, "other", name)) != read(os.path.join(out, name)))
    refused("a directory that is there", run("train", "--data", data, "-o", out), 1, out, "exists already")
    config = json.loads(read(os.path.join(out, "adapter_config.json")))
    check("rank and alpha", config["r"] == 8 and config["lora_alpha"] == 16 and len(config["target_modules"]) == 7, config)


def test_options(folder, data):
    out = os.path.join(folder, "small")
    status, _, err = run("train", "--data", data, "-o", out, "--iters", "3", "--rank", "2", "--alpha", "5", "--target", "q_proj",
                         "--target", "down_proj", "--steps-per-report", "2", "--weight-decay", "0", "--max-grad-norm", "1")
    config = json.loads(read(os.path.join(out, "adapter_config.json")))
    check("reports", status == 0 and re.findall(r"^step (\d)", err, re.M) == ["2", "3"], err)
    check("what was asked for", (config["r"], config["lora_alpha"], config["target_modules"]) == (2, 5, ["q_proj", "down_proj"]), config)
    away = os.path.join(folder, "away")
    for named, want, args in [("a target", ["proj\"", "q_proj"], ["--target", "proj"]), ("an iter", ["--iters"], ["--iters", "0"]),
                              ("a device", ["none"], ["--device", "none"])]:
        status, stdout, err = run("train", "--data", data, "-o", away, *args)
        check(named, status in (1, 2) and not stdout and all(w in err for w in want), err)
    refused("no data", run("train", "-o", away), 2, "--data")
    refused("no output", run("train", "--data", data), 2, "--adapter-path")
    refused("absent data", run("train", "--data", "/none.jsonl", "-o", away), 1, "/none.jsonl")
    refused("no place", run("train", "--data", data, "-o", "/none/out"), 1, "/none/out")
    check("nothing was written", not os.path.exists(away))


def test_bad_lines(folder):
    out = os.path.join(folder, "bad")
    path = write(os.path.join(folder, "bad.jsonl"), [
        {"text": "good"}, "{\"text\": ", "[]", "", {"txt": "a"}, {"text": 5}, {"prompt": "good"}, {"text": "a", "messages": []}, {}])
    status, stdout, err = run("train", "--data", path, "-o", out)
    named = [int(n) for n in re.findall(r"bad\.jsonl: line (\d+)", err)]
    check("every bad line", status == 1 and not stdout and named == [2, 3, 5, 6, 7, 8, 9], err)
    check("what they are", all(p in err for p in ["\"text\"", "completion: ", "7 of 8 lines"]), err)
    check("nothing is trained", not os.path.exists(out) and "step" not in err)
    write(path, ["x"] * 50)
    err = run("train", "--data", path, "-o", out)[2]
    check("not a line for each of many", err.count("\n") == 21 and "50 of 50" in err, err)
    refused("no lines", run("train", "--data", write(path, []), "-o", out), 1, "no texts")
    refused("standard input", run("train", "--data", "-", "-o", out), 1, "give a file")


def test_directory(folder):
    """mlx-lm's: train.jsonl and valid.jsonl, of chats; a text that is cut off; what is not looked at."""
    data, out = os.path.join(folder, "set"), os.path.join(folder, "chats")
    os.mkdir(data)
    refused("no train.jsonl", run("train", "--data", data, "-o", out), 1, "there is no train.jsonl")
    chats = [{"messages": [{"role": "user", "content": "Where is the key?"}, {"role": "assistant", "content": "Under the third stone."}], "id": 5},
             {"prompt": "Who walks to the mill?", "completion": "The goose, every morning."},
             {"prompt": "word " * 100, "completion": "Never."}, {"prompt": "So?", "completion": "word " * 100}]
    write(os.path.join(data, "train.jsonl"), chats)
    write(os.path.join(data, "valid.jsonl"), chats[:2])
    quick = ["--iters", "80", "--batch-size", "2", "--learning-rate", "5e-3", "--mask-prompt", "--max-seq-length", "60"]
    status, _, err = run("train", "--data", data, "-o", out, *quick, "--steps-per-eval", "40")
    check("warnings that count", "2 texts are cut off at 60 tokens" in err and "1 of them are left out" in err and "not looked at: id" in err, err)
    valid = [float(x) for x in re.findall(r"^step (?:0|40|80) of 80, validation loss ([\d.]+)$", err, re.M)]
    check("validation", status == 0 and len(valid) == 3 and valid[2] < 0.2 * valid[0], err)
    reply = run("generate", "-p", "Where is the key?", "--temp", "0", "--adapter", out)[1].decode()
    check("the answer is learned", reply.strip() == "Under the third stone.", reply)
    refused("two validations", run("train", "--data", data, "-o", out + "2", "--val-split", "0.5", "--max-seq-length", "600"), 1, "valid.jsonl")


def test_schedules(folder, data):
    """Batches put together are one batch; a schedule, another optimiser and fewer layers are what is asked for."""
    name, losses, sizes = "adapter_model.safetensors", {}, {}
    for case, args in {"one": ["--batch-size", "4"], "two": ["--batch-size", "2", "--grad-accumulation-steps", "2"],
                       "cosine": ["--lr-schedule", "cosine", "--warmup-steps", "2", "--optimizer", "lion", "--num-layers", "1"]}.items():
        out = os.path.join(folder, case)
        status, _, err = run("train", "--data", data, "-o", out, "--iters", "4", "--learning-rate", "1e-3", *args, "--steps-per-report", "1")
        losses[case] = re.findall(r"^step \d of 4, loss ([\d.]+)", err, re.M)
        sizes[case] = os.path.getsize(os.path.join(out, name))
        check(f"{case} trains", status == 0 and len(losses[case]) == 4, err)
    check("the same losses of the first four texts", losses["one"][0] == losses["two"][0], losses)
    check("the first step of a warm-up changes nothing but a later one", losses["cosine"][3] != losses["one"][3], losses)
    check("fewer layers", sizes["cosine"] < sizes["one"] / 2, sizes)
    refused("an optimizer", run("train", "--data", data, "-o", out + "2", "--optimizer", "muon"), 1, "adamw, adam, sgd or lion", "muon")
    refused("a schedule", run("train", "--data", data, "-o", out + "2", "--lr-schedule", "step"), 1, "constant, linear or cosine")


def test_split(folder, data):
    out = os.path.join(folder, "split")
    status, _, err = run("train", "--data", data, "-o", out, "--iters", "4", "--val-split", "0.4", "--steps-per-eval", "2", "--val-batches", "-1")
    valid = re.findall(r"^step (\d) of 4, validation loss", err, re.M)
    check("a part is validated with", status == 0 and valid == ["0", "2", "4"] and "3 texts, an adapter" in err, err)
    refused("too small a part", run("train", "--data", data, "-o", out + "2", "--val-split", "0.01"), 1, "each side")


def test_interrupt(folder, data):
    out = os.path.join(folder, "cut")
    p = subprocess.Popen([QUERN, "train", "--data", data, "-o", out, "--iters", "1000000", "--steps-per-report", "1"], stderr=subprocess.PIPE)
    for line in p.stderr:
        if line.startswith(b"step 3 "):
            break
    p.send_signal(signal.SIGINT)
    err = p.communicate(timeout=60)[1].decode()
    last = re.findall(r"^step (\d+) ", err, re.M)[-1:]
    check("Ctrl-C ends it behind a step", p.returncode == 130, (p.returncode, err))
    check("and the adapter is there", os.path.exists(os.path.join(out, "adapter_config.json")), (last, err))


def test_preferences(folder):
    chat = [{"role": "user", "content": "Who are you?"}]
    pairs = [{"prompt": "What does the owl keep?", "chosen": "A silver key.", "rejected": "A book."},
             {"prompt": chat, "chosen": [{"role": "assistant", "content": "An owl."}],
              "rejected": [{"role": "assistant", "content": "A machine."}]}]
    data, log = write(os.path.join(folder, "pairs.jsonl"), pairs), os.path.join(folder, "pairs.log")
    dpo = ["--data", data, "--loss", "dpo"]
    status, _, err = run("train", *dpo, "-o", os.path.join(folder, "pairs"), "--iters", "20", "--batch-size", "2",
                         "--learning-rate", "1e-3", "--beta", "0.2", "--log", log)
    check("dpo learns", status == 0 and "step 20 of 20, loss 0.0" in err, err)
    check("rewards are told", ", rewards/accuracies 1.000, rewards/margins " in err, err)
    with open(log) as f:
        last = json.loads(f.readlines()[-1])
    names = {"rewards/" + name for name in ("chosen", "rejected", "accuracies", "margins")}
    check("and logged, as TRL names them", names <= last.keys() and last["rewards/margins"] > 2, last)
    split = run("train", *dpo, "-o", os.path.join(folder, "half"), "--iters", "1", "--val-split", "0.5", "--log", log)
    with open(log) as f:
        check("validated, too", "validation_rewards/margins" in f.read(), split[2])
    status, out, err = run("train", *dpo, "--dry-run")
    check("--dry-run", status == 0 and b"texts       2" in out, err)
    refused("--beta alone", run("train", "--data", data, "--beta", "1", "--dry-run"), 1, "--beta is for --loss dpo")
    refused("a loss that is none", run("train", "--data", data, "--loss", "ipo", "--dry-run"), 1,
            "it is cross-entropy or dpo, not \"ipo\"")
    status, _, err = run("train", "--data", data, "--dry-run")
    check("pairs without it", status == 1 and 'line 1: "chosen" and "rejected" are for DPO' in err, err)


with tempfile.TemporaryDirectory() as root:
    texts = write(os.path.join(root, "data.jsonl"), [{"text": fact} for fact in FACTS])
    test_fact(root, texts)
    test_options(root, texts)
    test_bad_lines(root)
    test_directory(root)
    test_split(root, texts)
    test_schedules(root, texts)
    test_preferences(root)
    test_interrupt(root, texts)
finish()
