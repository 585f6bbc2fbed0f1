#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""--backend from outside, with the real mlx-lm where there is one.

    tests/cli/test_backend.py QUERN

mlx-lm is looked for in the Python that QUERN_PYTHON names, else python3 (pip install mlx-lm; on Linux mlx[cpu], too).
Greedy tokens of both backends must be the same ones, in f32. Ends like cmocka, so that scripts/run-tests counts the checks.
"""
import json
import os
import shutil
import signal
import subprocess
import tempfile

from helper import QUERN, SOURCE, check, finish, refused, run, skipped

DEMO = os.path.join(SOURCE, "models", "demo")
FOX = "Tell me a story about a fox."
PYTHON = os.environ.get("QUERN_PYTHON") or "python3"
BUILT = os.environ.get("QUERN_MLX_LM", "true") == "true"


def test_refused():
    for command in ("classify", "embed", "inspect", "batch", "serve"):
        refused(f"{command}", run(command, "--backend", "mlx_lm", *(["-p", "x"] if command != "batch" and command != "serve" else [])),
                2, "mlx_lm", "native")
    for args in (["--stop", "a"], ["--stop", "a", "--raw"], ["-t", "1"], ["--device", "cuda"], ["--repeat-penalty", "1.5"],
                 ["--logit-bias", "5+1"], ["--samplers", "top_k"], ["--ignore-eos"], ["-c", "100"], ["--rotate"],
                 ["--template-var", "a=1"], ["--prompt-cache", "x"], ["--logprobs", "1", "--json"]):
        refused(f"generate {args}", run("generate", "--backend", "mlx_lm", "-p", "x", *args), 2, args[0] if args[0] != "-t" and args[0] != "-c"
                else "--threads" if args[0] == "-t" else "--context", "mlx_lm", "native")
    refused("an unknown one", run("generate", "--backend", "other", "-p", "x"), 2, "other", "native, mlx_lm")
    want = run("generate", "-p", FOX, "--temp", "0")
    check("native", run("generate", "--backend", "native", "-p", FOX, "--temp", "0") == want, want)
    check("native, classify", run("classify", "--backend", "native", "-p", "x")[0] == 0)


def fake(folder, script):
    path = os.path.join(folder, "python")
    with open(path, "w") as f:
        f.write("#!/bin/sh\n" + script)
    os.chmod(path, 0o755)
    return {**os.environ, "QUERN_PYTHON": path, "XDG_CACHE_HOME": folder}


def test_children():
    """tests/backends/test_backend.c has more of these."""
    with tempfile.TemporaryDirectory() as d:
        for name, script, *parts in (("dies", "echo why >&2; exit 3\n", "status 3", "why"), ("says garbage", "echo hello; sleep 9\n", "hello"),
                                     ("fails", "echo '{\"error\":\"no memory\"}'; sleep 9\n", "mlx_lm: no memory")):
            for command in ("generate", "chat"):
                refused(f"{command}: a child that {name}", run(command, "--backend", "mlx_lm", *(["-p", "x"] if command == "generate" else []),
                                                              env=fake(d, script)), 1, *parts)
        hidden = {**fake(d, "exec python3 -S -I \"$@\"\n"), "PYTHONPATH": ""}  # without site-packages
        refused("no mlx_lm", run("generate", "--backend", "mlx_lm", "-p", "x", env=hidden), 1, "pip install mlx-lm")
        refused("no Python", run("generate", "--backend", "mlx_lm", "-p", "x", env={**hidden, "QUERN_PYTHON": "/nothing"}), 1, "/nothing")
        p = subprocess.Popen([QUERN, "generate", "--backend", "mlx_lm", "-p", "x"], env=fake(d, "echo $$ >&2; echo; exec sleep 60\n"),
                             stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        check("an empty line is garbage", p.wait(30) == 1, p.stderr.read())
        p = subprocess.Popen([QUERN, "generate", "--backend", "mlx_lm", "-p", "x"], env=fake(d, "touch \"$0.runs\"; exec sleep 60\n"),
                             stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        while not os.path.exists(os.path.join(d, "python.runs")):
            pass
        p.send_signal(signal.SIGINT)
        check("Ctrl-C while it loads", p.wait(10) == 130, p.stderr.read())


class Speaking:
    """A process that speaks the protocol."""

    def __init__(self, *command):
        self.p = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)

    def ask(self, **line):
        self.p.stdin.write(json.dumps(line).encode() + b"\n")
        self.p.stdin.flush()
        said = []
        while not said or "token" in said[-1]:
            said.append(json.loads(self.p.stdout.readline()))
        return said

    def end(self):
        self.p.stdin.close()
        return self.p.wait(30)


def add_tokenizer(model):
    """One whose tokens are bytes, for a model of tests/golden/ that has none."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    letters = {b: chr(b) for b in plain} | {b: chr(256 + i) for i, b in enumerate(others)}
    tokenizer = {"version": "1.0", "added_tokens": [], "normalizer": None, "post_processor": None,
                 "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
                 "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
                 "model": {"type": "BPE", "vocab": {letters[b]: b for b in range(256)}, "merges": []}}
    with open(os.path.join(model, "tokenizer.json"), "w") as f:
        json.dump(tokenizer, f)
    with open(os.path.join(model, "tokenizer_config.json"), "w") as f:
        json.dump({"tokenizer_class": "PreTrainedTokenizerFast"}, f)


def test_tokens(model):
    """Both programs, asked alike, say the same lines, but for a space at the beginning, which mlx-lm leaves out."""
    ours = Speaking(QUERN, "serve", "--stdio")
    theirs = Speaking(PYTHON, os.path.join(SOURCE, "src/backends/mlx_lm/bridge.py"))
    greedy = {"temperature": 0, "top_p": 1, "min_p": 0, "top_k": 0, "seed": 1}
    for line in ({"cmd": "load", "path": model}, {"cmd": "info"}, {"cmd": "generate", "prompt": "Once upon", "max_tokens": 100, **greedy},
                 {"cmd": "chat", "messages": [{"role": "user", "content": FOX}], "max_tokens": 300, **greedy},
                 {"cmd": "chat", "messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "caf\u00e9 \u4e2d\U0001f98a"}],
                  "max_tokens": 300, **greedy}, {"cmd": "cancel"}):
        a, b = ours.ask(**line), theirs.ask(**line)
        ids = [[t["token_id"] for t in said[:-1] if t["token_id"] >= 0] for said in (a, b)]
        texts = ["".join(t["token"] for t in said[:-1]).removeprefix(" ") for said in (a, b)]
        check(f"alike: {str(line)[:60]}", ids[0] == ids[1] and texts[0] == texts[1] and a[-1] == b[-1], (a, b))
        check("something is said", len(a) > 20 or "messages" not in line and "prompt" not in line, a)
    b = theirs.ask(cmd="generate", prompt="x " * 2000, max_tokens=5, **greedy)
    check("too long", "1024" in b[0]["error"], b)
    for name in ("plain", "llama3-tied", "linear", "biased"):
        with tempfile.TemporaryDirectory() as d:
            small = shutil.copytree(os.path.join(SOURCE, "tests/golden/llama", name), os.path.join(d, name))
            add_tokenizer(small)
            a, b = ([[t.get("token_id", t) for t in s.ask(**line)] for line in
                     ({"cmd": "load", "path": small}, {"cmd": "info"}, {"cmd": "generate", "prompt": "The fox went home.", "max_tokens": 40, **greedy})]
                    for s in (ours, theirs))
            check(f"golden/llama/{name}", a == b and len(a[2]) > 40, (a, b))
    check("both end", ours.end() == 0 and theirs.end() == 0)


def test_real(model, folder):
    env = {**os.environ, "QUERN_PYTHON": PYTHON, "XDG_CACHE_HOME": folder}
    want = run("generate", "-m", model, "-p", FOX, "--system", "Be kind.", "--temp", "0")
    got = run("generate", "-m", model, "-p", FOX, "--system", "Be kind.", "--temp", "0", "--backend", "mlx_lm", env=env)
    check("generate", got == want, (got, want))
    args = ["generate", "-m", model, "-p", "Once", "--raw", "--backend", "mlx_lm", "--json", "-n", "30", "--temp", "2", "--top-k", "1", "--top-p",
            "0.9", "--min-p", "0.1", "--seed", "5"]
    status, out, err = run(*args, env=env)
    want = json.loads(run("generate", "-m", model, "-p", "Once", "--raw", "--json", "-n", "30", "--temp", "0")[1])
    got = json.loads(out)
    check("samplers, of one token; metrics are zero", got["text"] == want["text"].removeprefix(" ") and got["finish"] == want["finish"] and not got["generated_tokens"]
          and not got["decode_seconds"], (got, want))
    lines = f"{FOX}\n/help\nMore.\n".encode()
    want = run("chat", "-m", model, "--temp", "0", stdin=lines.replace(b"/help\n", b""))
    got = run("chat", "-m", model, "--temp", "0", "--backend", "mlx_lm", stdin=lines, env=env)
    check("chat", got[:2] == want[:2] and got[2].count("\n") == 1 and "native" in got[2], (got, want))
    p = subprocess.Popen([QUERN, "generate", "--backend", "mlx_lm", "-m", model, "-p", "Tell me everything.", "--raw", "--temp", "5"], env=env,
                         stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    first = p.stdout.read(1)
    p.send_signal(signal.SIGINT)
    check("Ctrl-C", p.wait(30) == 130 and first, p.stderr.read())


def find_mlx_lm():
    path = shutil.which(PYTHON)
    return path and subprocess.run([path, "-c", "import mlx_lm"], capture_output=True, timeout=120).returncode == 0


if BUILT:
    test_refused()
    test_children()
    if find_mlx_lm():
        with tempfile.TemporaryDirectory() as d:
            f32 = os.path.join(d, "f32")
            run("convert", "-m", DEMO, "-o", f32, "--dtype", "f32")
            test_tokens(f32)
            test_real(f32, d)
    else:
        skipped(f"{PYTHON} has no mlx_lm (pip install mlx-lm); QUERN_PYTHON names another Python")
else:
    refused("left out", run("generate", "--backend", "mlx_lm", "-p", "x"), 2, "built without", "mlx_lm")
    skipped("configured with -Dmlx_lm=disabled")
finish()
