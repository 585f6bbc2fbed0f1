#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""make_encodings.py: encoded blocks and their values, into encodings/, for tests/quant/test_encodings.c.

    pip install numpy gguf==0.19.0 "mlx[cpu]==0.32.4" llama-cpp-python==0.3.36

NAME.bin: a number of blocks (u32), the blocks, their values (f32). Some blocks are random bytes with finite
scales, the rest is what llama.cpp makes of weights; values are those of gguf's numpy (i2_s: read here, by bits).
weights.bin: rows of 256 values (f32); NAME.enc: what gguf's numpy makes of them, or, where it has no encoder, what
llama.cpp does.
affine-TYPE.bin: 10 rows of 128 values in TYPE, then for each width of QN__AFFINE_WIDTHS the groups that mx.quantize
makes of them: codes, scale, bias. affine-values.bin: what mx.dequantize makes of the f32 groups of 32.
mxfp4-mlx.bin: groups of 32 values, in f32, as bf16 and as f16 holds them; behind each the scales and the words that
mx.quantize makes of them in mode mxfp4.
"""
import ctypes
import pathlib

import gguf
import llama_cpp
import mlx.core as mx
import numpy as np
from gguf import GGMLQuantizationType as T

mx.set_default_device(mx.cpu)
OUT = pathlib.Path(__file__).resolve().parent / "encodings"
# name: where its f16 scales are
SCALES = {"f32": (), "f16": (0,), "bf16": (), "q4_0": (0,), "q4_1": (0, 2), "q5_0": (0,), "q5_1": (0, 2), "q8_0": (0,),
          "q2_k": (80, 82), "q3_k": (108,), "q4_k": (0, 2), "q5_k": (0, 2), "q6_k": (208,), "iq4_nl": (0,),
          "iq4_xs": (0,), "tq1_0": (52,), "tq2_0": (64,), "mxfp4": ()}
EXACT = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "tq1_0", "tq2_0")
SEARCHED = ("q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_nl", "iq4_xs", "mxfp4")
WIDTHS = [(bits, group) for bits in (2, 3, 4, 5, 6, 8) for group in (32, 64, 128)]
rng = np.random.default_rng(9)


def weights(columns):
    """Ten rows, each difficult in its way."""
    x = rng.normal(0, 0.02, (10, columns)).astype(np.float32)
    x[1] = rng.standard_t(3, columns) * 0.02
    x[2] = abs(x[2]) + 0.01  # one sign
    x[3] = -abs(x[3])
    x[4] = 0
    x[4, ::7] = x[0, ::7]
    x[4, :64] = 0  # groups of zeros, and zeros among others
    x[5, 5] = 3.0  # an outlier
    x[6] = rng.integers(-1, 2, columns) * np.float32(0.37)
    x[7] = np.arange(columns) % 17 / 16 - 0.5  # ties between codes
    x[8] = -0.25
    x[8, columns // 2:] = 0.25  # constants
    x[9] *= 1e-4
    return x


def with_llama_cpp(name, x):
    """What llama.cpp makes of rows."""
    quantize = ctypes.CDLL(str(pathlib.Path(llama_cpp.__file__).parent / "lib/libggml-base.so")).ggml_quantize_chunk
    quantize.restype = ctypes.c_size_t
    elements, size = gguf.GGML_QUANT_SIZES[T[name.upper()]]
    y = np.zeros(x.size // elements * size, np.uint8)
    quantize(ctypes.c_int(T[name.upper()]), x.ctypes.data_as(ctypes.c_void_p), y.ctypes.data_as(ctypes.c_void_p),
             ctypes.c_int64(0), ctypes.c_int64(x.shape[0]), ctypes.c_int64(x.shape[1]), None)
    return y.reshape(-1, size)


def random_blocks(n, size, scales):
    b = rng.integers(0, 256, (n, size), dtype=np.uint8)
    for at in scales:
        b[:, at:at + 2] = rng.normal(0, 0.1, n).astype(np.float16).view(np.uint8).reshape(n, 2)
    return b


def write(name, *parts):
    (OUT / name).write_bytes(b"".join(np.ascontiguousarray(p).tobytes() for p in parts))


def decoded():
    for name, scales in SCALES.items():
        type = T[name.upper()]
        elements, size = gguf.GGML_QUANT_SIZES[type]
        if elements == 1:
            b = (rng.normal(0, 1, 200) * 10.0 ** rng.integers(-7, 4, 200)).astype(np.float32)
            b = gguf.quants.quantize(b, type).view(np.uint8).reshape(-1, size)
        else:
            b = random_blocks(768 // elements, size, scales)
            if name == "mxfp4":
                b[:, 0] = np.arange(len(b)) * 10  # 255 would be a NaN
            b = np.concatenate([b, with_llama_cpp(name, weights(256)[[0, 5]])])
        v = gguf.quants.dequantize(b, type)
        assert np.isfinite(v).all()
        write(name + ".bin", np.uint32(len(b)), b, v.astype(np.float32))
    b = rng.integers(0, 256, (6, 32), dtype=np.uint8)
    v = np.array([[(int(row[i % 32]) >> (6 - 2 * (i // 32)) & 3) - 1 for i in range(128)] for row in b], np.float32)
    write("i2_s.bin", np.uint32(len(b)), b, v)


def encoded():
    x = weights(256)
    write("weights.bin", x)
    for name in EXACT:
        write(name + ".enc", gguf.quants.quantize(x, T[name.upper()]))
    for name in SEARCHED:
        write(name + ".enc", with_llama_cpp(name, x))


def affine():
    x = weights(128)
    values = []
    for name, type in (("f32", mx.float32), ("f16", mx.float16), ("bf16", mx.bfloat16)):
        a = mx.array(x).astype(type)
        raw = a if type == mx.float32 else a.view(mx.uint16)
        parts = [np.array(raw)]
        for bits, group in WIDTHS:
            codes, scale, bias = mx.quantize(a, group_size=group, bits=bits)
            if type == mx.float32 and group == 32:
                values.append(np.array(mx.dequantize(codes, scale, bias, group_size=group, bits=bits)))
            n = a.size // group
            fields = [np.array(codes).view(np.uint8).reshape(n, -1)]
            for s in (scale, bias):
                s = s if type == mx.float32 else s.view(mx.uint16)
                fields.append(np.array(s).reshape(n, 1).view(np.uint8))
            parts.append(np.concatenate(fields, axis=1))
        write(f"affine-{name}.bin", *parts)
    write("affine-values.bin", *values)


def mxfp4():
    """Rows in f32, in bf16 and in f16: groups of every kind and size, and maxima around 6 times a power of two."""
    x = np.concatenate([weights(256).reshape(-1, 32), rng.normal(0, 1, (60, 32)) * 10.0 ** rng.uniform(-30, 30, (60, 1))])
    near = np.zeros((120, 32))
    for i, n in enumerate(np.repeat(np.arange(-100, 100, 20), 12)):
        near[i] = rng.uniform(-1, 1, 32) * 2.0 ** n
        near[i, i % 32] = np.float32(6 * 2.0 ** n) * (1 + (i % 12 - 4) * 2.0 ** (-23 if i % 2 else -8))
    ties = rng.integers(-24, 25, (20, 32)) / 4  # codes in the middle
    rows = mx.array(np.concatenate([x, near, ties]).astype(np.float32))
    parts = []
    small = np.clip(np.concatenate([x[:80], near, ties]), -1e3, 1e3) * 2.0 ** rng.uniform(-14, 0, (220, 1))
    small[:48, 5] = 6.00390625 * 2.0 ** -np.arange(4, 20).repeat(3)  # a sixth has few bits
    small[:48] = np.clip(small[:48], -small[:48, 5:6], small[:48, 5:6])
    for a in (rows, rows.astype(mx.bfloat16), mx.array(small.astype(np.float32)).astype(mx.float16)):
        codes, scale = mx.quantize(a, group_size=32, bits=4, mode="mxfp4")
        parts += [np.array(a.astype(mx.float32)), np.array(scale).reshape(-1), np.array(codes)]
    write("mxfp4-mlx.bin", *parts)


if __name__ == "__main__":
    OUT.mkdir(exist_ok=True)
    decoded()
    encoded()
    affine()
    mxfp4()
