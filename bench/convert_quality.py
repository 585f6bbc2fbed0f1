#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a type of GGUF costs in perplexity: written by quern convert, and by llama.cpp (PyPI's llama-cpp-python).

    python3 bench/convert_quality.py QUERN MODEL.gguf TEXT DIRECTORY [--chunks N] [--blocks] [TYPE...]

MODEL is written in f32 into DIRECTORY; both programs make each type of that, and `quern eval` measures both
files, on one thread. A line a type: how many tensors have the same bytes, both perplexities, ours over theirs,
and the KL divergence of both from the f32 file. --blocks pads a llama's hidden size to whole blocks of 256 with
columns that are 0 and heads that give 0, which computes the same: else K-types stand for few of its matrices.
Needs gguf, numpy and llama-cpp-python.
"""
import argparse
import ctypes
import json
import os
import subprocess

import gguf
import llama_cpp as L
import numpy as np

TYPES = dict(f16=1, bf16=32, q8_0=7, q4_0=2, q4_1=3, q5_0=8, q5_1=9, q2_k=10, q3_k_s=11, q3_k_m=12, q3_k_l=13,
             q4_k_s=14, q4_k_m=15, q5_k_s=16, q5_k_m=17, q6_k=18, iq4_nl=25, iq4_xs=30, tq1_0=36, tq2_0=37)
BLOCK = 256


def padded(source, path):
    """The same llama with a hidden size of whole blocks: its norms divide by the larger size, so weight and eps shrink."""
    r = gguf.GGUFReader(source)
    value = {k: f.contents() for k, f in r.fields.items()}
    hidden, heads, kv = (value["llama." + k] for k in ("embedding_length", "attention.head_count",
                                                       "attention.head_count_kv"))
    head_dim, wide = hidden // heads, -(-hidden // BLOCK) * BLOCK
    share = hidden / wide
    new_heads = wide // head_dim
    changed = {"llama.embedding_length": wide, "llama.attention.head_count": new_heads,
               "llama.attention.head_count_kv": new_heads * kv // heads,
               "llama.attention.layer_norm_rms_epsilon": value["llama.attention.layer_norm_rms_epsilon"] * share}
    sizes = {hidden: wide, kv * head_dim: new_heads * kv // heads * head_dim}
    w = gguf.GGUFWriter(path, "llama")
    for key, field in r.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture":
            continue
        main, sub = field.types[0], field.types[-1] if len(field.types) > 1 else None
        w.add_key_value(key, changed.get(key, value[key]), main, sub_type=sub)
    for t in r.tensors:
        a = t.data
        to = [sizes.get(n, n) for n in a.shape]
        if t.name == "token_embd.weight":
            to[0] = a.shape[0]
        b = np.zeros(to, np.float32)
        b[tuple(slice(n) for n in a.shape)] = a * (share ** .5 if a.ndim == 1 else 1)
        w.add_tensor(t.name, b)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def quantize(source, path, number):
    params = L.llama_model_quantize_default_params()
    params.nthread, params.ftype = 1, number
    assert L.llama_model_quantize(source.encode(), path.encode(), ctypes.byref(params)) == 0


def same_tensors(a, b):
    x, y = ({t.name: t for t in gguf.GGUFReader(p).tensors} for p in (a, b))
    assert x.keys() == y.keys() and all(x[k].tensor_type == y[k].tensor_type for k in x)
    return sum(x[k].data.tobytes() == y[k].data.tobytes() for k in x), len(x)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("quern"), p.add_argument("model"), p.add_argument("text"), p.add_argument("directory")
    p.add_argument("--chunks", default="40"), p.add_argument("--blocks", action="store_true")
    p.add_argument("--against", action="store_true"), p.add_argument("types", nargs="*")
    a = p.parse_intermixed_args()
    L.llama_backend_init()
    silent = L.llama_log_callback(lambda *_: None)
    L.llama_log_set(silent, ctypes.c_void_p(0))
    base, ours, theirs = (os.path.join(a.directory, f"{n}{a.blocks:d}.gguf") for n in ("f32-", "ours-", "theirs-"))

    def run(*command):
        return subprocess.run([a.quern, *command], check=True, capture_output=True, text=True).stdout

    def measure(path):
        more = ["--against", base] if a.against else []
        return json.loads(run("eval", "-m", path, "-f", a.text, "--chunks", a.chunks, "-t", "1", "--products", "f32",
                              "--json", *more))

    if not os.path.exists(base):
        run("convert", "-m", a.model, "-o", base, "--type", "f32")
        if a.blocks:
            padded(base, base + ".tmp")
            os.replace(base + ".tmp", base)
    m = measure(base) if not a.types else None
    if m:
        print(f"f32      {m['tokens']} tokens scored: {m['perplexity']:.5f}", flush=True)
    for kind in a.types or TYPES:
        run("convert", "-m", base, "-o", ours, "--type", kind, "--force", "-t", "1")
        quantize(base, theirs, TYPES[kind])
        same, n = same_tensors(ours, theirs)
        mine = measure(ours)
        other = mine if same == n else measure(theirs)
        kl = "".join(f"  {m.get('kl', m.get('divergence', 0)):.6f}" for m in (mine, other)) if a.against else ""
        print(f"{kind:8} {same:4}/{n} same  ours {mine['perplexity']:.5f}  llama.cpp {other['perplexity']:.5f}  "
              f"ratio {mine['perplexity'] / other['perplexity']:.5f}{kl}", flush=True)


main()
