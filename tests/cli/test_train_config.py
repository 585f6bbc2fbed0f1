#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""quern train -c: what mlx-lm's YAML says is what the options say; lines that cannot be are named. And what a run says
of itself: the log, --dry-run, early ends.

    tests/cli/test_train_config.py QUERN
"""
import html.parser
import json
import os
import re
import tempfile

from helper import check, finish, refused, run

# mlx-lm's example (lora_config.yaml), with what it has commented out, for other data.
CONFIG = """\
# The path to the local model directory or Hugging Face repo.
---
train: true   # whether or not to train
fine_tune_type: lora
optimizer: adamw
optimizer_config:
  adamw:
    betas: [0.8, 0.98]
    eps: 1e-6
    bias_correction: true
  sgd: {}
data: "%s"
seed: 7
num_layers: 2
batch_size: 2
iters: 12
val_batches: 25
learning_rate: 2e-3
steps_per_report: 5
steps_per_eval: 200
resume_adapter_file: null
adapter_path: '%s'
save_every: 100
test: false
test_batches: 100
max_seq_length: 2048
grad_checkpoint: false
lora_parameters:
  # These are the default keys
  keys: ["self_attn.q_proj", 'self_attn.v_proj']
  rank: 4
  scale: 5.0
  dropout: 0.0
lr_schedule:
  name: cosine_decay
  warmup: 3 # 0 for no warmup
  warmup_init: 0
  arguments:
  - 2e-3
  - 9
  - 1e-7
"""
SAME = ["--beta1", "0.8", "--beta2", "0.98", "--eps", "1e-6", "--seed", "7", "--num-layers", "2", "--batch-size", "2", "--iters", "12",
        "--learning-rate", "2e-3", "--rank", "4", "--alpha", "20", "--target", "self_attn.q_proj", "--target", "self_attn.v_proj",
        "--lr-schedule", "cosine", "--warmup-steps", "3", "--lr-decay-steps", "12", "--min-learning-rate", "1e-7"]


def put(folder, name, text):
    path = os.path.join(folder, name)
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)
    return path


def read(*parts):
    with open(os.path.join(*parts), "rb") as f:
        return f.read()


def test_same(folder, data):
    by_options, by_config, by_json = (os.path.join(folder, name) for name in ("options", "config", "json"))
    status, _, err = run("train", "--data", data, "-o", by_options, *SAME)
    check("by options", status == 0, err)
    config = put(folder, "config.yaml", CONFIG.replace("  sgd: {}\n", "") % (data, by_config))
    status, _, err = run("train", "-c", config)
    check("by the configuration", status == 0 and "step 5 of 12" in err, err)
    check("it is the same", read(by_config, "trainer.json") == read(by_options, "trainer.json"), read(by_config, "trainer.json"))
    text = json.dumps({"data": data, "adapter_path": by_json, "seed": 7, "iters": 12, "batch_size": 2, "num_layers": 2,
                       "optimizer_config": {"adamw": {"betas": [0.8, 0.98], "eps": 1e-6}},
                       "lora_parameters": {"keys": ["self_attn.q_proj", "self_attn.v_proj"], "rank": 4, "scale": 5},
                       "lr_schedule": {"name": "cosine_decay", "arguments": [2e-3, 9, 1e-7], "warmup": 3}})
    status, _, err = run("train", "-c", put(folder, "config.json", text))
    check("as JSON", status == 0 and read(by_json, "trainer.json") == read(by_options, "trainer.json"), err)
    over = os.path.join(folder, "over")
    status, _, err = run("train", "-c", config, "-o", over, "--rank", "2", "--iters", "3", "--target", "down_proj")
    state = json.loads(read(over, "trainer.json"))
    check("the command line counts", status == 0 and (state["of"]["rank"], state["steps"], state["of"]["targets"]) == (2, 3, ["down_proj"]), state)


def test_refused(folder, data):
    cases = [("learning_rat: 1", "learning_rat: there is no such option; did you mean --learning-rate?"),
             ("train: false", "train: not supported; true is"), ("test: true", "false is"),
             ("hf_dataset: {a: b}", "line 1: this part of YAML"), ("model: &anchor x", "line 1: this part of YAML"),
             ("a: 1\n   b: 2", "line 2: indentation"), ("\titers: 2", "line 1: a tab"), ("iters", "line 1: neither"),
             ("iters: 2\niters: 3", "line 2: the key stands twice"), ("model: \"x", "line 1: a quote"),
             ("target: [a, b", "line 1: a list ends"), ("- a", "line 1: a list and keys"), ("iters: [1]", "iters: a number or a text"),
             ("mask_prompt: 3", "true or false"), ("lora_parameters:\n  dropout: 1.5", "dropout: "),
             ("lora_parameters:\n  rang: 4", "rang: not supported"), ("lr_schedule:\n  name: step_decay\n  arguments: [1, 2]", "cosine_decay or"),
             ("optimizer_config:\n  adamw:\n    amsgrad: true", "amsgrad: not supported"), ("{\"iters\": 2,}", "JSON"),
             ("config: x", "config: there is no such option")]
    for i, (text, part) in enumerate(cases):
        path = put(folder, f"bad{i}.yaml", text)
        refused(f"configuration {i}", run("train", "-c", path, "--data", data, "-o", "/nowhere/x"), 2, path, part)
    status, _, err = run("train", "-c", put(folder, "bad.yaml", "iters: none"), "--data", data)
    check("a value", status == 2 and "--iters: \"none\" is not a whole number" in err and "bad.yaml: iters" in err, err)
    refused("another type", run("train", "-c", put(folder, "dora.yaml", "fine_tune_type: dora"), "--data", data, "-o", "/nowhere/x"),
            2, "--fine-tune-type is lora or full")
    refused("no file", run("train", "-c", "/none.yaml"), 2, "/none.yaml")
    both = [os.path.join(folder, n) for n in ("kept", "again")]
    for out, more in zip(both, ([], ["--grad-checkpoint"])):
        run("train", "--data", data, "-o", out, "--iters", "3", "--batch-size", "2", *more)
    both = [open(os.path.join(out, "adapter_model.safetensors"), "rb").read() for out in both]
    check("checkpointing", both[0] == both[1] and both[0])


def test_told(folder, data):
    out, log = os.path.join(folder, "told"), os.path.join(folder, "log.jsonl")
    args = ["--data", data, "-o", out, "--val-split", "0.4", "--batch-size", "1", "--learning-rate", "2e-2", "--log", log]
    status, stdout, err = run("train", *args, "--iters", "400", "--steps-per-eval", "10", "--patience", "3")
    ended = re.search(r"^ended behind step (\d+): 3 validations were no better$", err, re.M)
    check("it ends early", status == 0 and not stdout and ended and int(ended[1]) < 400, err)
    lowest = re.search(r"^lowest validation loss ([\d.]+), behind step (\d+)$", err, re.M)
    check("thirty steps behind the best", ended and lowest and int(ended[1]) == int(lowest[2]) + 30, err)
    check("the curve", re.search("^loss [\u2581-\u2588]{40,60} [\\d.]+ to [\\d.]+$", err, re.M), err)
    rows = [json.loads(line) for line in read(log).splitlines()]
    losses, valid = [r for r in rows if "loss" in r], [r for r in rows if "validation_loss" in r]
    check("the log", len(losses) == int(ended[1]) // 10 and valid[0]["step"] == 0 and len(valid) == len(losses) + 1, rows)
    check("what is in it", set(losses[0]) == {"step", "loss", "learning_rate", "tokens", "seconds", "memory"}, losses[0])
    check("and what was said is so", f"{min(v['validation_loss'] for v in valid):.4f}" == lowest[1], (valid, lowest[0]))
    status, _, err = run("train", *args, "--iters", "400", "--steps-per-eval", "10", "--patience", "3", "--resume")
    check("it does not go on", status == 0 and f"ended behind step {ended[1]}" in err and "tok/s" not in err, err)
    check("the log goes on", b"{\"resumed\":%d}" % int(ended[1]) in read(log), read(log)[-200:])
    status, stdout, err = run("train", "--data", data, "--dry-run", "--iters", "100", "--batch-size", "2", "--grad-accumulation-steps", "3")
    plan = dict(re.split(r" {2,}", line, maxsplit=1) for line in stdout.decode().splitlines())
    check("a plan", status == 0 and set(plan) == {"texts", "adapter", "steps", "memory", "time"}, stdout)
    check("of what is asked for", plan["steps"] == "100, of 6 texts: 120.0 epochs" and plan["adapter"] == "131072 numbers", plan)
    status, _, err = run("train", "--data", data, "-o", out + "2", "--log", "/none/x")
    check("a log that cannot be", status == 1 and "/none/x: cannot open" in err and not os.path.exists(out + "2"), err)
    long = os.path.join(folder, "long")
    tiny = ["--iters", "600", "--batch-size", "1", "--rank", "1", "--num-layers", "1", "--steps-per-report", "1", "--learning-rate", "1e-3"]
    err = run("train", "--data", data, "-o", long, *tiny)[2]
    course = json.loads(json.loads(read(long, "trainer.json"))["note"])
    losses = [float(x) for x in re.findall(r"loss ([\d.]+), lr", err)]
    check("600 steps in 150 points", course["width"] == 4 and [n for _, n in course["points"]] == [4] * 150, course)
    check("each of its steps", all(abs(total - sum(losses[4 * i:4 * i + 4])) < 3e-4 for i, (total, _) in enumerate(course["points"])), course)
    if os.path.exists("/dev/full"):
        status, _, err = run("train", "--data", data, "-o", out + "3", "--iters", "20", "--log", "/dev/full")
        check("a log that is full", status == 1 and "/dev/full: cannot write" in err, err)


class Page(html.parser.HTMLParser):
    """A page's cells, curves, and what it would load."""

    def __init__(self, text):
        super().__init__()
        self.open, self.cells, self.curves, self.loads = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        if tag not in ("meta", "polyline", "path"):
            self.open.append(tag)
        if tag in ("td", "th"):
            self.cells.append("")
        if tag == "polyline":
            self.curves.append([tuple(map(float, pair.split(","))) for pair in attrs["points"].split()])
        self.loads += [attrs[k] for k in ("src", "href") if k in attrs]

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("td", "th"):
            self.cells[-1] += data


def test_report(folder, data):
    out, page = os.path.join(folder, "reported"), os.path.join(folder, "page.html")
    args = ["--data", data, "-o", out, "--report", page, "--iters", "60", "--batch-size", "2", "--learning-rate", "5e-3"]
    ask = ["--raw", "--sample", "Owl 3 keeps", "--sample", "<b> & \"c\""]
    status, stdout, err = run("train", *args, *ask, "--steps-per-eval", "20", "--val-split", "0.4", "--lr-schedule", "linear")
    check("a report", status == 0 and not stdout, err)
    p = Page(read(page).decode())
    check("nothing is open or loaded", not p.open and not p.loads and "<script" not in read(page).decode(), (p.open, p.loads))
    check("curves of steps, validations and rates", [len(c) for c in p.curves] == [60, 4, 201], [len(c) for c in p.curves])
    loss, valid, rate = p.curves
    check("the loss falls: y grows", loss[-1][1] > loss[0][1] + 100 and rate[-1][1] > rate[0][1] + 100, (loss[0], loss[-1]))
    check("within the frame", all(56 <= x <= 712 and 12 <= y <= 216 for c in p.curves for x, y in c), p.curves)
    at = p.cells.index("Owl 3 keeps")
    after = run("generate", "--raw", "-p", "Owl 3 keeps", "--temp", "0", "-n", "64", "--adapter", out)[1].decode()
    before = run("generate", "--raw", "-p", "Owl 3 keeps", "--temp", "0", "-n", "64")[1].decode()
    check("samples", (p.cells[at + 1], p.cells[at + 2]) == (before[:-1], after[:-1]) and before != after, p.cells[at:at + 3])
    check("text is no markup", "<b> & \"c\"" in p.cells, p.cells)
    check("options", p.cells[p.cells.index("learning-rate") + 1] == "0.005" and p.cells[p.cells.index("lr-schedule") + 1] == "linear", p.cells)
    refused("a sample without a report", run("train", "--data", data, "-o", out + "2", "--sample", "x"), 2, "--report")
    refused("no place for it", run("train", "--data", data, "-o", out + "2", "--report", "/none/x.html"), 1, "/none/x.html")
    check("and then nothing is trained", not os.path.exists(out + "2"))


with tempfile.TemporaryDirectory() as root:
    texts = put(root, "data.jsonl", "".join(json.dumps({"text": f"Owl {i} keeps a key under stone {i * i}."}) + "\n" for i in range(5)))
    test_same(root, texts)
    test_refused(root, texts)
    test_told(root, texts)
    test_report(root, texts)
finish()
