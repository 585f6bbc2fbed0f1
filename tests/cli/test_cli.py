#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The quern command from outside: exit codes, what goes to which stream, bad input and bad output.

    tests/cli/test_cli.py QUERN

Wrong usage is 2, failure 1; either way one line on standard error and nothing on standard output. Text goes
to standard output alone. Ends like cmocka, so that scripts/run-tests counts the checks.
"""
import json
import math
import os
import re
import shutil
import struct
import subprocess
import tempfile

from helper import QUERN, SOURCE, check, finish, make_adapter, refused, run

TINY = os.path.join(SOURCE, "tests/golden/llama/plain")
COMMANDS = ["generate", "chat", "tokenize", "template", "info", "convert", "fuse", "eval", "bench", "batch", "classify", "embed", "inspect",
            "serve", "train"]


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
    refused("no prompt, on a terminal or none", run(shell=f"exec '{QUERN}' generate </dev/null"), 2, "-p")
    refused("two prompts", generate("-p", "a", "-f", "b"), 2, "-p", "-f")
    refused("--raw --system", generate("-p", "a", "--raw", "--system", "b"), 2, "--system", "--raw")
    refused("stray word", generate("hello"), 2, "hello", "-p")
    refused("unknown command", run("genrate"), 2, "genrate", "generate")
    refused("unknown command, far", run("xyzzyplugh"), 2, "xyzzyplugh")
    status, out, err = run()
    check("no command", status == 2 and not out and "Usage" in err, err)
    for args in (["--help"], ["help"], ["generate", "--help"], ["generate", "-h"]):
        status, out, err = run(*args)
        check(" ".join(args), status == 0 and out.startswith(b"Usage: quern") and not err, err)
    for command in COMMANDS:
        check(f"help {command}", run("help", command) == run(command, "--help"))
    refused("help for nothing", run("help", "xyzzyplugh"), 2, "xyzzyplugh")
    refused("help for a misspelt command", run("help", "chta"), 2, "did you mean chat?")
    status, out, err = run("--version")
    check("--version", status == 0 and out.startswith(b"quern ") and not err, err)


def test_devices():
    """Without a GPU; with one the words are the same, but auto takes it. test_lines.py has what is said of a GPU."""
    plain = generate("-p", "x", "-n", "3", "--temp", "0")
    for args, warning in ((["--device", "auto"], ""), (["--gpu-layers", "0"], "quern: warning: --gpu-layers 0: all runs on the CPU\n"),
                          (["-ngl", "0", "--device", "cpu"], "quern: warning: --gpu-layers 0: all runs on the CPU\n"),
                          (["-ngl", "0", "--device", "auto"], "quern: warning: --gpu-layers 0: all runs on the CPU\n"),
                          (["-ngl", "auto"], ""), (["--n-gpu-layers=auto", "--device", "cpu"], "")):
        status, out, err = generate("-p", "x", "-n", "3", "--temp", "0", *args)
        check(f"{args}", (status, out, err) == (0, plain[1], warning), (status, out, err))
    refused("the CPU and the GPU", generate("-p", "x", "-ngl", "9", "--device", "cpu"), 1, "--gpu-layers 9 and --device cpu exclude each other")
    for spelt in (("-ngl", "all"), ("--gpu-layers", "-1"), ("--gpu-layers=all",), ("--n-gpu-layers", "all")):
        refused(f"{spelt} is above 0", generate("-p", "x", *spelt, "--device", "cpu"), 1, "--gpu-layers all and --device cpu exclude each other")
    refused("no number of layers", generate("-p", "x", "-ngl", "some"), 2, '"some" is not a whole number from 0 to 1000000, all or auto')
    refused("fewer than none", generate("-p", "x", "-ngl", "-2"), 2, '"-2" is not')
    refused("too many layers", generate("-p", "x", "-ngl", "1000001"), 2, '"1000001" is not')
    refused("spelt as a command has it not", run("tokenize", "--n-gpu-layers", "9"), 2, "--gpu-layers is an option of quern generate")
    refused("no such device", generate("-p", "x", "--device", "gpu"), 1, 'no device "gpu"')


def test_limits():
    """Of memory, for whatever opens a model. test_lines.py has what is page-locked for a GPU."""
    used = json.loads(generate("-p", "x", "-n", "3", "--json")[1])["peak_bytes"]
    status, out, err = generate("-p", "x", "-n", "3", "--memory-limit", f"{used // 1000 + 2000}K", "--wired-limit", "4MB")
    check("a limit above what is needed", status == 0 and not err, err)
    for command in (("generate", "-p", "x"), ("chat",), ("batch", "-"), ("classify", "-p", "x"), ("embed", "-p", "x"), ("eval", "-f", "-"),
                    ("inspect", "-p", "x", "-o", "/dev/null/none.npz"), ("bench", "-p", "8", "-n", "2", "-r", "1", "--no-ceilings"),
                    ("serve", "--port", "0")):
        refused(f"{command[0]} within 100 kB", run(*command, "--memory-limit", "100K"), 1, "the weights need", " MiB, and 0.10 MiB are there within the limit: ")
    refused("a context beyond the limit", generate("-p", "x", "-c", "100000", "--memory-limit", "30M"), 1, "about ", " positions fit")
    check("a description needs no weights", run("info", "--memory-limit", "100K", "--wired-limit", "1K")[0] == 0)
    for size in ("0", "x", "2X", "-1", "1.5G", "99999999999G"):
        refused(f"no size: {size}", generate("-p", "x", "--memory-limit", size), 2, "--memory-limit", f'"{size}" is not bytes', "500M")
    refused("no size to page-lock", generate("-p", "x", "--wired-limit", "0"), 2, "--wired-limit", "500M")


def test_words_of_others():
    """Commands and options of llama.cpp, ollama, mlx-lm and transformers are answered with ours."""
    for theirs, ours in (("run", "quern chat"), ("ls", "hf cache"), ("list", "quern info"), ("pull", "hf download"),
                         ("show", "quern info"), ("gen", "quern generate"), ("perplexity", "quern eval"),
                         ("server", "quern serve"), ("ps", "nothing like it"), ("quantize", "quern convert")):
        refused(f"quern {theirs}", run(theirs), 2, f'"{theirs}"', ours)
    for theirs, ours in (("--main-gpu 1", "--device cuda:N"), ("--temperature 1", "--temp"),
                         ("--ctx-size 8", "--context (-c)"), ("--ctx_size=8", "--context (-c)"), ("-temp 0", "--temp"),
                         ("--n-predict 5", "--max-tokens (-n)"), ("--repetition_penalty 2", "--repeat-penalty"),
                         ("-sys x", "--system"), ("--flash-attn", "leave it out: "), ("-no-cnv", "generate --raw"),
                         ("--chat-template-kwargs {}", "--template-var NAME=VALUE")):
        result = generate("-p", "x", *theirs.split())
        refused(theirs, result, 2, theirs.split()[0], ours)
        check(f"{theirs} is not taken for something else", "unknown option" in result[2], result[2])
    refused("an option of another command", generate("-p", "x", "--decode"), 2, "--decode is an option of quern tokenize")
    refused("a flag of another command", run("chat", "-p", "x"), 2, "-p is an option of quern generate")
    advice = re.findall(r'\{"(-[^"]*|[a-z]+)", (?:"([^"]*)|[A-Z])', open(os.path.join(SOURCE, "src/cli/foreign.c")).read())
    check("there is advice", len(advice) > 60, advice)
    known = {c: set(re.findall(r"--[a-z0-9-]+", run(c, "--help")[1].decode())) for c in COMMANDS}
    for theirs, ours in advice:
        for option in re.findall(r"(?<!\()--[a-z0-9-]+", ours):
            check(f"{theirs}: {option} exists", option == "--version" or any(option in k for k in known.values()))
        named = re.findall(r"quern ([a-z]+)(?: -m MODEL)?", ours)
        check(f"{theirs}: {named} exist", set(named) <= set(COMMANDS) | {"fetches"}, ours)


def test_models():
    with tempfile.TemporaryDirectory() as d:
        empty, fifo, bare = (os.path.join(d, n) for n in ("empty", "fifo", "bare"))
        open(empty, "w").close()
        os.mkfifo(fifo)
        os.mkdir(bare)
        refused("model is empty", generate("-p", "x", "-m", empty), 1, empty)
        refused("model is a FIFO", generate("-p", "x", "-m", fifo), 1, fifo)
        refused("model is a bare directory", generate("-p", "x", "-m", bare), 1, "bare/config.json",
                "-m takes a model's directory")
        refused("model is missing", generate("-p", "x", "-m", d + "/none"), 1, d + "/none",
                "-m takes a model's directory")
        os.symlink(d + "/gone", d + "/link")
        refused("model is a dead link", generate("-p", "x", "-m", d + "/link"), 1, d + "/link", "-m takes")
        refused("no tokenizer", generate("-p", "x", "-m", TINY), 1, "tokenizer.json")
    refused("model is nothing", generate("-p", "x", "-m", ""), 1, "path is empty", "-m takes")
    refused("device", generate("-p", "x", "--device", "abacus"), 1, "abacus", "cpu")


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 5\n"


def test_what_files_are():
    """A file of another kind in the place of a model's is named as what it is, with what to do."""
    kinds = {"Git LFS pointer": (LFS, "git lfs pull"), "big-endian GGUF file": (b"FUGG\3\0\0\0" + bytes(80), "safetensors"),
             "GGML file": (b"tjgg" + bytes(80), "safetensors"), "web page": (b"<!DOCTYPE html><html>", "login"),
             "message of the Hugging Face hub": (b"Entry not found", "hf auth login"),
             "compressed by gzip": (b"\x1f\x8b\x08" + bytes(80), "unpack"), "HDF5": (b"\x89HDF\r\n\x1a\n" + bytes(80), "safetensors"),
             "a download that was interrupted": (bytes(4096), "fetch it again")}
    with tempfile.TemporaryDirectory() as d:
        model = os.path.join(d, "model")
        shutil.copytree(os.path.join(SOURCE, "models/demo"), model)
        for what, (text, advice) in kinds.items():
            for name in ("config.json", "model.safetensors", "tokenizer.json", "generation_config.json"):
                path = os.path.join(model, name)
                with open(path, "rb") as f:
                    kept = f.read()
                with open(path, "wb") as f:
                    f.write(text)
                if name == "generation_config.json":  # which never makes a model be refused
                    status, out, err = generate("-p", "x", "-n", "2", "-m", model)
                    check(f"{name} is {what}", status == 0 and out and err.count("\n") == 1 and path in err
                          and what in err and advice in err, err)
                else:
                    refused(f"{name} is {what}", generate("-p", "x", "-m", model), 1, path, what, advice)
                with open(path, "wb") as f:
                    f.write(kept)
            lone = os.path.join(d, "lone")
            with open(lone, "wb") as f:
                f.write(text)
            refused(f"-m of {what}", generate("-p", "x", "-m", lone), 1, lone, what, advice)
            refused(f"tokenize -m of {what}", run("tokenize", "-p", "x", "-m", lone), 1, lone, what, advice)
        both = [os.path.join(model, name) for name in ("tokenizer.json", "model.safetensors")]  # which are read side by side
        kept = []
        for path in both:
            with open(path, "rb") as f:
                kept.append(f.read())
            with open(path, "wb") as f:
                f.write(LFS)
        refused("weights and tokenizer are pointers", generate("-p", "x", "-m", model), 1, both[1], "git lfs pull")
        for path, text in zip(both, kept):
            with open(path, "wb") as f:
                f.write(text)
        with open(os.path.join(model, "chat_template.jinja"), "wb") as f:
            f.write(LFS)
        refused("a template is a pointer", generate("-p", "x", "-m", model), 1, "chat_template.jinja", "Git LFS pointer")
        os.remove(os.path.join(model, "chat_template.jinja"))
        weights = os.path.join(model, "model.safetensors")
        for size in (os.path.getsize(weights) - 1, 200000, 1000):
            os.truncate(weights, size)
            refused(f"weights of {size} bytes", generate("-p", "x", "-m", model), 1, weights, "interrupted download?")
        os.remove(weights)
        for name, what in (("model.Q4_K_M.gguf", "give its own path"), ("model.safetensors.part", "interrupted"), ("model.onnx", "not supported"),
                           (".cache/huggingface/download/model.safetensors.ab.incomplete", "interrupted")):
            path = os.path.join(model, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            open(path, "w").close()
            refused(f"only {name}", generate("-p", "x", "-m", model), 1, model, os.path.basename(name), what)
            os.remove(path)


def test_gguf():
    """A GGUF file, and a directory that holds one, are models."""
    path = os.path.join(SOURCE, "tests/golden/gguf/qwen3.gguf")
    status, out, err = run("info", "--json", "-m", path)
    info = json.loads(out) if status == 0 else {}
    check("info of a GGUF file", info.get("family") == "qwen3" and info["layers"] == 4 and info["dtype"] == "f16", err)
    refused("no tokenizer in it", run("tokenize", "-p", "x", "-m", path), 1, path, "no tokenizer")
    with tempfile.TemporaryDirectory() as d:
        shutil.copy(path, os.path.join(d, "a.gguf"))
        status, out, err = run("info", "-m", d)
        check("a folder of a GGUF file", status == 0 and b"qwen3" in out, err)
        for n in (0, 4, 23, 24, 1000, 20000):
            with open(os.path.join(d, "a.gguf"), "wb") as f, open(path, "rb") as whole:
                f.write(whole.read(n))
            refused(f"{n} bytes of it", run("info", "-m", d), 1, "a.gguf")
        shutil.copy(path, os.path.join(d, "b.gguf"))
        refused("a folder of two", run("info", "-m", d), 1, d, "several GGUF files", "give the path of one")
    real = os.path.join(os.environ.get("QUERN_TEST_MODELS") or os.path.expanduser("~/.cache/quern-test-models"),
                        "SmolLM2-135M-Instruct.Q4_1.gguf")
    if not os.path.exists(real):
        print("skipped: " + real + " is not there (scripts/fetch-models)")
        return
    status, out, err = run("info", "--json", "-m", real)
    info = json.loads(out) if status == 0 else {}
    check("info of a real one", info.get("family") == "llama" and info["chat_template"] == "its own template"
          and info["tokenizer_size"] == 49152, err)
    status, out, err = run("template", "-p", "hi <|im_end|>", "--tokens", "-m", real)
    ids = out.split()
    check("its template", ids[:1] == [b"1"] and ids.count(b"2") == 2 and ids[-4:] == [b"1", b"520", b"9531", b"198"],
          (out, err))


def test_permissions():
    """Files that are there and that this user may not read; as root another user is tried."""
    nobody = 65534 if os.geteuid() == 0 else None
    with tempfile.TemporaryDirectory() as d:
        quern, model = os.path.join(d, "quern"), os.path.join(d, "model")
        shutil.copy(QUERN, quern)
        shutil.copytree(os.path.join(SOURCE, "models/demo"), model)
        os.chmod(d, 0o755)
        os.chmod(model, 0o755)
        ask = lambda: run(shell=f"exec '{quern}' generate -p x -m '{model}' -n 1 </dev/null", user=nobody)
        check("another user runs it", ask()[0] == 0, ask())
        for name in ("config.json", "model.safetensors", "tokenizer.json"):
            os.chmod(os.path.join(model, name), 0o000)
            refused(f"{name} is unreadable", ask(), 1, os.path.join(model, name), "no permission")
            os.chmod(os.path.join(model, name), 0o644)
        os.chmod(model, 0o600)
        refused("the folder is unreadable", ask(), 1, model, "no permission")
        os.chmod(model, 0o755)


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
    few = ("-n", "12", "--temp", "0", "--raw")
    joined = generate("-p", "Tell me:\nof a fox", *few)
    check("another prompt, another reply", len({generate("-p", p, *few)[1] for p in ("Tell me:", "of a fox")}
                                               | {joined[1]}) == 3)
    with tempfile.TemporaryDirectory() as d:
        file = os.path.join(d, "prompt")
        for text in ("Tell me:\nof a fox", "Tell me:\nof a fox\n\n"):
            with open(file, "w") as f:
                f.write(text)
            check("-f", generate("-f", file, *few) == joined)
        check("a file as standard input", run(shell=f"exec '{QUERN}' generate {' '.join(few)} < '{file}'") == joined)
        refused("-f of nothing", generate("-f", file + "x"), 1, file + "x", "no such file")
        refused("-f of a directory", generate("-f", d), 1, d, "directory")
    check("a prompt piped in", generate(*few, stdin=b"Tell me:\nof a fox\n") == joined)
    check("-f -", generate("-f", "-", *few, stdin=b"Tell me:\nof a fox\n") == joined)
    check("what is piped in follows -p", generate("-p", "Tell me:", *few, stdin=b"of a fox\n") == joined)
    check("standard input that is no pipe", run(shell=f"exec '{QUERN}' generate -p 'Tell me:\nof a fox' "
                                                      f"{' '.join(few)} < /dev/null") == joined)
    refused("-c beyond the memory", generate("-p", "x", "-c", str(1 << 30)), 1, "--context 1073741824", "GiB", "positions fit")
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
    check("--verbose", status == 0 and out == text and "plans:" in err and "memory:" in err
          and re.search(r" [1-9]\d* steps, [\d.]+ an evaluation, ", err) and "launches: " in err and "kernels" not in err, err)
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
    check("a pipe that ends", status == 0 and out == b"done\n" and not err, err)
    for args in ("generate -p hi -n 200 --temp 0", "tokenize --decode -p '" + "7 " * 9000 + "'", "--man quern-chat"):
        status, out, err = run(shell=f"(sleep 0.1; '{QUERN}' {args}; echo $? >&2) | true")
        check(f"a pipe that nobody reads: {args[:20]}", not out and err == "141\n", err)


def test_sampling():
    """Stop strings, penalties, biases, chains, log probabilities: what they do is tested in C."""
    story = ("-p", "Tell me a story about a fox.", "--temp", "0", "-n", "60")
    text = generate(*story)[1].decode()[:-1]
    some = text[40:49]
    for streamed, args in (("text", ()), ("JSON", ("--json",))):
        status, out, err = generate(*story, "--stop", "not there", "-r", some, *args)
        out = json.loads(out)["text"] if args else out.decode()[:-1]
        check(f"--stop, {streamed}", status == 0 and out == text[:text.index(some)] and not err, (out, err))
    result = json.loads(generate(*story, "--stop", some, "--json")[1])
    check("--stop: finish", result["finish"] == "stop", result)
    for bare in ("\\\\", "\\q", "a\\"):
        check("--stop: escapes", generate(*story, "--stop", bare)[1].decode()[:-1] == text)
    ids = [str(t["id"]) for t in json.loads(generate(*story, "--json", "--logprobs", "0")[1])["logprobs"]]
    check("--logprobs 0", len(ids) == 60)
    result = json.loads(generate(*story, "--json", "--logprobs", "5")[1])["logprobs"]
    tops = [t["top_logprobs"] for t in result]
    check("--logprobs 5", all(len(t) == 5 and t[0]["id"] == r["id"] and t[0]["logprob"] == r["logprob"]
                              and sorted((k["logprob"] for k in t), reverse=True) == [k["logprob"] for k in t]
                              for r, t in zip(result, tops)), result[:1])
    check("--logprobs: bytes", b"".join(bytes(t["bytes"]) for t in result).decode().strip() == text.strip(), result[:2])
    biased = generate(*story, "--logit-bias", ids[0] + "-inf", "--json", "--logprobs", "0")[1]
    check("--logit-bias", ids[0] not in [str(t["id"]) for t in json.loads(biased)["logprobs"]], biased)
    sure = json.loads(generate(*story, "--logit-bias", "300+100", "-n", "4", "--json", "--logprobs", "0")[1])
    check("--logit-bias +", [t["id"] for t in sure["logprobs"]] == [300] * 4, sure)
    for name in ("--frequency-penalty", "--presence-penalty"):
        apart = generate(*story, "--logit-bias", "300+100", "--logit-bias", "301+100", "-n", "2", name, "5", "--json",
                         "--logprobs", "0")[1]
        check(name, sorted(t["id"] for t in json.loads(apart)["logprobs"]) == [300, 301], apart)
    hot = ("-p", "Hi", "-n", "20", "--temp", "1e5", "--top-k", "1", "--seed", "3")
    check("--samplers", generate(*hot, "--samplers", "temperature;top_k")[1] == generate(*hot, "--temp", "0")[1]
          != generate(*hot, "--samplers", "temp")[1])
    long = json.loads(generate("-p", "Hi", "--temp", "0", "-n", "300", "--ignore-eos", "--json")[1])
    check("--ignore-eos", long["generated_tokens"] == 300 and long["finish"] == "length", long)
    check("--top-p 0", generate("-p", "Hi", "-n", "20", "--temp", "9", "--top-p", "0")[1]
          == generate("-p", "Hi", "-n", "20", "--temp", "0")[1])
    refused("--samplers dry", generate("-p", "x", "--samplers", "top_k;dry"), 2, "dry", "top_k, top_p, min_p")
    refused("--samplers twice", generate("-p", "x", "--samplers", "top_k;top_k"), 2, "twice")
    refused("--stop, empty", generate("-p", "x", "--stop", ""), 2, "--stop", "1 to 1024 bytes")
    for bad in ("5", "x+1", "-5+1", "5+", "5*2", "5+nan", "5+inf", "99999999999+1"):
        refused(f"--logit-bias {bad}", generate("-p", "x", "--logit-bias", bad), 2, "--logit-bias", bad, "15043+1")
    refused("a bias beyond", generate("-p", "x", "--logit-bias", "2048+1"), 1, "2048")
    refused("--logprobs alone", generate("-p", "x", "--logprobs", "1"), 2, "--json")
    refused("65 stop strings", generate("-p", "x", *["--stop", "y"] * 65), 2, "at most 64")
    status, out, err = generate("-p", "Hi", "-n", "2", "--temp", "0", "-c", "2000")
    check("-c beyond", status == 0 and out and err.count("\n") == 1 and "2000" in err and "1024" in err, err)


def test_rotate():
    """Text goes on beyond the context, and is no other until then."""
    args = ("-p", "Tell me a story about a fox.", "--temp", "0", "-c", "48")
    short, long = generate(*args), generate(*args, "--rotate", "-n", "150", "--json")
    text = json.loads(long[1])
    check("--rotate", short[0] == long[0] == 0 and text["generated_tokens"] > 60
          and text["text"].startswith(short[1].decode()[:-1]), (short, long))
    out = generate("-p", "hi " * 50, "--temp", "0", "-c", "1", "--rotate", "-n", "4")
    check("--rotate, a context of one", out[0] == 0 and out[1], out)


def test_cache_types():
    """Kinds of caches answer, count their bytes, and exclude each other."""
    args = ("-p", "Tell me a story about a fox.", "--temp", "0", "-n", "20")
    plain = generate(*args)
    check("--cache-type-k f32 -v f32", generate(*args, "--cache-type-k", "f32", "--cache-type-v", "f32")[0] == 0)
    out = generate(*args, "--cache-type-k", "q8_0", "--cache-type-v", "f16")
    check("--cache-type-k q8_0", out[0] == 0 and out[1][:10] == plain[1][:10], (plain, out))
    bits = generate(*args, "--kv-bits", "4", "--kv-group-size", "32")
    named = generate(*args, "--cache-type-k", "affine4-g32-bf16", "--cache-type-v", "affine4-g32-bf16")
    check("--kv-bits", bits[0] == 0 and bits[1] == named[1] and bits[1], (bits, named))
    for wrong in (("--kv-group-size", "32"), ("--kv-bits", "4", "--cache-type-k", "q8_0"),
                  ("--kv-bits", "7"), ("--cache-type-v", "q3")):
        out = generate(*args, *wrong)
        check("wrong " + " ".join(wrong), out[0] == 1 and not out[1] and out[2].count("\n") == 1, out)
    size = lambda *more: json.loads(run("info", "--json", "-c", "256", *more)[1])["cache_bytes"]
    check("info counts q8_0", size("--cache-type-k", "f32", "--cache-type-v", "f32") * 34 ==
          size("--cache-type-k", "q8_0", "--cache-type-v", "q8_0") * 128)


def test_guesses():
    """Guesses, from the text and by a draft model, leave the text as it is; what cannot guess is refused."""
    demo = os.path.join(SOURCE, "models/demo")
    args = ("--raw", "-p", "Once there was a fox. Once there was a", "-n", "30", "--verbose")
    for more in (("--temp", "0"), ("--temp", "1", "--seed", "7")):
        plain = generate(*args, *more)
        check("no guesses", plain[0] == 0 and "guesses" not in plain[2], plain)
        for guess in (("--draft-model", demo), ("--draft-model", demo, "--num-draft-tokens", "3"),
                      ("--draft-model", demo, "--prompt-lookup-num-tokens", "4")):
            out = generate(*args, *more, *guess)
            check(" ".join((*more, *guess)), out[:2] == plain[:2] and "guesses right" in out[2], (plain, out))
        out = generate(*args, *more, "--prompt-lookup-num-tokens", "4")
        check("--prompt-lookup-num-tokens", out[:2] == plain[:2], (plain, out))
    refused("no draft model", generate("-p", "x", "--num-draft-tokens", "4"), 1, "no draft model")
    with tempfile.TemporaryDirectory() as d:
        other = os.path.join(d, "other")
        shutil.copytree(demo, other)
        path = os.path.join(other, "tokenizer.json")
        with open(path, encoding="utf-8") as f:
            tokenizer = json.load(f)
        last, before = sorted(tokenizer["model"]["vocab"], key=tokenizer["model"]["vocab"].get)[-1:-3:-1]
        vocab = tokenizer["model"]["vocab"]
        vocab[last], vocab[before] = vocab[before], vocab[last]
        os.chmod(path, 0o644)
        with open(path, "w", encoding="utf-8") as f:
            json.dump(tokenizer, f)
        refused("a draft of other tokens", generate("-p", "x", "--draft-model", other), 1, f"token {vocab[last]} is not")
    refused("no such draft", generate("-p", "x", "--draft-model", demo + "/none"), 1, demo + "/none")


def test_adapters():
    """An adapter of zeros changes nothing, one of numbers does; a directory that is none is refused."""
    args = ("--raw", "-p", "Once there was a fox.", "-n", "20", "--temp", "0")
    with tempfile.TemporaryDirectory() as d:
        none, some = os.path.join(d, "none"), os.path.join(d, "some")
        make_adapter(none, 0)
        make_adapter(some, 0.05)
        plain = generate(*args)
        check("--adapter of zeros", generate(*args, "--adapter", none)[:2] == plain[:2] and plain[0] == 0, plain)
        out = generate(*args, "--adapter", some)
        check("--adapter", out[0] == 0 and out[1] != plain[1], out)
        story = os.path.join(d, "story")
        with open(story, "w", encoding="utf-8") as f:
            f.write("Once there was a fox who polished a lantern. " * 12)
        kl = lambda *more: json.loads(run("eval", "--json", "-c", "64", "-f", story, *more)[1])["kl"]
        demo = os.path.join(SOURCE, "models/demo")
        check("eval --adapter --against", kl("--adapter", some, "--against", demo) > 1e-6
              and kl("--adapter", none, "--against", demo) < 1e-9)
        bench = ("bench", "-p", "16", "-n", "0", "-r", "1", "--no-ceilings")
        check("bench --adapter", run(*bench, "--adapter", some)[0] == 0)
        refused("bench, no adapter", run(*bench, "--adapter", d), 1, d, "PEFT")
        refused("bench --shape --adapter", run(*bench, "--shape", "llama-1b", "--adapter", some), 2, "--adapter")
        refused("no adapter", generate(*args, "--adapter", d), 1, d, "PEFT", "mlx-lm")
        refused("--lora", generate(*args, "--lora", some), 2, "--adapter")


def test_prompt_cache():
    """What stands in the file is not run again, and the text is the same; wrong files are refused."""
    with tempfile.TemporaryDirectory() as d:
        path = os.path.join(d, "prompt")
        long = "Once there was a fox who lived in a wood. " * 4
        def ask(prompt, *more):
            status, out, err = generate("-p", prompt, "--temp", "0", "-n", "12", "--json", "--raw", *more)
            return json.loads(out) if status == 0 else {"err": err}
        plain, cold = ask(long), ask(long, "--prompt-cache", path)
        warm = ask(long, "--prompt-cache", path, "--prompt-cache-ro")
        n = plain["prompt_tokens"]
        check("--prompt-cache, first", cold["text"] == plain["text"] and cold["prompt_tokens"] == n, cold)
        check("--prompt-cache, again", warm["text"] == plain["text"] and warm["cached_tokens"] == n - 1
              and warm["prompt_tokens"] == 1, warm)
        size = os.path.getsize(path)
        other = ask(long + "It was", "--prompt-cache", path, "--prompt-cache-ro")
        check("--prompt-cache, a longer prompt", other["text"] == ask(long + "It was")["text"]
              and other["cached_tokens"] >= n - 2 and os.path.getsize(path) == size, other)
        short = ask("Once there was a dog", "--prompt-cache", path, "--prompt-cache-all")
        check("--prompt-cache-all", short["text"] == ask("Once there was a dog")["text"]
              and 2 < short["cached_tokens"] < 10 and os.path.getsize(path) != size, short)
        wrong = ask(long, "--prompt-cache", path, "--cache-type-k", "q8_0")
        check("--prompt-cache of another type", "keys is" in wrong.get("err", ""), wrong)
        with open(path, "wb") as f:
            f.write(b"no file of ours")
        wrong = ask(long, "--prompt-cache", path)
        check("--prompt-cache, no such file", path in wrong.get("err", ""), wrong)
        check("--prompt-cache-all alone", generate("-p", "a", "--prompt-cache-all")[0] == 2)


def test_table():
    """--help, unknown options and pages of every command; a page has every option that --help has."""
    for command in COMMANDS:
        status, out, err = run(command, "--help")
        options = re.findall(r"--([a-z0-9-]+)", out.decode().split("Options:")[-1])
        check(f"{command} --help", status == 0 and not err and "help" in options and "model" in options, out)
        refused(f"{command} --modell", run(command, "--modell", "x"), 2, "--modell", "did you mean --model?")
        refused(f"{command} --xyzzyplugh", run(command, "--xyzzyplugh"), 2, "--xyzzyplugh", "--help")
        refused(f"{command} -m", run(command, "-m"), 2, "--model needs a value")
        status, page, err = run("--man", f"quern-{command}")
        lines = page.decode().split("\n")
        listed = [re.search(r"Fl -([a-z0-9-]+)", line).group(1) for line in lines if line.startswith(".It Fl ")]
        check(f"page of {command}", status == 0 and not err and sorted(listed) == sorted(
            {m.group(1) for m in re.finditer(r"^  (?:-.,|   ) --([a-z0-9-]+)", out.decode(), re.M)}), listed)
    overview = run("--man", "quern")[1].decode()
    check("page of quern", all(f".It Xr quern-{c} 1" in overview for c in COMMANDS), overview)
    refused("no such page", run("--man", "quern-xyzzy"), 2, "quern-xyzzy")
    for bad in ("x", "=1", "1a=2", "a-b=1", "messages=[]", "tools=1"):
        refused(f"--template-var {bad}", run("template", "-p", "x", "--template-var", bad), 2, "NAME=VALUE", bad)
    many = [w for i in range(65) for w in ("--template-var", f"v{i}=1")]
    refused("65 template variables", run("template", "-p", "x", *many), 2, "more than 64")
    for command in ("chat", "info"):
        refused(f"{command} with a word", run(command, "hello"), 2, "hello")
    refused("second file", run("tokenize", "a", "b"), 2, "\"b\"", "FILE")
    refused("tokenize: two texts", run("tokenize", "-p", "a", "b"), 2, "-p", "b")
    refused("template: nothing", run("template"), 2, "FILE")
    refused("template: both", run("template", "-p", "x", "f"), 2, "not both")
    refused("decode and ids", run("tokenize", "--decode", "--ids", "-p", "1"), 2, "--ids")


def make_hub(folder, org, name, commit="0123abcd"):
    """The layout of the Hugging Face cache: links in a snapshot to files in blobs."""
    top = os.path.join(folder, f"models--{org}--{name}")
    snapshot = os.path.join(top, "snapshots", "0123abcd")
    for d in (snapshot, os.path.join(top, "refs"), os.path.join(top, "blobs")):
        os.makedirs(d)
    with open(os.path.join(top, "refs/main"), "w") as f:
        f.write(commit)
    demo = os.path.join(SOURCE, "models/demo")
    for i, file in enumerate(f for f in os.listdir(demo) if f.endswith((".json", ".safetensors"))):
        with open(os.path.join(demo, file), "rb") as f, open(os.path.join(top, f"blobs/{i}"), "wb") as g:
            g.write(f.read())
        os.symlink(f"../../blobs/{i}", os.path.join(snapshot, file))


def test_hub():
    plain = generate("-p", "Hi", "-n", "3", "--temp", "0")[1]
    with tempfile.TemporaryDirectory() as d:
        home = os.path.join(d, "home")
        for folder, env in ((os.path.join(d, "a"), {"HF_HUB_CACHE": os.path.join(d, "a"), "HF_HOME": "/none"}),
                            (os.path.join(d, "b/hub"), {"HF_HOME": os.path.join(d, "b")}),
                            (os.path.join(home, ".cache/huggingface/hub"), {"HOME": home})):
            clean = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "XDG_"))}
            env = {**clean, **env}
            make_hub(folder, "org", "name")
            make_hub(folder, "bad", "commit", "../../../x")
            make_hub(folder, "no", "snapshot", "ffff")
            make_hub(folder, "a", "b--c")
            name = " ".join(k for k in env if k not in clean) or "HOME"
            out = run("generate", "-m", "org/name", "-p", "Hi", "-n", "3", "--temp", "0", env=env)
            check(f"hub by {name}", out == (0, plain, ""), out)
            with open(os.path.join(folder, "models--org--name/refs/v1"), "w") as f:
                f.write("0123abcd\n")
            for revision in ("main", "v1", "0123abcd"):
                out = run("info", "-m", f"org/name@{revision}", "--json", env=env)
                check(f"hub: @{revision}", out[0] == 0 and "snapshots/0123abcd" in json.loads(out[1])["path"], out)
            refused("hub: other revision", run("info", "-m", "org/name@v2", env=env), 1, "refs/v2",
                    "hf download org/name --revision v2")
            refused("hub: absent", run("generate", "-m", "org/other", "-p", "x", env=env), 1, folder,
                    "hf download org/other")
            refused("hub: commit", run("info", "-m", "bad/commit", env=env), 1, "refs/main", "../../../x")
            refused("hub: no snapshot", run("info", "-m", "no/snapshot", env=env), 1, "ffff",
                    "hf download no/snapshot")
            for bad in ("org/..", "org/na..me", "org/name/x", "a/b--c", "org/", "org/-x", "org/a b", "o\\x/y", "org/name@", "org/name@../x", "org/name@a/b", "org/name@-x"):
                refused(f"hub: {bad}", run("info", "-m", bad, env=env), 1, bad, "name")
            refused("hub: out of it", run("info", "-m", "../../etc", env=env), 1, "../../etc")


def test_tokenize():
    """Against ids of the tokenizers library (tests/text/make_tiny.py)."""
    tiny = os.path.join(SOURCE, "tests/text/tiny.tokenizer.json")
    rows = [json.loads(line) for line in open(os.path.join(SOURCE, "tests/text/tiny.expected.jsonl"))]
    chosen = [r for r in rows if r["ids"] != r["user"]][:6] + rows[::9]
    for r in chosen:
        text = r["text"].encode()
        for flags, key in ((["--parse-special"], "sp"), (["--parse-special", "--no-special"], "ids"),
                           (["--no-special"], "user")):
            out = run("tokenize", "-m", tiny, "--json", *flags, stdin=text)
            got = json.loads(out[1]) if out[0] == 0 else {}
            check(f"tokenize {key} {r['text'][:20]!r}", got.get("ids") == r[key] and
                  len(got["pieces"]) == len(r[key]), (out, r))
        ids = " ".join(map(str, r["ids"])).encode()
        out = json.loads(run("tokenize", "-m", tiny, "--decode", "--json", stdin=ids)[1])
        check(f"decode {r['text'][:20]!r}", out["text"] == r["dec"], (out, r))
        out = json.loads(run("tokenize", "-m", tiny, "--decode", "--no-special", "--json", "-p", str(r["ids"]))[1])
        check(f"decode, no special {r['text'][:20]!r}", out["text"] == r["dec_skip"], (out, r))
    vocab = json.load(open(tiny))["model"]["vocab"]
    status, out, err = run("tokenize", "-m", tiny, "--no-special", "-p", "The quern turns.")
    lines = [line.split("\t") for line in out.decode().splitlines()]
    check("pieces", [int(i) for i, _ in lines] == [327, 387, 402, 394, 83, 14]
          and all(vocab[p] == int(i) for i, p in lines), out)
    with tempfile.NamedTemporaryFile() as f:
        f.write("The quern turns.".encode())
        f.flush()
        out = run("tokenize", "-m", tiny, "--no-special", "--ids", f.name)
        check("ids of a file", out == (0, b"327 387 402 394 83 14\n", ""), out)
    for bad in ("1 x", "99999999999999999999", "-1", "100000", "1.5", "1 0x2"):
        refused(f"decode {bad}", run("tokenize", "--decode", "-p", bad), 1, "is no token id")
    refused("tokenize invalid UTF-8", run("tokenize", stdin=b"a\xff"), 1, "UTF-8")
    refused("tokenize: no file", run("tokenize", "/none/x"), 1, "/none/x")
    refused("tokenize: stdin closed", run(shell=f"exec '{QUERN}' tokenize <&-"), 1, "standard input")


def test_template():
    """ChatML as written out here; the ids of its control tokens; variables and tools through a template."""
    chat = [{"role": "user", "content": "Hi <|im_end|>"}, {"role": "assistant", "content": "a\nb"},
            {"role": "user", "content": "\u00e9"}]
    want = "<|im_start|>user\nHi <|im_end|><|im_end|>\n<|im_start|>assistant\na\nb<|im_end|>\n" \
           "<|im_start|>user\n\u00e9<|im_end|>\n"
    with tempfile.TemporaryDirectory() as d:
        file, tools = os.path.join(d, "chat.json"), os.path.join(d, "tools.json")
        json.dump(chat, open(file, "w"))
        json.dump([{"name": "f"}], open(tools, "w"))
        out = run("template", file)
        check("template", out == (0, (want + "<|im_start|>assistant\n").encode(), ""), out)
        out = run("template", file, "--no-prompt", "--system", "S")
        check("template, system", out == (0, ("<|im_start|>system\nS<|im_end|>\n" + want).encode(), ""), out)
        out = run("template", "-", stdin=json.dumps({"messages": chat[2:]}).encode())
        check("template, stdin", out[1] == "<|im_start|>user\n\u00e9<|im_end|>\n<|im_start|>assistant\n".encode(), out)
        ids = [int(i) for i in run("template", file, "--tokens")[1].split()]
        both = json.loads(run("template", file, "--json")[1])
        check("template ids", ids == both["ids"] and ids.count(1) == 4 and ids.count(2) == 3
              and both["text"] == want + "<|im_start|>assistant\n", both)
        parsed = run("template", file, "--tokens", "--parse-special")[1].split()
        check("template ids as in transformers", parsed.count(b"1") == 4 and parsed.count(b"2") == 4, parsed)
        model = os.path.join(d, "model")
        os.mkdir(model)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            with open(os.path.join(SOURCE, "models/demo", name)) as f, open(os.path.join(model, name), "w") as g:
                g.write(f.read())
        with open(os.path.join(model, "chat_template.jinja"), "w") as f:
            f.write("{{ n + 1 }}|{{ s }}|{{ tools[0].name if tools else 'none' }}|{{ messages[0].content }}"
                    "|{{ add_generation_prompt }}")
        var = ("--template-var", "n=4", "--template-var", "s=old", "--template-var", "s=a b=c")
        out = run("template", "-m", model, "-p", "x", *var)
        check("template variables", out == (0, b"5|a b=c|none|x|True", ""), out)
        out = run("template", "-m", model, "-p", "x", *var, "--tools", tools, "--no-prompt")
        check("template tools", out == (0, b"5|a b=c|f|x|False", ""), out)
        out = run("template", "-m", model, "-p", "x", "--template-var", "add_generation_prompt=false", *var)
        check("a variable of ours", out == (0, b"5|a b=c|none|x|False", ""), out)
        call = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}
        out = run("template", "-m", model, "-", *var, stdin=json.dumps([call | {"content": "y"}, call]).encode())
        check("a message of tool calls alone", out == (0, b"5|a b=c|none|y|True", ""), out)
        with open(file, "w") as f:
            f.write('{"name": "f"}')
        refused("tools that are no list", run("template", "-m", model, "-p", "x", "--tools", file), 1, "array")
        more = os.path.join(model, "additional_chat_templates")
        os.mkdir(more)
        for name in ("rag", "tool_use"):
            with open(os.path.join(more, name + ".jinja"), "w") as f:
                f.write(name + ": {{ messages[0].content }}")
        for words, want in ((("--template-name", "rag"), b"rag: x"), (("--tools", tools), b"tool_use: x"),
                            (("--template-name", "default", "--tools", tools, *var), b"5|a b=c|f|x|True")):
            out = run("template", "-m", model, "-p", "x", *words)
            check(f"template {words}", out == (0, want, ""), out)
        refused("template name", run("template", "-m", model, "-p", "x", "--template-name", "rug"), 1, '"rug"',
                "default, rag, tool_use")
        refused("template name, none there", run("template", "-p", "x", "--template-name", "rag"), 1, "rag")
        for name, text, named in (("no JSON", "{", "chat.json"), ("a number", "3", "array"), ("empty", "[]", "message"),
                                  ("no role", '[{"content": "x"}]', "role"), ("no content", '[{"role": "user"}]', "content"),
                                  ("content", '[{"role": "user", "content": 3}]', "content"), ("a word", '["x"]', "object"),
                                  ("messages", '{"messages": 1}', "messages"), ("nothing", "", "chat.json"),
                                  ("deep", "[" * 5000, "chat.json")):
            with open(file, "w") as f:
                f.write(text)
            refused(f"template: {name}", run("template", file), 1, named)
        refused("template: bad tools", run("template", "-p", "x", "--tools", file), 1, "chat.json")


def test_info():
    """Against config.json and the header of the weights, read here."""
    with tempfile.TemporaryDirectory() as d:
        for name in ("config.json", "model.safetensors"):
            with open(os.path.join(TINY, name), "rb") as f, open(os.path.join(d, name), "wb") as g:
                g.write(f.read())
        with open(os.path.join(SOURCE, "tests/text/tiny.tokenizer.json")) as f, \
                open(os.path.join(d, "tokenizer.json"), "w") as g:
            g.write(f.read())
        config = json.load(open(os.path.join(d, "config.json")))
        with open(os.path.join(d, "model.safetensors"), "rb") as f:
            header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        tensors = [t for k, t in header.items() if k != "__metadata__"]
        size = sum(t["data_offsets"][1] - t["data_offsets"][0] for t in tensors)
        status, out, err = run("info", "-m", d, "--json", "-c", "256")
        got = json.loads(out) if status == 0 else {}
        check("info", not err and got == {**got, "family": "llama", "dtype": "f32", "parameters": size // 4,
              "file_bytes": size, "layers": config["num_hidden_layers"], "heads": config["num_attention_heads"],
              "kv_heads": config["num_key_value_heads"], "head_dim": config["head_dim"], "context": 256,
              "hidden_size": config["hidden_size"], "intermediate_size": config["intermediate_size"],
              "vocab_size": config["vocab_size"], "max_positions": config["max_position_embeddings"]}, (out, err))
        cache = 2 * 4 * 256 * config["num_hidden_layers"] * config["num_key_value_heads"] * config["head_dim"]
        check("info: memory", got.get("cache_bytes") == cache and size <= got["weight_bytes"] <= 1.2 * size
              and got["memory_bytes"] == cache + got["weight_bytes"], got)
        status, out, err = run("info", "-m", d)
        check("info as text", status == 0 and not err and b"llama" in out and b"in files: f32 100 %\n" in out, out)
        mixed = os.path.join(d, "mixed.gguf")
        status, out, err = run("convert", "-m", d, "-o", mixed, "--type", "q8_0", "--override", "ffn_down=f16")
        got = json.loads(run("info", "-m", mixed, "--json")[1]) if status == 0 else {}
        wide = sum(math.prod(t["shape"]) for k, t in header.items() if "down_proj" in k)
        rest = sum(math.prod(t["shape"]) for k, t in header.items() if len(t.get("shape", [])) == 2) - wide
        share = [100 * n / got.get("file_bytes", 1) for n in (rest * 34 / 32, wide * 2)]
        check("info: types of a mixture", got.get("types") == f"q8_0 {share[0]:.0f} %, f16 {share[1]:.0f} %, f32 under 1 %"
              or got.get("types") == f"q8_0 {share[0]:.0f} %, f16 {share[1]:.0f} %, f32 {100 - sum(share):.0f} %", (got, share, err))
        weights = os.path.join(d, "model.safetensors")
        with open(weights, "r+b") as f:
            f.truncate(os.path.getsize(weights) - 1)
        refused("info: short weights", run("info", "-m", d), 1, "model.safetensors")
    status, out, err = run("info", "-m", TINY)
    check("info: no tokenizer", status == 0 and not err and b"no tokenizer" in out and b"chat " not in out, (out, err))
    got = json.loads(run("info", "-m", TINY, "--json")[1])
    check("info: no tokenizer, JSON", got["tokenizer_size"] is None and got["chat_template"] is None
          and got["vocab_size"] == 320, got)
    refused("info: no model", run("info", "-m", "/none"), 1, "/none")


def test_convert():
    with tempfile.TemporaryDirectory() as d:
        out, again, folder = (os.path.join(d, n) for n in ("a.gguf", "b.gguf", "mlx"))
        done = run("convert", "-o", out, "--type", "Q4_K_M")
        check("convert is quiet", done == (0, b"", ""), done)
        refused("convert, there already", run("convert", "-o", out), 1, "exists already")
        check("convert --force", run("convert", "-o", out, "--type", "q4_k_m", "--force")[0] == 0)
        run("convert", "-o", again, "--type", "q4_k_m", "-t", "1")
        check("convert twice", open(out, "rb").read() == open(again, "rb").read())
        status, text, err = run("generate", "-m", out, "-p", "Tell me a story about a fox.", "--temp", "0", "-n", "8")
        check("convert, generate", status == 0 and text.strip(), err)
        check("convert to a directory", run("convert", "-o", folder, "--bits", "4", "--mode", "affine")[0] == 0)
        config = json.load(open(os.path.join(folder, "config.json")))
        check("convert, config.json", config["quantization"] == {"group_size": 64, "bits": 4, "mode": "affine"} ==
              config["quantization_config"], config)
        check("convert, files", sorted(os.listdir(folder)) == ["config.json", "generation_config.json", "model.safetensors",
                                                               "tokenizer.json", "tokenizer_config.json"])
        run("convert", "-m", folder, "-o", folder + "-again", "--bits", "4")
        same = [open(os.path.join(f, "model.safetensors"), "rb").read() for f in (folder, folder + "-again")]
        check("convert what has these bits", same[0] == same[1])
        refused("convert onto its source", run("convert", "-m", out, "-o", out, "--force"), 1, "is read from")
        refused("convert --type of a directory", run("convert", "-o", os.path.join(d, "x"), "--type", "q8_0"), 1, ".gguf")
        refused("convert --bits of a file", run("convert", "-o", os.path.join(d, "x.gguf"), "--bits", "4"), 1, "directory")
        refused("convert, unknown type", run("convert", "-o", os.path.join(d, "x.gguf"), "--type", "q9"), 1, "q9", "q4_k_m")
        refused("convert, nowhere", run("convert", "-o", os.path.join(d, "no", "x.gguf")), 1, "No such file")
        refused("convert, disk full", run(shell=f"ulimit -f 100; trap '' XFSZ; '{QUERN}' convert -o '{d}/y.gguf'"), 1, "too large")
        refused("convert --shard-size", run("convert", "-o", os.path.join(d, "x.gguf"), "--shard-size", "2X"), 2, "500M")
        check("convert leaves nothing", sorted(os.listdir(d)) == ["a.gguf", "b.gguf", "mlx", "mlx-again"], os.listdir(d))
    refused("convert without -o", run("convert"), 2, "-o")
    with tempfile.TemporaryDirectory() as d:
        base, adapter = (os.path.join(SOURCE, "tests/golden", n) for n in ("llama/plain", "adapters/peft"))
        fused, plain = (os.path.join(d, n) for n in ("fused.gguf", "plain.gguf"))
        done = run("fuse", "-m", base, "--adapter", adapter, "-o", fused)
        check("fuse", done[:2] == (0, b"") and "no tokenizer" in done[2], done)
        run("convert", "-m", base, "-o", plain)
        check("fuse adds", open(fused, "rb").read() != open(plain, "rb").read())
        refused("fuse without an adapter", run("fuse", "-m", base, "-o", os.path.join(d, "x")), 2, "--adapter")
        make_adapter(os.path.join(d, "a"), 0.1)
        refused("fuse, of another model", run("fuse", "-m", base, "--adapter", os.path.join(d, "a"), "-o", os.path.join(d, "x")), 1,
                "of another model")
        refused("fuse --save-path", run("fuse", "--save-path", d), 2, "--output")
    refused("convert --bits 7", run("convert", "-o", "x", "--bits", "7"), 2, "--bits")
    refused("convert --group-size 33", run("convert", "-o", "x", "--bits", "4", "--group-size", "33"), 2, "--group-size")
    refused("convert --mode", run("convert", "-o", "x", "--bits", "4", "--mode", "nvfp4"), 2, "affine or mxfp4")
    refused("convert --outtype", run("convert", "--outtype", "f16"), 2, "--type")


def test_kernels():
    """Which tier serves what: not every tier has every kernel, and info must say which one is taken."""
    wide = {"linear", "linear-int8", "attention", "norm", "rope", "argmax", "elementwise"}
    tiers = {"ref": {}, **{tier: dict.fromkeys(wide, tier) for tier in ("avx2", "avx512", "neon")},
             "amx": {**dict.fromkeys(wide, "avx512"), "linear": "amx"}}
    seen = []
    for tier, own in tiers.items():
        env = dict(os.environ, QN_CPU=tier)
        status, out, err = run("info", "--json", env=env)
        if status:
            continue
        seen.append(tier)
        want = {**dict.fromkeys(wide | {"cache"}, "ref"), **own}
        check(f"kernels of {tier}", json.loads(out)["kernels"] == want, out)
        text = run("info", env=env)[1].decode()
        check(f"kernels of {tier} as text", all(f"{k} {v}" in text for k, v in want.items()), text)
    check("there are tiers", "ref" in seen, seen)
    refused("an unknown tier", run("info", env=dict(os.environ, QN_CPU="mmx")), 1, "mmx", "ref")


def main():
    for test in (test_usage, test_words_of_others, test_devices, test_limits, test_table, test_models, test_what_files_are, test_gguf, test_permissions, test_hub,
                 test_prompts, test_rotate, test_cache_types, test_guesses, test_adapters, test_prompt_cache,
                 test_output, test_sampling, test_tokenize, test_template, test_info,
                 test_convert, test_kernels):
        test()
    finish()


main()
