#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Encoding and opening speed against PyPI `tokenizers`, one thread each, in one run.

    pip install tokenizers
    bench/tokenizer.py build/bench/bench-tokenizer --text prose.txt... -- tokenizer.json...

Ten megabytes of the texts, cut behind line breaks into pieces of about 64 KB, go through both; ids
must be equal. The library's figure is the better one of `encode` in a loop and `encode_batch_fast`
(which leaves offsets out), best of three.
"""
import argparse
import array
import json
import os
import pathlib
import struct
import subprocess
import tempfile
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"
from tokenizers import Tokenizer  # noqa: E402 (after the environment)

SIZE, PIECE = 10_000_000, 65536


def pieces(paths):
    data = b"".join(pathlib.Path(p).read_bytes() for p in paths)
    data = (data * (SIZE // len(data) + 1))[:SIZE]
    out, at = [], 0
    while at < len(data):
        end = data.find(b"\n", at + PIECE)
        end = len(data) if end < 0 else end + 1
        out.append(data[at:end].decode(errors="ignore"))
        at = end
    return out


def timed(f):
    start = time.perf_counter()
    result = f()
    return time.perf_counter() - start, result


def library(path, texts):
    load, t = timed(lambda: Tokenizer.from_file(path))
    best, ids = 1e9, None
    for _ in range(3):
        seconds, ids = timed(lambda: [t.encode(x, add_special_tokens=False).ids for x in texts])
        fast, _ = timed(lambda: t.encode_batch_fast(texts, add_special_tokens=False))
        best = min(best, seconds, fast)
    return load, best, [i for piece in ids for i in piece]


def ours(program, path, texts, directory):
    files = [f"{directory}/texts", f"{directory}/ids"]
    with open(files[0], "wb") as f:
        for text in texts:
            data = text.encode()
            f.write(struct.pack("<I", len(data)) + data)
    result = json.loads(subprocess.run([program, path, *files], check=True, stdout=subprocess.PIPE).stdout)
    ids = array.array("i", pathlib.Path(files[1]).read_bytes())
    return result["open"], result["encode"], ids.tolist()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--text", nargs="+", required=True)
    parser.add_argument("files", nargs="+")
    args = parser.parse_args()
    texts = pieces(args.text)
    size = sum(len(x.encode()) for x in texts) / 1e6
    print(f"{size:.1f} MB in {len(texts)} pieces, one thread")
    print(f"{'':44} {'open':>7} {'MB/s':>7}   library: {'open':>6} {'MB/s':>6} {'times':>6}")
    with tempfile.TemporaryDirectory() as directory:
        for path in args.files:
            a, b = ours(args.program, path, texts, directory), library(path, texts)
            same = "" if a[2] == b[2] else "   IDS DIFFER"
            print(f"{path[-44:]:44} {a[0]:7.3f} {size / a[1]:7.1f} {b[0]:15.3f} {size / b[1]:6.1f} {b[1] / a[1]:6.1f}{same}")


main()
