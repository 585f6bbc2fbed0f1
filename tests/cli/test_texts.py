#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""quern classify and quern embed from outside.

    tests/cli/test_texts.py QUERN

What classify says of next tokens is checked against generate's log probabilities; what the vectors are is checked in
tests/generate/test_forward.c, here that every form and split of the same texts gives the same. Ends like cmocka, so
that scripts/run-tests counts the checks.
"""
import array
import json
import math
import os
import struct
import tempfile
import zipfile

from helper import check, finish, refused, run

TEXTS = ["Once upon a time there was a fox", "The old house on the", "goose", "He said: \"no\" and the lantern", "a b c d"]


def lines(texts):
    return "".join(t + "\n" for t in texts).encode()


def objects(*args, stdin=b""):
    status, out, err = run(*args, stdin=stdin)
    check(" ".join(args)[:70], status == 0 and not err, err)
    return [json.loads(line) for line in out.decode().splitlines()] if status == 0 else []


def next_of(text, *args):
    """What generate gives as the log probabilities of the first token."""
    _, out, _ = run("generate", "-p", text, "--raw", "--temp", "0", "-n", "1", "--json", "--ignore-eos", "--logprobs", "4", *args)
    return json.loads(out)["logprobs"][0]["top_logprobs"]


def near(a, b):
    return abs(a - b) <= 1e-5 * max(1, abs(a), abs(b))


def test_next_tokens():
    got = objects("classify", "-", "--json", "--top", "4", stdin=lines(TEXTS))
    check("one result a line, in order", [g["index"] for g in got] == list(range(len(TEXTS))), got)
    for text, g in zip(TEXTS, got):
        want = next_of(text)
        check(text, [t["id"] for t in g["tokens"]] == [t["id"] for t in want]
              and all(near(a["logprob"], b["logprob"]) and a["token"] == b["token"] for a, b in zip(g["tokens"], want))
              and g["prompt_tokens"] == len(run("tokenize", "-p", text, "--ids")[1].split()), (g, want))
        gaps = [(a["logit"] - b["logit"]) - (a["logprob"] - b["logprob"]) for a, b in zip(g["tokens"], g["tokens"][1:])]
        check(f"{text}: logits are as far apart", all(abs(x) < 1e-4 for x in gaps), gaps)
    for text in TEXTS[:2]:
        check(f"-p {text}", objects("classify", "-p", text, "--json", "--top", "4")[0]["tokens"]
              == got[TEXTS.index(text)]["tokens"])
    status, out, err = run("classify", "-", "--top", "2", stdin=lines(TEXTS[:2]))
    rows = [row.split("\t") for row in out.decode().splitlines()]
    check("as text", status == 0 and [r[-1] for r in rows] == TEXTS[:2] and all(len(r) == 3 for r in rows)
          and rows[0][0] == f"{got[0]['tokens'][0]['logprob']:.4f} " + rows[0][0].split(" ", 1)[1], (out, err))
    check("five without --top", len(objects("classify", "-p", "a", "--json")[0]["tokens"]) == 5)


def label_logprob(text, label):
    """By one token after the other: each behind the ids that came before."""
    ids = [int(i) for i in run("tokenize", "-p", text, "--ids")[1].split()]
    total = 0
    for token in [int(i) for i in run("tokenize", "-p", label, "--no-special", "--ids")[1].split()]:
        row = objects("classify", "-", "--split", "jsonl", "--json", "--top", "1000", stdin=json.dumps(ids).encode())[0]
        total += next(t["logprob"] for t in row["tokens"] if t["id"] == token)
        ids.append(token)
    return total


def test_labels():
    labels = [" time", " the", " a fox"]
    options = [o for label in labels for o in ("--label", label)]
    got = objects("classify", "-", "--json", *options, stdin=lines(TEXTS))
    for text, g in zip(TEXTS[:3], got):
        logprobs = [x["logprob"] for x in g["labels"]]
        check(f"{text}: labels in their order", [x["label"] for x in g["labels"]] == labels, g)
        try:
            want = [label_logprob(text, label) for label in labels]
        except StopIteration:
            continue  # not among a thousand
        check(f"{text}: log probabilities", all(abs(a - b) < 1e-3 for a, b in zip(logprobs, want)), (logprobs, want))
    for g in got:
        total = sum(math.exp(x["logprob"]) for x in g["labels"])
        check("probabilities among the labels", all(abs(x["probability"] - math.exp(x["logprob"]) / total) < 1e-6
                                                    for x in g["labels"]), g)
        check("the best label", g["label"] == max(g["labels"], key=lambda x: x["logprob"])["label"], g)
    check("-l", objects("classify", "-", "--json", *[o.replace("--label", "-l") for o in options], stdin=lines(TEXTS)) == got)
    escaped = objects("classify", "-p", "a", "--json", "-l", "\\n", "-l", "x")
    check("\\n is a newline", escaped[0]["labels"][0]["label"] == "\n", escaped)


def test_splits():
    words = "Once upon\na  time\n"
    want = objects("classify", "-", "--json", stdin=b"Once\nupon\na\ntime\n")
    check("words", objects("classify", "-", "--json", "--split", "words", stdin=words.encode()) == want)
    whole = objects("classify", "-", "--json", "--split", "none", stdin=words.encode())
    check("one text", len(whole) == 1 and whole[0]["tokens"] == objects("classify", "-p", words, "--json")[0]["tokens"])
    ids = [int(i) for i in run("tokenize", "-p", "Once", "--ids")[1].split()]
    rows = ["Once", {"text": "Once"}, {"prompt": "Once", "custom_id": "z"}, {"input": "Once"}, ids, {"input": ids}]
    data = "".join(json.dumps(r) + "\n" for r in rows).encode()
    got = objects("classify", "-", "--json", "--split", "jsonl", stdin=data)
    check("jsonl", all(g["tokens"] == want[0]["tokens"] for g in got) and len(got) == len(rows), got)
    check("custom_id", [g.get("custom_id") for g in got] == [None, None, "z", None, None, None], got)
    with tempfile.TemporaryDirectory() as d:
        path = os.path.join(d, "x.jsonl")
        with open(path, "wb") as f:
            f.write(data)
        check("by its name", objects("classify", path, "--json") == got)
    chat = json.dumps({"messages": [{"role": "user", "content": "Once"}]}).encode()
    check("messages are --chat", objects("classify", "-", "--json", "--split", "jsonl", stdin=chat)
          == objects("classify", "-p", "Once", "--json", "--chat"))
    many = [f"{'a ' * (i % 4)}{i}" for i in range(4200)]  # two windows
    got = objects("classify", "-", "--json", "--top", "1", stdin=lines(many))
    check("windows go on", [g["index"] for g in got] == list(range(4200)))
    check("the last is what it is alone", got[-1]["tokens"] == objects("classify", "-p", many[-1], "--json", "--top", "1")[0]["tokens"])


def floats(text):
    return array.array("f", [float(x) for x in text.split()])


def npy(data):
    """(shape, values) of an npy file of f32."""
    n = struct.unpack("<H", data[8:10])[0]
    head = eval(data[10:10 + n].decode(), {"__builtins__": {}}, {})  # a literal of ours
    check("npy header", data[:6] == b"\x93NUMPY" and head["descr"] == "<f4" and not head["fortran_order"], head)
    return head["shape"], array.array("f", data[10 + n:])


def test_embed():
    status, out, err = run("embed", "-", stdin=lines(TEXTS))
    raw = [floats(row) for row in out.decode().splitlines()]
    check("raw", status == 0 and not err and [len(r) for r in raw] == [256] * len(TEXTS), err)
    check("of length 1", all(abs(sum(x * x for x in r) - 1) < 1e-5 for r in raw))
    doc = json.loads(run("embed", "-", "--embd-output-format", "json", stdin=lines(TEXTS))[1])
    check("json", doc["object"] == "list" and [d["index"] for d in doc["data"]] == list(range(len(TEXTS)))
          and [array.array("f", d["embedding"]) for d in doc["data"]] == raw and doc["usage"]["total_tokens"] > 5, doc["usage"])
    check("array", [array.array("f", x) for x in json.loads(run("embed", "-", "--embd-output-format", "array",
                                                               stdin=lines(TEXTS))[1])] == raw)
    rows = "".join(json.dumps({"text": t, "custom_id": t[:3]}) + "\n" for t in TEXTS).encode()
    got = objects("embed", "-", "--split", "jsonl", "--embd-output-format", "jsonl", stdin=rows)
    check("jsonl", [array.array("f", g["embedding"]) for g in got] == raw and [g["custom_id"] for g in got] == [t[:3] for t in TEXTS])
    check("one by one", all(floats(run("embed", "-p", t)[1].decode()) == r for t, r in zip(TEXTS, raw)))
    bare = [floats(row) for row in run("embed", "-", "--embd-normalize", "-1", stdin=lines(TEXTS))[1].decode().splitlines()]
    for option, size in (("2", lambda r: math.sqrt(sum(x * x for x in r))), ("1", lambda r: sum(map(abs, r))),
                         ("0", lambda r: max(map(abs, r)) / 32760)):
        rows = [floats(row) for row in run("embed", "-", "--embd-normalize", option, stdin=lines(TEXTS))[1].decode().splitlines()]
        check(f"--embd-normalize {option}", all(abs(a - b / size(r)) <= 1e-6 * abs(a) + 1e-9 for r, n in zip(bare, rows)
                                                for a, b in zip(n, r)))
    last = [floats(row) for row in run("embed", "-", "--pooling", "last", stdin=lines(TEXTS))[1].decode().splitlines()]
    check("--pooling last is another", all(a != b for a, b in zip(last, raw) if len(a)))
    one = lines(["a"])
    check("but not of one token", len(run("tokenize", "-p", "a", "--ids")[1].split()) > 1
          or run("embed", "-", "--pooling", "last", stdin=one)[1] == run("embed", "-", stdin=one)[1])
    with tempfile.TemporaryDirectory() as d:
        for name in ("x.npy", "x.npz", "x.safetensors"):
            path = os.path.join(d, name)
            status, out, err = run("embed", "-", "-o", path, stdin=lines(TEXTS))
            check(name, status == 0 and not out and not err, err)
            if name == "x.npz":
                with zipfile.ZipFile(path) as z:
                    check("its one array", z.namelist() == ["embeddings.npy"] and not z.testzip())
                    data = z.read("embeddings.npy")
            else:
                with open(path, "rb") as f:
                    data = f.read()
            if name != "x.safetensors":
                shape, values = npy(data)
                check(f"{name}: values", shape == (len(TEXTS), 256) and values == sum(raw, array.array("f")), shape)
            else:
                check(f"{name}: values", data.endswith(sum(raw, array.array("f")).tobytes()))
        path = os.path.join(d, "many.npy")
        many = [f"{i}" for i in range(4100)]
        run("embed", "-", "-o", path, stdin=lines(many))
        with open(path, "rb") as f:
            shape, values = npy(f.read())
        check("windows go on in a file", shape == (4100, 256) and values[-256:] == floats(run("embed", "-p", "4099")[1]))
    check("no texts", run("embed", "-", "--embd-output-format", "array")[:2] == (0, b"[]\n"))
    check("no texts to classify", run("classify", "-")[:2] == (0, b""))


def test_refusals():
    for command in ("classify", "embed"):
        refused(f"{command}: nothing", run(command), 2, "-p", "standard input")
        refused(f"{command}: two things", run(command, "x", "-p", "y"), 2, "not both")
        refused(f"{command}: split", run(command, "x", "--split", "pages"), 2, "--split", "pages")
        refused(f"{command}: split -p", run(command, "-p", "x", "--split", "words"), 2, "--split")
        refused(f"{command}: system", run(command, "-p", "x", "--system", "y"), 2, "--chat")
        refused(f"{command}: no file", run(command, "/nonexistent"), 1, "/nonexistent")
        refused(f"{command}: UTF-8", run(command, "-", stdin=b"good\nb\xffd\n"), 1, "line 2", "UTF-8")
        refused(f"{command}: too long", run(command, "-", stdin=b"good\n" + b"long " * 2000), 1, "line 2", "room for 1024")
        for row, part in ((b'{"text":1}', "text"), (b'{"txt":"a"}', "txt"), (b'{"text":"a","input":"b"}', "already"),
                          (b"{}", "no text"), (b"[]", "no text"), (b"[99999]", "99999"), (b'["a"]', "expected"),
                          (b'{"text":', "byte"), (b"5", "expected")):
            refused(f"{command}: {row}", run(command, "-", "--split", "jsonl", stdin=b'"a"\n' + row), 1, "line 2", part)
    refused("labels and --top", run("classify", "-p", "a", "-l", "b", "--top", "2"), 2, "--top")
    refused("an empty label", run("classify", "-p", "a", "-l", ""), 2, "--label")
    refused("pooling", run("embed", "-p", "a", "--pooling", "max"), 2, "--pooling", "max")
    refused("form", run("embed", "-p", "a", "--embd-output-format", "xml"), 2, "xml")
    refused("norm", run("embed", "-p", "a", "--embd-normalize", "3"), 2, "--embd-normalize", "-1 to 2")
    refused("a name without a form", run("embed", "-p", "a", "-o", "x.txt"), 2, ".npz")
    refused("two forms", run("embed", "-p", "a", "-o", "x.npy", "--embd-output-format", "raw"), 2, "-o")
    refused("nowhere", run("embed", "-p", "a", "-o", "/nonexistent/x.npy"), 1, "/nonexistent/x.npy")


if __name__ == "__main__":
    test_next_tokens()
    test_labels()
    test_splits()
    test_embed()
    test_refusals()
    finish()
