#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The quern command from outside: exit codes, what goes to which stream, bad input and bad output.

    tests/cli/test_cli.py QUERN

Wrong usage is 2, failure 1; either way one line on standard error and nothing on standard output. Text goes
to standard output alone. Ends like cmocka, so that scripts/run-tests counts the checks.
"""
import json
import os
import subprocess
import sys
import tempfile

QUERN = os.path.abspath(sys.argv[1])
SOURCE = os.environ.get("QUERN_SOURCE", os.path.join(os.path.dirname(__file__), "..", ".."))
TINY = os.path.join(SOURCE, "tests/golden/llama/plain")
failures, checks = [], 0


def run(*args, stdin=b"", stdout=subprocess.PIPE, shell=None):
    command = shell if shell else [QUERN, *args]
    done = subprocess.run(command, shell=bool(shell), input=stdin, stdout=stdout, stderr=subprocess.PIPE,
                          timeout=120)
    return done.returncode, done.stdout, done.stderr.decode("utf-8", "replace")


def check(name, condition, detail=""):
    global checks
    checks += 1
    if not condition:
        failures.append(name)
        print(f"FAIL {name}: {detail}")


def refused(name, result, code, *parts):
    """One line on standard error with every part, nothing on standard output, this exit code."""
    status, out, err = result
    ok = status == code and not out and err.count("\n") == 1 and err.endswith("\n")
    check(name, ok and all(p in err for p in parts), f"status {status}, out {out!r}, err {err!r}")


def generate(*args, **kw):
    return run("generate", *args, **kw)


def test_usage():
    for option, bad, named in [
            ("-n", "99999999999", "--max-tokens"), ("-n", "-1", "--max-tokens"), ("-n", "0", "--max-tokens"),
            ("-n", "NaN", "--max-tokens"), ("-n", "", "--max-tokens"), ("-n", "5x", "--max-tokens"),
            ("-n", "1.5", "--max-tokens"), ("-n", "9" * 400, "--max-tokens"), ("-c", "-3", "--context"),
            ("--threads", "0", "--threads"), ("--threads", "99999999999", "--threads"),
            ("--temp", "NaN", "--temp"), ("--temp", "-1", "--temp"), ("--temp", "inf", "--temp"),
            ("--temp", "1e999", "--temp"), ("--top-p", "1.01", "--top-p"), ("--top-k", "-5", "--top-k"),
            ("--min-p", "x", "--min-p"), ("--repeat-penalty", "0", "--repeat-penalty"),
            ("--seed", "-1", "--seed"), ("--seed", "9007199254740992", "9007199254740991")]:
        refused(f"{option} {bad[:20]}", generate("-p", "hi", option, bad), 2, named, bad)
    refused("unknown option", generate("-p", "hi", "--tmep", "1"), 2, "--tmep", "did you mean --temp?")
    refused("unknown option, far", generate("-p", "hi", "--xyzzyplugh"), 2, "--xyzzyplugh", "--help")
    refused("unknown short option", generate("-p", "hi", "-z"), 2, "-z")
    refused("flag with a value", generate("-p", "hi", "--raw=1"), 2, "--raw=1")
    refused("no value", generate("-p"), 2, "--prompt")
    refused("no prompt", generate(), 2, "-p")
    refused("stray word", generate("hello"), 2, "hello", "-p")
    refused("unknown command", run("genrate"), 2, "genrate", "generate")
    refused("unknown command, far", run("xyzzyplugh"), 2, "xyzzyplugh")
    status, out, err = run()
    check("no command", status == 2 and not out and "Usage" in err, err)
    for args in (["--help"], ["help"], ["generate", "--help"], ["generate", "-h"]):
        status, out, err = run(*args)
        check(" ".join(args), status == 0 and out.startswith(b"Usage: quern") and not err, err)
    status, out, err = run("--version")
    check("--version", status == 0 and out.startswith(b"quern ") and not err, err)


def test_models():
    with tempfile.TemporaryDirectory() as d:
        empty, fifo, bare = (os.path.join(d, n) for n in ("empty", "fifo", "bare"))
        open(empty, "w").close()
        os.mkfifo(fifo)
        os.mkdir(bare)
        refused("model is empty", generate("-p", "x", "-m", empty), 1, empty)
        refused("model is a FIFO", generate("-p", "x", "-m", fifo), 1, fifo)
        refused("model is a bare directory", generate("-p", "x", "-m", bare), 1, "bare/config.json")
        refused("model is missing", generate("-p", "x", "-m", d + "/none"), 1, d + "/none")
        refused("no tokenizer", generate("-p", "x", "-m", TINY), 1, "tokenizer.json")
    refused("model is nothing", generate("-p", "x", "-m", ""), 1, "quern: ")
    refused("device", generate("-p", "x", "--device", "abacus"), 1, "abacus", "cpu")


def test_prompts():
    status, out, err = generate("-p", "", "-n", "4", "--temp", "0")
    check("empty prompt", status == 0 and out.strip() and not err, err)
    refused("empty raw prompt", generate("-p", "", "--raw"), 1, "prompt")
    refused("invalid UTF-8", generate("-p", "-", stdin=b"hi \xff there"), 1, "UTF-8", "3")
    refused("invalid UTF-8, raw", generate("-p", "-", "--raw", stdin=b"hi \xff there"), 1, "UTF-8", "3")
    long = b"once upon a time " * 6000
    result = generate("-p", "-", stdin=long)
    refused("100 kB prompt", result, 1, "context of 1024")
    check("both counts", any(int(w) > 1024 for w in result[2].split() if w.isdigit()), result[2])
    refused("small context", generate("-p", "hi", "-c", "3"), 1, "context of 3")
    status, out, err = generate("-p", "-", "-n", "4", "--temp", "0", stdin=b"Hello\n")
    check("prompt from stdin", status == 0 and out == generate("-p", "Hello", "-n", "4", "--temp", "0")[1], err)
    status, out, err = generate("-p", "-", "-n", "4", stdin=b"a\0b")
    check("a zero byte", status in (0, 1) and err.count("\n") <= 1, err)
    refused("stdin closed", run(shell=f"exec '{QUERN}' generate -p - <&-"), 1, "standard input")
    refused("stdin is a directory", run(shell=f"exec '{QUERN}' generate -p - < /tmp"), 1, "standard input")


def test_output():
    greedy = ("-p", "Tell me a story about a fox.", "-n", "24", "--temp", "0")
    status, text, err = generate(*greedy)
    check("text alone", status == 0 and not err and text.endswith(b"\n") and text.count(b"{") == 0, err)
    status, out, err = generate(*greedy, "--json")
    try:
        result = json.loads(out)
        check("--json", result["text"] + "\n" == text.decode() and result["generated_tokens"] == 24
              and result["finish"] == "length" and out.count(b"\n") == 1 and not err, out)
    except (ValueError, KeyError) as e:
        check("--json", False, f"{e}: {out!r}")
    status, out, err = generate(*greedy, "--verbose")
    check("--verbose", status == 0 and out == text and "plans:" in err and "memory:" in err, err)
    seeded = ("-p", "Hello", "-n", "20", "--temp", "1", "--seed")
    one, again = generate(*seeded, "7")[1], generate(*seeded, "7", "-t", "3")[1]
    check("same seed, same text", one == again, (one, again))
    check("other seed, other text", len({generate(*seeded, str(s))[1] for s in range(6)}) > 1)
    odd = generate("-p", "\"\\\u00e9\t\U0001f98a", "-n", "30", "--temp", "2", "--seed", "1", "--json")
    check("--json of odd text", odd[0] == 0 and "text" in json.loads(odd[1]), odd)
    for name, args in {"text": "generate -p hi -n 4", "json": "generate -p hi -n 4 --json",
                       "help": "--help", "generate help": "generate --help",
                       "version": "--version"}.items():
        refused(f"{name} to a full disk", run(shell=f"exec '{QUERN}' {args} > /dev/full"), 1, "output")
        refused(f"{name} to a closed output", run(shell=f"exec '{QUERN}' {args} >&-"), 1, "output")
    status, out, err = run(shell=f"'{QUERN}' generate -p hi -n 200 --temp 0 | head -c 1 > /dev/null; "
                                 "echo done")
    check("a pipe that ends", status == 0 and out == b"done\n" and err.count("\n") <= 1, err)


def main():
    for test in (test_usage, test_models, test_prompts, test_output):
        test()
    print(f"[  PASSED  ] {checks - len(failures)} tests.")
    for name in failures:
        print(f"[  FAILED  ] {name.replace(' ', '_')}")
    sys.exit(1 if failures else 0)


main()
