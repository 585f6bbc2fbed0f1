# SPDX-License-Identifier: Apache-2.0
"""Make tests/golden/quantized.safetensors: what MLX's quantize, quantized_matmul and gather_qmm give on a CPU.

    python3 tests/golden/make_quantized.py          (mlx[cpu] 0.32.4)

Every width and group in f32, one of each in f16 and bf16: NAME = b<bits>g<group>.<type>, with NAME.w [N, K] and MLX's
NAME.words, .scales, .biases; NAME.x [3, K] and NAME.y = x w^T; NAME.z [3, N] and NAME.u = z w. gather.*: three
matrices of experts, lhs and rhs indices. Groups are of one sign, all zero, constant, or have an outlier.
"""
import os

import mlx.core as mx
import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
TYPES = {"f32": mx.float32, "f16": mx.float16, "bf16": mx.bfloat16}


def matrix(rng, n, k, group):
    w = rng.standard_normal((n, k)).astype(np.float32)
    for i in range(n):
        for j, g in enumerate(range(0, k, group)):
            kind = (i + j) % 7
            part = w[i, g:g + group]
            if kind == 1:
                part[:] = np.abs(part)
            elif kind == 2:
                part[:] = -np.abs(part) - 1
            elif kind == 3:
                part[:] = 0
            elif kind == 4:
                part[:] = 0.37
            elif kind == 5:
                part[3] = 50
    return w


def main():
    mx.set_default_device(mx.cpu)
    rng, out = np.random.default_rng(11), {}
    for bits in (2, 3, 4, 5, 6, 8):
        for group in (32, 64, 128):
            for type_name, dtype in TYPES.items():
                if type_name != "f32" and group != 64:
                    continue
                name, n, k = f"b{bits}g{group}.{type_name}", 5, 2 * group
                w = mx.array(matrix(rng, n, k, group)).astype(dtype)
                words, scales, biases = mx.quantize(w, group_size=group, bits=bits)
                x = mx.array(rng.standard_normal((3, k)).astype(np.float32)).astype(dtype)
                z = mx.array(rng.standard_normal((3, n)).astype(np.float32)).astype(dtype)
                how = dict(group_size=group, bits=bits)
                out |= {f"{name}.w": w, f"{name}.words": words, f"{name}.scales": scales, f"{name}.biases": biases,
                        f"{name}.x": x, f"{name}.y": mx.quantized_matmul(x, words, scales, biases, True, **how),
                        f"{name}.z": z, f"{name}.u": mx.quantized_matmul(z, words, scales, biases, False, **how)}
    eye = mx.array(np.eye(64, dtype=np.float32))
    words, scales, biases = mx.quantize(eye, group_size=64, bits=4)
    out |= {"eye.words": words, "eye.scales": scales, "eye.biases": biases,
            "eye.y": mx.quantized_matmul(eye, words, scales, biases, True, group_size=64, bits=4)}
    experts = mx.array(np.stack([matrix(rng, 6, 64, 32) for _ in range(3)]))
    words, scales, biases = mx.quantize(experts, group_size=32, bits=4)
    x = mx.array(rng.standard_normal((4, 2, 64)).astype(np.float32))
    lhs, rhs = mx.array([[0, 3], [1, 1]], dtype=mx.uint32), mx.array([[2, 0], [1, 2]], dtype=mx.uint32)
    y = mx.gather_qmm(x, words, scales, biases, lhs, rhs, True, group_size=32, bits=4)
    out |= {"gather.words": words, "gather.scales": scales, "gather.biases": biases, "gather.x": x,
            "gather.lhs": lhs.astype(mx.int32), "gather.rhs": rhs.astype(mx.int32), "gather.y": y}
    mx.save_safetensors(os.path.join(HERE, "quantized.safetensors"), out)


if __name__ == "__main__":
    main()
