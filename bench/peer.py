#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times llama.cpp (PyPI's llama-cpp-python) on a GGUF file: prefill of a prompt (512 tokens), decoding of 64.

    python3 bench/peer.py MODEL.gguf THREADS REPEATS [PROMPT]       prints one JSON object
"""
import ctypes
import json
import statistics
import sys
import time

import llama_cpp as L


def main():
    path, threads, repeats = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    n = int(sys.argv[4]) if len(sys.argv) > 4 else 512
    L.llama_backend_init()
    L.llama_log_set(ctypes.cast(None, L.llama_log_callback), ctypes.c_void_p(0))
    model = L.llama_model_load_from_file(path.encode(), L.llama_model_default_params())
    params = L.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch = n + 128, n, 512
    params.n_threads = params.n_threads_batch = threads
    context = L.llama_init_from_model(model, params)
    prompt = (L.llama_token * n)(*[i * 7919 % 128256 for i in range(n)])
    prefill, decode = [], []
    for r in range(repeats + 1):
        count = n if r else min(n, 512)
        L.llama_memory_clear(L.llama_get_memory(context), True)
        t0 = time.perf_counter()
        assert L.llama_decode(context, L.llama_batch_get_one(prompt, count)) == 0
        L.llama_synchronize(context)
        t1 = time.perf_counter()
        one = (L.llama_token * 1)(1)
        assert L.llama_decode(context, L.llama_batch_get_one(one, 1)) == 0
        t2 = time.perf_counter()
        for _ in range(64):
            logits = L.llama_get_logits_ith(context, -1)
            one = (L.llama_token * 1)(int(abs(logits[0]) * 1000) % 128256)
            assert L.llama_decode(context, L.llama_batch_get_one(one, 1)) == 0
        L.llama_synchronize(context)
        if r:
            prefill.append(n / (t1 - t0))
            decode.append(64 / (time.perf_counter() - t2))
    print(json.dumps({"version": getattr(__import__("llama_cpp"), "__version__", "?"),
                      "prefill": round(statistics.median(prefill), 1),
                      "decode": round(statistics.median(decode), 2)}))


main()
