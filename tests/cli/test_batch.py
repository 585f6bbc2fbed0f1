#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""quern batch from outside.

    tests/cli/test_batch.py QUERN

Each result must be what quern generate says to the line alone; a run that was cut off anywhere and resumed must give
the same bytes; and what cannot be is the line's own error. Ends like cmocka, so that scripts/run-tests counts the checks.
"""
import json
import os
import signal
import subprocess
import tempfile
import time

from helper import QUERN, check, finish, refused, run

BITS = [("temperature", "--temp"), ("top_k", "--top-k"), ("top_p", "--top-p"), ("min_p", "--min-p"),
        ("repeat_penalty", "--repeat-penalty"), ("presence_penalty", "--presence-penalty"),
        ("frequency_penalty", "--frequency-penalty"), ("max_tokens", "-n")]


def lines_of(*rows):
    return "".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in rows).encode()


def batch(rows, *args):
    """The results of rows, and the exit status."""
    status, out, err = run("batch", "-", *args, stdin=lines_of(*rows))
    results = [json.loads(line) for line in out.decode().splitlines()]
    check(f"batch {' '.join(args)}: in order", [r["index"] for r in results] == list(range(len(results))), results)
    return results, status


def alone(text, options):
    status, out, err = run("generate", "--json", "-p", text, *options)
    check(f"alone: {text}", status == 0, err)
    return json.loads(out)


def same(name, got, want):
    check(name, got.get("text") == want["text"] and got["finish_reason"] == want["finish"]
          and got["usage"] == {"prompt_tokens": want["prompt_tokens"], "completion_tokens": want["generated_tokens"],
                               "total_tokens": want["prompt_tokens"] + want["generated_tokens"]}
          and got.get("logprobs") == want.get("logprobs"), (got, want))


def test_settings():
    """Every setting of a line is the option of generate."""
    words = ["fox", "lantern", "goose", "ladder", "mouse", "balloon", "candle", "attic"]
    settings = [{}, {"temperature": 0}, {"temperature": 1.5, "top_k": 40}, {"top_p": 0.5, "temperature": 2},
                {"min_p": 0.2}, {"repeat_penalty": 1.5}, {"presence_penalty": 2, "frequency_penalty": 1}, {"max_tokens": 3}]
    rows, wants = [], []
    for i, (word, s) in enumerate(zip(words, settings)):
        text = f"Tell me a story about a {word}."
        s = {"max_tokens": 12, "seed": 7 + i, **s}
        rows.append({"custom_id": word, "prompt": text, **s})
        options = [o for name, option in BITS if name in s for o in (option, str(s[name]))]
        wants.append(alone(text, [*options, "--seed", str(s["seed"])]))
    for args in ((), ("-np", "1"), ("--parallel", "3")):
        results, status = batch(rows, *args)
        check("all succeed", status == 0 and [r["custom_id"] for r in results] == words, results)
        for r, w in zip(results, wants):
            same(f"{r['custom_id']} {args}", r, w)


def test_other_settings():
    text = "Tell me a story about a fox."
    rows = [({"stop": [" the", "and"]}, ["--stop", " the", "--stop", "and"]), ({"stop": "a"}, ["--stop", "a"]),
            ({"logit_bias": {"264": -100, "303": 1.5}}, ["--logit-bias", "264-100", "--logit-bias", "303+1.5"]),
            ({"logit_bias": [[264, False], [303, 1.5]]}, ["--logit-bias", "264-inf", "--logit-bias", "303+1.5"]),
            ({"samplers": ["top_k", "temperature"], "top_k": 3}, ["--samplers", "top_k;temperature", "--top-k", "3"]),
            ({"samplers": "temperature;min_p", "min_p": 0.3}, ["--samplers", "temperature;min_p", "--min-p", "0.3"]),
            ({"ignore_eos": True}, ["--ignore-eos"]), ({"logprobs": True, "top_logprobs": 2}, ["--logprobs", "2"]),
            ({"logprobs": 1}, ["--logprobs", "1"]), ({"logprobs": True}, ["--logprobs", "0"]),
            ({"repeat_penalty": 1.5, "repeat_last_n": 64}, ["--repeat-penalty", "1.5"]), ({"max_completion_tokens": 16, "n_predict": 16}, []),
            ({"n": 1, "stream": False, "model": "x", "temperature": None}, [])]
    results, status = batch([{"prompt": text, "seed": 3, "max_tokens": 16, **s} for s, _ in rows])
    for r, (s, options) in zip(results, rows):
        same(json.dumps(s), r, alone(text, ["--seed", "3", "-n", "16", *options]))
    # what the command says counts where a line is silent, and seeds go up with the lines
    results, _ = batch([{"prompt": text}, {"prompt": text}, {"prompt": text, "temperature": 0, "n_predict": 4}],
                       "--temp", "1.5", "--seed", "11", "-n", "9", "--stop", "the")
    same("the command's options", results[0], alone(text, ["--temp", "1.5", "--seed", "11", "-n", "9", "--stop", "the"]))
    same("the next seed", results[1], alone(text, ["--temp", "1.5", "--seed", "12", "-n", "9", "--stop", "the"]))
    results, _ = batch([{"prompt": text, "seed": 1, "max_tokens": 30, "stop": "zzzz"}], "--stop", "a")
    same("the line's stop alone", results[0], alone(text, ["--seed", "1", "-n", "30", "--stop", "zzzz"]))
    results, _ = batch([{"prompt": text}, {"prompt": text}, {"prompt": text, "temperature": 0, "n_predict": 4}],
                       "--temp", "1.5", "--seed", "11", "-n", "9", "--stop", "the")
    same("the line's own", results[2], alone(text, ["--temp", "0", "-n", "4", "--stop", "the"]))
    own = {"prompt": text, "seed": 1, "max_tokens": 400, "stop": [], "logit_bias": {}, "ignore_eos": False, "logprobs": False}
    results, _ = batch([own], "--stop", "a", "--logit-bias", "264-inf", "--ignore-eos", "--logprobs", "1")
    same("the line says that there is none", results[0], alone(text, ["--seed", "1", "-n", "400"]))
    check("it ends", results[0]["finish_reason"] == "stop", results[0])


def test_forms():
    """Messages, requests of OpenAI's batches, ids, raw prompts."""
    text, short = "Tell me a story about a goose.", ["--temp", "0", "-n", "10"]
    ids = [int(t) for t in run("tokenize", "-p", text, "--ids")[1].split()]
    say = {"temperature": 0, "max_tokens": 10}
    chat = {"messages": [{"role": "user", "content": text}], **say}
    results, status = batch([
        chat, {"custom_id": "x", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "m", **chat}},
        {"custom_id": "y", "body": {"prompt": text, **say}}, {"url": "/v1/completions", "body": {"prompt": text, **say}},
        {"prompt": ids, **say}])
    check("forms", status == 0, results)
    want, raw = alone(text, short), alone(text, [*short, "--raw"])
    for i in range(3):
        same(f"chat {i}", results[i], want)
    same("a completion", results[3], raw)
    same("ids", results[4], raw)
    same("--raw", batch([{"prompt": text, **say}], "--raw")[0][0], raw)
    system = alone(text, [*short, "--system", "Be a pirate."])
    same("--system", batch([chat], "--system", "Be a pirate.")[0][0], system)
    with_own = {"messages": [{"role": "system", "content": "Be a pirate."}, *chat["messages"]], **say}
    same("a system message of its own", batch([with_own], "--system", "x")[0][0], system)
    check("ids of the envelope", [r.get("custom_id") for r in results] == [None, "x", "y", None, None], results)


def test_bad_lines():
    good = {"custom_id": "good", "prompt": "A fox.", "max_tokens": 2}
    bad = [('{"prompt": ', "byte"), ("[1]", "object"), ("{}", "messages"), ('{"prompt":"a","messages":[]}', "not both"),
           ('{"prompt":"a","top_pp":1}', "top_pp: not supported; what is: max_tokens "), ('{"prompt":"a","zzzzzzzzzz":1}', "zzzzzzzzzz"),
           ('{"prompt":"a","temperature":"hot"}', "temperature"), ('{"prompt":"a","max_tokens":0}', "max_tokens"),
           ('{"prompt":"a","top_p":1.5}', "top_p"), ('{"prompt":"a","n":2}', "only 1"), ('{"prompt":"a","stream":true}', "stream"),
           ('{"prompt":"a","stop":[""]}', "stop"), ('{"prompt":"a","samplers":["magic"]}', "magic"),
           ('{"prompt":"a","logit_bias":{"x":1}}', "0..2047"), ('{"prompt":"a","logit_bias":{"99999":1}}', "99999"),
           ('{"prompt":[]}', "empty"), ('{"prompt":[99999]}', "99999"), ('{"prompt":[1,-1]}', "prompt"),
           ('{"prompt":"a","seed":-2}', "seed"), ('{"prompt":"a","n_predict":2,"max_tokens":3}', "differ"),
           ('{"prompt":"a","logit_bias":[[1]]}', "[id, bias]"), ('{"prompt":"a","zzz":null}', "zzz"), ('{"prompt":"a","top_logprobs":1}', "logprobs"),
           ('{"messages":[{"role":"user"}]}', "content"), ('{"body":{"prompt":"a"},"url":"/v1/embeddings"}', "/v1/completions"),
           ('{"body":{"prompt":"a"},"method":"GET"}', "POST"), ('{"body":{"prompt":"a"},"temperature":0}', "temperature"),
           ('{"prompt":"a","tools":[]}', "tools"), ('{"prompt":"a","chat_template_kwargs":{"messages":1}}', "messages"),
           ('{"custom_id":5,"prompt":"a"}', "custom_id"), ('{"prompt":"' + "long " * 3000 + '"}', "context"),
           ('{"prompt":"a","prompt":"b"}', "prompt")]
    rows = [row for text, _ in bad for row in (text, good)]
    results, status = batch(rows)
    check("one bad line does not stop the others", len(results) == len(rows) and status == 1, len(results))
    for i, (text, part) in enumerate(bad):
        r = results[2 * i]
        check(f"{text[:60]}", "text" not in r and part in r["error"]["message"] and r["error"]["type"], r)
        check(f"and the next, {i}", results[2 * i + 1].get("text"), results[2 * i + 1])
        if "99999" not in part and part != "context":
            check(f"{text[:60]}: which line", f"line {2 * i + 1}" in r["error"]["message"], r)
    long = '{"prompt":"' + "x" * (17 << 20) + '"}'
    results, status = batch([good, long, good])
    check("a line of 17 MiB", status == 1 and "exceeds" in results[1]["error"]["message"] and results[2].get("text"), status)


def story_lines(n):
    return [{"custom_id": f"id{i}", "prompt": f"Tell me story {i}.", "max_tokens": 5 + i % 11} if i % 7 else
            ("{" if i % 2 else {"prompt": "x", "bad": 1}) for i in range(n)]


def test_resume():
    with tempfile.TemporaryDirectory() as d:
        source, out = os.path.join(d, "in.jsonl"), os.path.join(d, "out.jsonl")
        with open(source, "wb") as f:
            f.write(lines_of(*story_lines(24)))
        status, nothing, err = run("batch", source, "-o", out)
        with open(out, "rb") as f:
            whole = f.read()
        check("-o", status == 1 and not nothing and whole.count(b"\n") == 24, err)
        check("standard output has the same", run("batch", source)[1] == whole)
        ends = [0] + [i + 1 for i, c in enumerate(whole) if c == 10]
        for cut in sorted({*ends[::5], *(e - 1 for e in ends[1::6]), *range(1, len(whole), 397), len(whole)}):
            with open(out, "wb") as f:
                f.write(whole[:cut])
            status, nothing, err = run("batch", source, "-o", out, "--resume", "-np", "4")
            with open(out, "rb") as f:
                check(f"resumed from byte {cut}", f.read() == whole, err)
            left = 24 - whole[:cut].count(b"\n")
            check(f"only what was missing ran, from {cut}", err.startswith(f"{left} lines"), err)
        os.remove(out)
        run("batch", source, "-o", out, "--resume")
        with open(out, "rb") as f:
            check("--resume of nothing is a run", f.read() == whole)
        refused("an output that is there", run("batch", source, "-o", out), 1, out, "--resume", "--force")
        with open(out, "rb") as f:
            check("it stays", f.read() == whole)
        run("batch", source, "-o", out, "--force", "-n", "3")
        other = os.path.join(d, "other.jsonl")
        with open(other, "wb") as f:
            f.write(lines_of({"custom_id": "other", "prompt": "a"}, {"prompt": "b"}))
        with open(out, "wb") as f:
            f.write(whole)
        refused("another input", run("batch", other, "-o", out, "--resume"), 1, "--resume", "another input")
        with open(out, "rb") as f:
            check("it is not touched", f.read() == whole)
        with open(out, "wb") as f:
            f.write(b"hello\nworld\n")
        refused("another file", run("batch", source, "-o", out, "--resume"), 1, "--resume", "line 1")
        lines = whole.splitlines(True)
        with open(out, "wb") as f:
            f.write(lines[0] + lines[2])
        refused("a result is missing", run("batch", source, "-o", out, "--resume"), 1, "--resume", "result 1")


def test_killed():
    """Killed in the middle, then Ctrl-C, then to the end."""
    with tempfile.TemporaryDirectory() as d:
        source, out = os.path.join(d, "in.jsonl"), os.path.join(d, "out.jsonl")
        rows = [{"prompt": f"Tell me a long story about {i} foxes.", "ignore_eos": True, "max_tokens": 60} for i in range(150)]
        with open(source, "wb") as f:
            f.write(lines_of(*rows))
        whole = run("batch", source)[1]
        for number in (signal.SIGKILL, signal.SIGINT):
            p = subprocess.Popen([QUERN, "batch", source, "-o", out, "--resume", "-t", "1"], stderr=subprocess.PIPE)
            before = os.path.getsize(out) if os.path.exists(out) else 0
            begun = time.monotonic()
            while p.poll() is None and time.monotonic() - begun < 60 and (
                    not os.path.exists(out) or os.path.getsize(out) <= before):
                time.sleep(0.005)
            p.send_signal(number)
            err = p.communicate()[1].decode()
            check(f"ended by signal {number}", p.returncode == (-9 if number == signal.SIGKILL else 130), (p.returncode, err))
            with open(out, "rb") as f:
                part = f.read()
            check("part of it is there", 0 < len(part) < len(whole) and whole.startswith(part[:part.rindex(b"\n") + 1]), len(part))
        check("Ctrl-C says how to go on", "--resume" in err, err)
        status, _, err = run("batch", source, "-o", out, "--resume")
        with open(out, "rb") as f:
            check("to the byte", status == 0 and f.read() == whole, err)


def test_streams():
    """A result comes before the input has ended, and the writer may wait for it."""
    p = subprocess.Popen([QUERN, "batch", "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    for i in range(3):
        p.stdin.write(lines_of({"prompt": f"{i}", "max_tokens": 4}))
        p.stdin.flush()
        check(f"result {i} comes at once", json.loads(p.stdout.readline())["index"] == i)
    _, err = p.communicate()
    check("totals", p.returncode == 0 and err.decode().startswith("3 lines, 0 failed; prompts "), err)
    check("nothing to do", run("batch", "-")[:2] == (0, b""))
    status, out, err = run(shell=f"exec '{QUERN}' batch - >/dev/full", stdin=lines_of({"prompt": "a", "max_tokens": 2}))
    check("a full disk", status == 1 and "cannot be written" in err, (status, err))


def test_memory():
    """Ten times the lines take no more memory."""
    peaks = []
    for n in (300, 3000):
        rows = lines_of(*[{"custom_id": "x" * 20000, "prompt": f"a{i}", "max_tokens": 1} for i in range(n)])
        shell = (f"import resource, subprocess, sys; subprocess.run([{QUERN!r}, 'batch', '-', '-t', '2'], stdout=subprocess.DEVNULL,"
                 " stderr=subprocess.DEVNULL); print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)")
        options = os.environ.get("ASAN_OPTIONS", "") + ":quarantine_size_mb=1"  # it keeps what was freed
        done = subprocess.run(["python3", "-c", shell], input=rows, capture_output=True, timeout=250,
                              env={**os.environ, "ASAN_OPTIONS": options})
        peaks.append(int(done.stdout))
    check("memory is bounded", peaks[1] < peaks[0] * 1.15 + 4096, peaks)


def test_usage():
    refused("no lines", run("batch"), 2, "-")
    refused("--resume alone", run("batch", "x", "--resume"), 2, "--resume", "-o")
    refused("--resume --force", run("batch", "x", "-o", "y", "--resume", "--force"), 2, "--resume", "--force")
    refused("--raw --system", run("batch", "x", "--raw", "--system", "y"), 2, "--system", "--raw")
    refused("no such file", run("batch", "/nonexistent"), 1, "/nonexistent")
    refused("a directory", run("batch", "/"), 1, "/")
    refused("an output that cannot be", run("batch", "-", "-o", "/nonexistent/x"), 1, "/nonexistent/x")
    refused("-np 0", run("batch", "-", "-np", "0"), 2, "--parallel")
    refused("-np elsewhere", run("generate", "-p", "x", "-np", "2"), 2, "--parallel is an option of quern bench")


if __name__ == "__main__":
    test_settings()
    test_other_settings()
    test_forms()
    test_bad_lines()
    test_resume()
    test_killed()
    test_streams()
    test_memory()
    test_usage()
    finish()
