#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""quern serve --stdio from outside.

    tests/cli/test_stdio.py QUERN

Replies must be those of quern generate; a line that cannot be read must be an error and no end; a cancel must be
heard in the midst of a reply. Ends like cmocka, so that scripts/run-tests counts the checks.
"""
import json
import os
import subprocess
import threading
import time

from helper import QUERN, SOURCE, check, finish, refused, run

DEMO = os.path.join(SOURCE, "models", "demo")
FOX = "Tell me a story about a fox."
LONG = {"cmd": "generate", "prompt": "Once", "temperature": 0, "ignore_eos": True, "max_tokens": 900}


class Serving:
    def __init__(self, *args):
        self.p = subprocess.Popen([QUERN, "serve", "--stdio", *args], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.limit = threading.Timer(60, self.p.kill)  # a line that does not come
        self.limit.daemon = True
        self.limit.start()

    def say(self, *lines):
        for line in lines:
            self.p.stdin.write(line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n")
        self.p.stdin.flush()

    def hear(self):
        return json.loads(self.p.stdout.readline())

    def reply(self):
        """The tokens of a reply, and the line that ends it."""
        tokens = []
        while "token" in (line := self.hear()):
            tokens.append(line)
        return tokens, line

    def ask(self, *lines):
        self.say(*lines)
        return self.reply()

    def end(self):
        self.p.stdin.close()
        return self.p.stdout.read(), self.p.wait(20)


def text_of(tokens):
    return "".join(t["token"] for t in tokens)


def test_commands():
    s = Serving()
    check("nothing is loaded", "no model" in s.ask({"cmd": "info"})[1]["error"])
    check("nor can it reply", "no model" in s.ask(LONG)[1]["error"])
    check("load", s.ask({"cmd": "load", "path": DEMO})[1] == {"ok": True, "model_type": "llama", "vocab_size": 2048})
    check("info", s.ask({"cmd": "info"})[1] == {"model_type": "llama", "vocab_size": 2048, "layers": 4, "hidden_size": 256})
    for prompt in ("Once upon", "Once upon", "Once more"):  # the second has nothing new
        want = json.loads(run("generate", "--raw", "-p", prompt, "--temp", "0", "-n", "12", "--json")[1])
        tokens, end = s.ask({"cmd": "generate", "prompt": prompt, "temperature": 0, "max_tokens": 12})
        check(f"generate {prompt}", text_of(tokens) == want["text"] and end == {"done": True, "finish": want["finish"]}, (tokens, end))
    ids = " ".join(str(t["token_id"]) for t in tokens if t["token_id"] >= 0)
    check("token ids", run("tokenize", "--decode", "-p", ids)[1].decode().strip() == want["text"].strip(), (ids, want))
    messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": FOX}]
    for fields, args in (({"temperature": 0}, ["--temp", "0"]), ({"top_k": 3, "top_p": 0.9, "temperature": 1.5, "seed": 5},
                         ["--top-k", "3", "--top-p", "0.9", "--temp", "1.5", "--seed", "5"]), ({"seed": 8}, ["--seed", "8"]),
                         ({"temperature": 0, "stop": ["the"]}, ["--temp", "0", "--stop", "the"])):
        want = json.loads(run("generate", "-p", FOX, "--system", "Be kind.", "--json", *args)[1])
        tokens, end = s.ask({"cmd": "chat", "messages": messages, **fields})
        check(f"chat {fields}", text_of(tokens) == want["text"] and end["finish"] == want["finish"], (tokens, end, want))
    more = [*messages, {"role": "assistant", "content": text_of(tokens)}, {"role": "user", "content": "More."}]
    first = s.ask({"cmd": "chat", "messages": more, "temperature": 0})
    other = Serving("-m", DEMO)
    check("a conversation goes on as it would alone", other.ask({"cmd": "chat", "messages": more, "temperature": 0}) == first, first)
    check("quit", other.say({"cmd": "quit"}) is None and other.p.wait(20) == 0)
    check("a model that is none", "/nothing" in s.ask({"cmd": "load", "path": "/nothing"})[1]["error"])
    check("then there is none", "no model" in s.ask({"cmd": "info"})[1]["error"])
    check("the end of input", s.end() == (b"", 0))


def test_cancel():
    s = Serving("-m", DEMO)
    whole = s.ask(LONG)
    check("900 tokens", len(whole[0]) >= 900 and whole[1]["finish"] == "length", whole[1])
    for _ in range(3):
        s.say(LONG)
        first = s.hear()
        s.say({"cmd": "cancel"})
        tokens, end = s.reply()
        check("cancel", end == {"done": True, "finish": "cancelled"} and 0 < len(tokens) + 1 < 900 and
              whole[0][:len(tokens) + 1] == [first, *tokens], (len(tokens), end))
    check("and goes on", s.ask(LONG) == whole)
    for _ in range(60):  # right behind the end of a reply
        s.ask(dict(LONG, max_tokens=1))
        check("nothing to cancel", s.ask({"cmd": "cancel"})[1] == {"done": True, "finish": "idle"})
    s.say(LONG, {"cmd": "info"}, dict(LONG, max_tokens=3), {"cmd": "cancel"}, {"cmd": "info"})
    ends = [s.reply()[1] for _ in range(4)]
    check("in their order, also those that waited", [e.get("finish") for e in ends] == ["cancelled", None, "cancelled", None], ends)
    begun = time.monotonic()
    s.say(LONG, LONG, {"cmd": "quit"})
    check("quit ends a reply", s.end()[1] == 0 and time.monotonic() - begun < 5)


def test_bad_lines():
    s = Serving("-m", DEMO)
    bad = [(b"hello\n", "not JSON"), (b"[1]\n", "object"), (b"{}\n", "cmd"), (b'{"cmd":5}\n', "cmd"), (b'{"cmd":"fly"}\n', "load, generate, chat"),
           (b'{"cmd":"inf\0o"}\n', "byte"), (b"\0\n", "byte"), (b'{"cmd":"generate","prompt":"\xc3"}\n', "UTF-8"),
           (b'{"cmd":"generate","prompt":"a\xff"}\n', "UTF-8"), (b"[" * 5000 + b"\n", "nested"), ({"cmd": "generate"}, "prompt"),
           ({"cmd": "generate", "prompt": "a", "n": 2}, "n: not supported; what is: max_tokens"), ({"cmd": "generate", "prompt": 5}, "prompt"),
           ({"cmd": "generate", "prompt": "a", "top_p": 1.5}, "1.5"), ({"cmd": "generate", "prompt": "a", "logprobs": 1}, "logprobs"),
           ({"cmd": "generate", "prompt": "a", "logit_bias": {"2048": 1}}, "0..2047"), ({"cmd": "chat", "messages": []}, "messages"),
           ({"cmd": "chat"}, "messages"), ({"cmd": "chat", "messages": [{"role": "user"}]}, "content"), ({"cmd": "chat", "messages": [5]}, "messages"),
           ({"cmd": "chat", "messages": [{"role": "user", "content": "a", "x": 1}]}, "x: not supported"), ({"cmd": "load"}, "path"),
           ({"cmd": "info", "x": 1}, "x: not supported"), ({"cmd": "cancel", "path": "x"}, "path: not supported"),
           ({"cmd": "generate", "prompt": "long " * 3000}, "1024"), (b'{"cmd":"generate","prompt":"' + b"x" * (17 << 20) + b'"}\n', "exceeds")]
    for line, part in bad:
        tokens, end = s.ask(line)
        check(f"{str(line)[:60]}", not tokens and list(end) == ["error"] and part in end["error"], end)
        check("it goes on", s.ask(dict(LONG, max_tokens=2))[1] == {"done": True, "finish": "length"})
    s.p.stdin.write(json.dumps(dict(LONG, max_tokens=4)).encode() + b'\n{"cmd":"gener')
    out, status = s.end()
    lines = [json.loads(line) for line in out.splitlines()]
    check("the end in the midst of a line", status == 0 and lines[-2] == {"done": True, "finish": "length"} and "error" in lines[-1], lines)


def test_output():
    status, out, _ = run("serve", "--stdio", "-m", DEMO, stdin=json.dumps(dict(LONG, max_tokens=40)).encode())
    check("the end of input lets a reply end", status == 0 and json.loads(out.splitlines()[-1])["finish"] == "length", out[-100:])
    s = Serving("-m", DEMO)
    s.say(LONG)
    s.hear()
    s.p.stdout.close()
    check("nobody reads: a quiet end", s.p.wait(20) == 0)
    s.p.stdin.close()
    status, _, err = run(shell=f"exec '{QUERN}' serve --stdio >/dev/full", stdin=b'{"cmd":"info"}\n')
    check("a full disk", status == 1 and "cannot be written" in err, (status, err))
    refused("a model that is none", run("serve", "--stdio", "-m", "/nothing"), 1, "/nothing")
    for given in (("--port", "5"), ("--adapter", "x"), ("--draft-model", "x"), ("--num-draft-tokens", "3"),
                  ("--prompt-lookup-num-tokens", "3"), ("--parallel", "2"), ("--insecure",)):
        refused(given[0], run("serve", "--stdio", *given), 2, given[0], "--stdio")
    status, out, err = run("serve", "--stdio", "-c", "8", "-m", DEMO, stdin=json.dumps(dict(LONG, max_tokens=40)).encode())
    check("-c", len(out.splitlines()) < 12 and b'"length"' in out, out)


test_commands()
test_cancel()
test_bad_lines()
test_output()
finish()
