# SPDX-License-Identifier: Apache-2.0
"""Make tests/golden/recipes.txt: the types that llama.cpp gives the tensors of two models of zeros, by recipe.

    python3 tests/golden/make_recipes.py            (needs numpy, gguf and llama-cpp-python from PyPI)

A line "model layers heads kv_heads tied", then for each of its recipes a line "recipe" and for each matrix of
the first layer's names, with its columns, the types over the layers: one letter each, in the order of KEY.
"""
import os
import sys
import tempfile

import gguf
import llama_cpp
import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
RECIPES = dict(f16=1, bf16=32, q8_0=7, q4_0=2, q4_1=3, q5_0=8, q5_1=9, q2_k=10, q3_k_s=11, q3_k_m=12, q3_k_l=13,
               q4_k_s=14, q4_k_m=15, q5_k_s=16, q5_k_m=17, q6_k=18, iq4_nl=25, iq4_xs=30, tq1_0=36, tq2_0=37)
KEY = ["f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_nl", "iq4_xs",
       "tq1_0", "tq2_0"]
# layers, heads, heads of keys, width of a head, feed-forward, tied
MODELS = [(33, 8, 2, 32, 512, False), (9, 3, 3, 32, 256, True)]


def write_model(path, layers, heads, kv, head_dim, ffn, tied):
    w = gguf.GGUFWriter(path, "llama")
    hidden, vocab = heads * head_dim, 32
    w.add_block_count(layers)
    w.add_context_length(64)
    w.add_embedding_length(hidden)
    w.add_feed_forward_length(ffn)
    w.add_head_count(heads)
    w.add_head_count_kv(kv)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_rope_dimension_count(head_dim)
    w.add_vocab_size(vocab)
    w.add_tokenizer_model("no_vocab")
    shapes = {"attn_q": (hidden, hidden), "attn_k": (kv * head_dim, hidden), "attn_v": (kv * head_dim, hidden),
              "attn_output": (hidden, hidden), "ffn_gate": (ffn, hidden), "ffn_up": (ffn, hidden),
              "ffn_down": (hidden, ffn)}
    for name in ["token_embd"] + ([] if tied else ["output"]):
        w.add_tensor(name + ".weight", np.zeros((vocab, hidden), np.float32))
    for i in range(layers):
        for name, shape in shapes.items():
            w.add_tensor(f"blk.{i}.{name}.weight", np.zeros(shape, np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def main():
    out = []
    with tempfile.TemporaryDirectory() as directory:
        source, made = os.path.join(directory, "source.gguf"), os.path.join(directory, "made.gguf")
        for model in MODELS:
            write_model(source, *model)
            layers, heads, kv, _, _, tied = model
            out.append(f"model {layers} {heads} {kv} {int(tied)}")
            for recipe, number in RECIPES.items():
                p = llama_cpp.llama_model_quantize_default_params()
                p.ftype, p.nthread = number, 1
                if llama_cpp.llama_model_quantize(source.encode(), made.encode(), p):
                    sys.exit(f"{recipe}: llama.cpp refuses")
                types = {t.name: (t.tensor_type.name.lower(), int(t.shape[0])) for t in gguf.GGUFReader(made).tensors}
                out.append(f"recipe {recipe}")
                for name in sorted({n.replace("blk.0.", "blk.%d.") for n in types if not n.startswith("blk.") or n.startswith("blk.0.")}):
                    each = [types[name.replace("%d", str(i))] for i in range(layers if "%d" in name else 1)]
                    out.append(f"{name} {each[0][1]} " + "".join(chr(97 + KEY.index(t)) for t, _ in each))
    with open(os.path.join(HERE, "recipes.txt"), "w") as f:
        f.write("\n".join(out) + "\n")


if __name__ == "__main__":
    main()
