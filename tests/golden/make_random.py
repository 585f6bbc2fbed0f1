#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""make_random.py > ops/random.txt: what JAX (0.5 or later, threefry_partitionable) draws, for tests/ops/test_random.c.

A line is NAME TYPE SEED, a number of integers and those, a number of values and those. Floats are written
as hexadecimal.
"""
import os

os.environ["JAX_ENABLE_X64"] = "1"
os.environ["JAX_PLATFORMS"] = "cpu"
import jax
import jax.numpy as jnp
import numpy as np
from jax import random

assert jax.config.jax_threefry_partitionable
TYPES = {"u8": jnp.uint8, "u16": jnp.uint16, "u32": jnp.uint32, "u64": jnp.uint64, "i8": jnp.int8, "i16": jnp.int16,
         "i32": jnp.int32, "i64": jnp.int64, "f16": jnp.float16, "bf16": jnp.bfloat16, "f32": jnp.float32,
         "f64": jnp.float64}
SEEDS = (0, 42, 0x123456789ABCDEF0 & (2**63 - 1))


def line(name, t, seed, par, a):
    a = np.asarray(a)
    real = a.dtype.kind not in "iub"
    flat = [float(v).hex() if real else str(int(v)) for v in a.reshape(-1)]
    print(name, t, seed, len(par), *par, len(flat), *flat)


for seed in SEEDS:
    key = random.key_data(random.key(seed))
    k = random.key(seed)
    line("key", "u32", seed, (), key)
    for n in (1, 2, 5):
        line("split", "u32", seed, (n,), random.key_data(random.split(k, n)))
    for number in (0, 7, 2**31 + 5):
        line("fold_in", "u32", seed, (number,), random.key_data(random.fold_in(k, number)))
    for t in ("u8", "u16", "u32", "u64"):
        line("bits", t, seed, (3, 5), random.bits(k, (3, 5), TYPES[t]))
    for t in ("f16", "bf16", "f32", "f64"):
        for low, high in ((0, 1), (-2, 3)):
            line("uniform", t, seed, (low, high, 3, 7), random.uniform(k, (3, 7), TYPES[t], low, high))
        line("normal", t, seed, (4, 9), random.normal(k, (4, 9), TYPES[t]))
    for t, low, high in (("i32", -5, 17), ("u8", 3, 200), ("i64", -2**40, 2**41), ("u32", 0, 2**31 + 9), ("i16", -3, -2),
                         ("i8", -128, 128), ("u64", 1, 2**63 - 1)):
        line("integers", t, seed, (low, high, 2, 9), random.randint(k, (2, 9), low, high, TYPES[t]))
    p = jnp.linspace(0, 1, 12, dtype=jnp.float32)
    line("bernoulli", "f32", seed, (12,), random.bernoulli(k, p, (12,)))
    for t in ("f32", "f64"):
        logits = jnp.asarray(np.arange(4 * 11).reshape(4, 11) % 7, TYPES[t]) / 2
        line("categorical", t, seed, (4, 11), random.categorical(k, logits, axis=-1))
    for n in (1, 9, 2000):
        line("permutation", "i32", seed, (n,), random.permutation(k, n))
x = jnp.concatenate([jnp.linspace(-1, 1, 41, dtype=jnp.float64), jnp.asarray([0.999999, -0.99999999, 1e-9, 3e-20])])
line("erfinv", "f64", 0, (), np.stack([x, jax.scipy.special.erfinv(x)]))
