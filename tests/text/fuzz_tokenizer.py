#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares random texts with PyPI `tokenizers`.

    fuzz_tokenizer.py PATH/TO/encode_stream [--texts 20000] [--seed 1] [--edge FILE...] tokenizer.json...

encode_stream is build/tests/encode_stream. Byte-level files are also tried with the patterns of
o200k and DeepSeek V3.

Texts mix the file's own added tokens, single code points of every plane, white space, runs,
contractions, pieces of the vocabulary and of the edge files, so that the seams between stages are hit. Prints the
first difference and its seed and exits with 1.
"""
import argparse
import json
import random
import struct
import subprocess
import sys
import tempfile

from tokenizers import Tokenizer
from make_tiny import DEEPSEEK, O200K, byte_level, sequence, split

SPACES = [" ", "  ", "\n", "\r\n", "\t", "\u0085", "\u00a0", "\u2003", "\u3000", "\u2028", "\u1680", "\u200b", "\u180e", "\x1c"]
SNIPPETS = ["'s", "'S", "'\u017f", "'ll", "'RE", "'", "don't", "123", "4567", "½", "٣", "Ⅷ", "!", "...", "--", "_", "(", "é",
            "e\u0301", "\u0301", "\u0323\u0307", "한", "\u1112\u1161\u11ab", "Å", "中文", "🦀", "👩‍👧", "\u0000", "\ufffd", "ａ"]


def random_char(rng):
    while True:
        top = rng.choice([0x7f, 0x24f, 0x7ff, 0x1fff, 0xffff, 0x1ffff, 0x10ffff])
        c = rng.randint(0, top)
        if not 0xD800 <= c < 0xE000:
            return chr(c)


def random_text(rng, pieces, added):
    parts = []
    for _ in range(rng.choice([1, 2, 3, 5, 8, 13, 40])):
        kind = rng.randrange(10)
        if kind < 2:
            parts.append(rng.choice(SPACES) * rng.choice([1, 1, 1, 2, 3]))
        elif kind < 4:
            parts.append(rng.choice(SNIPPETS))
        elif kind == 4:
            parts.append(random_char(rng))
        elif kind == 5:
            parts.append("".join(random_char(rng) for _ in range(rng.randint(1, 6))))
        elif kind == 6 and added:
            token = rng.choice(added)
            parts.append(token if rng.random() < 0.8 else token[:rng.randint(1, len(token))])
        elif kind == 7:
            parts.append(rng.choice("ab =1\n.é中") * rng.choice([2, 5, 30, 47, 48, 49, 60, 200]))
        else:
            parts.append(rng.choice(pieces))
    return "".join(parts)


def exchange(process, text):
    data = text.encode()
    process.stdin.write(struct.pack("<I", len(data)) + data)
    process.stdin.flush()
    out = []
    for _ in range(5):
        n, = struct.unpack("<I", process.stdout.read(4))
        out.append(process.stdout.read(n))
    ids = [list(struct.unpack(f"<{len(x) // 4}i", x)) for x in out[:3]]
    return ids + [out[3].decode(), out[4].decode()]


def expected(t, text):
    t.encode_special_tokens = False
    special, ids = t.encode(text).ids, t.encode(text, add_special_tokens=False).ids
    t.encode_special_tokens = True
    user = t.encode(text, add_special_tokens=False).ids
    return [special, ids, user, t.decode(ids, skip_special_tokens=False), t.decode(ids, skip_special_tokens=True)]


def fuzz(program, path, name, texts, seed, edge):
    t = Tokenizer.from_file(path)
    with open(path) as f:
        d = json.load(f)
    added = [x["content"] for x in d["added_tokens"]]
    joined = {"".join(m.split(" ") if isinstance(m, str) else m) for m in d["model"]["merges"]}
    merges_make_special = any(x["special"] and x["content"] in joined for x in d["added_tokens"])
    sample = random.Random(0).sample(range(t.get_vocab_size()), min(300, t.get_vocab_size()))
    pieces = [t.decode([i]) for i in sample] + edge
    process = subprocess.Popen([program, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    for n in range(seed * 1000003, seed * 1000003 + texts):
        text = random_text(random.Random(n), pieces, added)
        got, want = exchange(process, text), expected(t, text)
        if merges_make_special: # the library lets a user's text become one then; ours never does
            got[2] = want[2]
        if got != want:
            print(f"{name}: seed {n}: {text!r}")
            for part, a, b in zip(("special", "ids", "user", "decoded", "skipped"), got, want):
                if a != b:
                    print(f"  {part}: got {a!r}\n  expected {b!r}")
            sys.exit(1)
    process.stdin.close()
    process.wait()
    print(f"{name}: {texts} texts, no difference", flush=True)


def with_patterns(path, directory):
    """The file itself, and byte-level ones with other patterns."""
    yield path, path
    with open(path) as f:
        d = json.load(f)
    if "ByteLevel" not in json.dumps(d["pre_tokenizer"]):
        return
    for name, patterns in (("o200k", [O200K]), ("deepseek", DEEPSEEK)):
        d["pre_tokenizer"] = sequence(*[split(p) for p in patterns], byte_level())
        other = f"{directory}/{name}.json"
        with open(other, "w") as f:
            json.dump(d, f)
        yield other, f"{path} with {name}"


def edge_pieces(paths):
    out = []
    for path in paths:
        with open(path, encoding="utf-8", errors="ignore") as f:
            out += [line.rstrip("\n")[:200] for line in f][:2000]
    return out


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--texts", type=int, default=20000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--edge", nargs="*", default=[])
    parser.add_argument("files", nargs="+")
    args = parser.parse_args()
    edge = edge_pieces(args.edge)
    with tempfile.TemporaryDirectory() as directory:
        for path in args.files:
            for file, name in with_patterns(path, directory):
                fuzz(args.program, file, name, args.texts, args.seed, edge)


main()
