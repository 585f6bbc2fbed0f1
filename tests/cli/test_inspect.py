#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""quern inspect from outside.

    tests/cli/test_inspect.py QUERN

The arrays are checked against transformers in tests/generate/test_inspect.c; here their names and shapes in each form,
and that the picture, a well-formed SVG, shows the attention that follows from the arrays. Ends like cmocka, so that
scripts/run-tests counts the checks.
"""
import array
import json
import math
import os
import re
import struct
import tempfile
import xml.etree.ElementTree as ET
import zipfile

from helper import check, finish, refused, run

TEXT = 'Tell me a <story> about a "fox" & a lantern\n of \u00e9clat \u72d0.'
LAYERS, HEADS, KEY_HEADS, DIM = 4, 4, 2, 64
SVG = "{http://www.w3.org/2000/svg}"


def ids_of(text):
    return [int(i) for i in run("tokenize", "-p", text, "--ids")[1].split()]


def read_npz(path):
    """{name: (shape, values)}"""
    out = {}
    with zipfile.ZipFile(path) as z:
        check("the archive is whole", z.testzip() is None)
        for name in z.namelist():
            data = z.read(name)
            n = struct.unpack("<H", data[8:10])[0]
            head = eval(data[10:10 + n].decode(), {"__builtins__": {}}, {})  # a literal of ours
            kind = {"<f4": "f", "<i4": "i"}[head["descr"]]
            out[name[:-4]] = (head["shape"], array.array(kind, data[10 + n:]))
    return out


def read_safetensors(path):
    with open(path, "rb") as f:
        data = f.read()
    n = struct.unpack("<Q", data[:8])[0]
    return {k: (tuple(v["shape"]), array.array({"F32": "f", "I32": "i"}[v["dtype"]],
                                              data[8 + n + v["data_offsets"][0]:8 + n + v["data_offsets"][1]]))
            for k, v in json.loads(data[8:8 + n]).items() if k != "__metadata__"}


def attention(arrays, layer, head, n):
    """Rows of softmax(q k / sqrt(d)) over what came before."""
    q, k = arrays[f"layers.{layer}.q"][1], arrays[f"layers.{layer}.k"][1]
    rows = []
    for i in range(n):
        own = q[(head * n + i) * DIM:(head * n + i + 1) * DIM]
        at = head // (HEADS // KEY_HEADS) * n
        scores = [math.exp(sum(a * b for a, b in zip(own, k[(at + j) * DIM:(at + j + 1) * DIM])) / math.sqrt(DIM))
                  for j in range(i + 1)]
        rows.append([s / sum(scores) for s in scores])
    return rows


def test_arrays(d):
    ids = ids_of(TEXT)
    n, path = len(ids), os.path.join(d, "x.npz")
    status, out, err = run("inspect", "-p", TEXT, "-o", path)
    check("npz", status == 0 and not out and not err, err)
    arrays = read_npz(path)
    want = {"ids": (n,)}
    for i in range(LAYERS):
        want[f"layers.{i}.q"], want[f"layers.{i}.k"] = (HEADS, n, DIM), (KEY_HEADS, n, DIM)
    check("names and shapes", {k: v[0] for k, v in arrays.items()} == want, {k: v[0] for k, v in arrays.items()})
    check("ids", list(arrays["ids"][1]) == ids)
    check("layers differ", len({v[1].tobytes() for v in arrays.values()}) == len(arrays))
    other = os.path.join(d, "x.safetensors")
    run("inspect", "-p", TEXT, "-o", other)
    check("safetensors has the same", read_safetensors(other) == arrays)
    one = os.path.join(d, "one.npz")
    run("inspect", "-p", TEXT, "-o", one, "--layer", "2", "-t", "1")
    check("one layer", read_npz(one) == {k: v for k, v in arrays.items() if k == "ids" or ".2." in k})
    source = os.path.join(d, "text")
    with open(source, "w", encoding="utf-8") as f:
        f.write(TEXT)
    run("inspect", source, "-o", one)
    check("from a file", read_npz(one) == arrays)
    run("inspect", "-", "-o", one, stdin=TEXT.encode())[0]
    check("from standard input", read_npz(one) == arrays)
    run("inspect", "-p", "Hello", "--chat", "-o", one)
    chat = run("template", "-p", "Hello", "--tokens")[1].decode().split()
    check("--chat", [str(i) for i in read_npz(one)["ids"][1]] == chat)
    return arrays, n


def test_picture(d, arrays, n):
    path = os.path.join(d, "x.svg")
    for layer, head in ((0, 0), (3, 2), (1, 3)):
        status, out, err = run("inspect", "-p", TEXT, "--picture", path, "--layer", str(layer), "--head", str(head))
        check("picture", status == 0 and not out and not err, err)
        root = ET.parse(path).getroot()
        check("svg", root.tag == SVG + "svg" and int(root.get("width")) > 300)
        texts = [t.text or "" for t in root.iter(SVG + "text")]
        check("title", f"layer {layer}, head {head} (key head {head // 2}), {n} tokens" in texts[0], texts[0])
        check("a label a row and a column", len(texts) == 1 + 2 * n and texts[1:n + 1] == texts[n + 1:]
              and "\u23ce" in "".join(texts) and "<" in "".join(texts), texts)
        want, shown = attention(arrays, layer, head, n), {}
        for rect in root.iter(SVG + "rect"):
            title = rect.find(SVG + "title")
            if title is not None:
                row, column, weight = re.search(r"\((\d+)\) reads .* \((\d+)\): ([\d.]+)$", title.text, re.S).groups()
                shown[int(row), int(column)] = float(weight)
                check("where it stands", int(rect.get("x")) == int(column) * int(rect.get("width"))
                      and int(rect.get("y")) == int(row) * int(rect.get("height"))
                      and abs(float(rect.get("fill-opacity")) - float(weight)) < 1e-3, rect.attrib)
        check(f"layer {layer}, head {head}: weights", all(
            abs(shown.get((i, j), 0) - w) < (1e-4 if (i, j) in shown else 5e-3) for i, row in enumerate(want)
            for j, w in enumerate(row)) and all(j <= i for i, j in shown), sorted(shown.items())[:5])
    run("inspect", "-p", "a " * 200, "--picture", path)
    root = ET.parse(path).getroot()
    check("many tokens have no labels", len(list(root.iter(SVG + "text"))) == 1 and len(list(root.iter(SVG + "title"))) == 0)
    both = os.path.join(d, "both.npz")
    run("inspect", "-p", TEXT, "--picture", path, "--layer", "1", "--head", "3", "-o", both)
    with open(path, encoding="utf-8") as f:
        check("both at once", "layer 1, head 3" in f.read() and len(read_npz(both)) == 3)


def test_refusals(d):
    refused("nothing to write", run("inspect", "-p", "a"), 2, "-o", "--picture")
    refused("no text", run("inspect", "-o", "x.npz"), 2, "-p")
    refused("another form", run("inspect", "-p", "a", "-o", "x.txt"), 2, ".npz")
    refused("another picture", run("inspect", "-p", "a", "--picture", "x.png"), 2, ".svg")
    refused("a head of no picture", run("inspect", "-p", "a", "-o", "x.npz", "--head", "1"), 2, "--picture")
    refused("layer", run("inspect", "-p", "a", "-o", "x.npz", "--layer", "4"), 1, "--layer 4", "0 to 3")
    refused("head", run("inspect", "-p", "a", "--picture", "x.svg", "--head", "4"), 1, "--head 4", "0 to 3")
    refused("too long", run("inspect", "-p", "a " * 3000, "-o", d + "/x"), 2, ".npz")
    refused("too many tokens", run("inspect", "-p", "a " * 3000, "-o", d + "/x.npz"), 1, "room for 1024")
    refused("too many for a picture", run("inspect", "-p", "a " * 600, "--picture", d + "/y.svg"), 1, "room for 512")
    refused("nowhere", run("inspect", "-p", "a", "-o", "/nonexistent/x.npz"), 1, "/nonexistent")
    refused("nowhere for a picture", run("inspect", "-p", "a", "--picture", "/nonexistent/x.svg"), 1, "/nonexistent")
    refused("empty", run("inspect", "-p", "", "-o", "x.npz"), 1, "no tokens")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        test_picture(folder, *test_arrays(folder))
        test_refusals(folder)
    finish()
