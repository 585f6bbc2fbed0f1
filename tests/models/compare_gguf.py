#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares Quern on a real GGUF model with transformers in f32 on the weights that PyPI's gguf decodes.

    tests/models/compare_gguf.py MODEL.gguf TEXT [--library build/libquern.so] [--tokens 500] [--prompts 20]
                                 [--greedy 64] [--peer] [--bits] [--golden OUT.json]

Prints, over the first tokens of TEXT: NMSE of the logits with --products f32; KL divergence (reference || ours, mean,
nats) and perplexity with the default products; whether greedy tokens behind prompts cut out of TEXT are equal.
--peer adds llama.cpp (llama-cpp-python) on the same file, with its KV cache in f16, its default, and in f32; --bits
checks that logits do not depend on threads and prefill chunks; --golden writes what tests/golden/real/ has, for
tests/generate/test_real.c. Nothing here reads Quern's own idea of the model: the configuration is made by hand from
the metadata, rows of queries and keys are put in Hugging Face's order, Gemma's norms lose their 1.

Needs torch, transformers, gguf, numpy; with --peer llama_cpp.
"""
import argparse
import ctypes as C
import json
import os
import sys
import time

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))


# ---- Quern, through its shared library --------------------------------------------------------------------------

class Error(C.Structure):
    _fields_ = [("code", C.c_int), ("message", C.c_char * 500)]


class DeviceOptions(C.Structure):
    _fields_ = [("size", C.c_size_t), ("threads", C.c_int), ("tier", C.c_char_p), ("memory_limit", C.c_size_t),
                ("log", C.c_void_p), ("log_user", C.c_void_p)]


class ModelOptions(C.Structure):
    _fields_ = [("size", C.c_size_t), ("progress", C.c_void_p), ("progress_user", C.c_void_p),
                ("no_tokenizer", C.c_bool), ("no_weights", C.c_bool), ("products", C.c_int)]


class SessionOptions(C.Structure):
    _fields_ = [("size", C.c_size_t), ("context", C.c_int64), ("prefill_chunk", C.c_int64), ("batch", C.c_int),
                ("cancel", C.c_void_p), ("progress", C.c_void_p), ("progress_user", C.c_void_p), ("rotate", C.c_bool),
                ("keep", C.c_int64)]


class Tokens(C.Structure):
    _fields_ = [("ids", C.POINTER(C.c_int32)), ("n", C.c_size_t), ("capacity", C.c_size_t)]


class Quern:
    """A model; `products` "auto" or "f32"."""

    def __init__(self, library, path, products="auto", threads=2, tier=None):
        self.lib, self.err = C.CDLL(library), Error()
        self.lib.qn_model_tokenizer.restype = C.c_void_p
        header = open(os.path.join(HERE, "../../include/quern/ops.h"), encoding="utf-8").read()
        kinds = [w.strip(" ,").split("=")[0].split("/*")[0].strip(" ,")
                 for w in header.split("typedef enum qn_products {")[1].split("}")[0].split("\n")
                 if w.strip().startswith("QN_")]
        self.device, self.model = C.c_void_p(), C.c_void_p()
        self.call("qn_device_open", C.byref(self.device), b"cpu",
                  C.byref(DeviceOptions(C.sizeof(DeviceOptions), threads, tier)))
        options = ModelOptions(C.sizeof(ModelOptions), None, None, False, False,
                               kinds.index("QN_PRODUCTS_" + products.upper()))
        self.call("qn_model_open", C.byref(self.model), self.device, path.encode(), C.byref(options))

    def call(self, name, *args):
        if getattr(self.lib, name)(*args, C.byref(self.err)):
            raise SystemExit(f"{name}: {self.err.message.decode()}")

    def session(self, chunk=0, batch=1, context=4096):
        session = C.c_void_p()
        self.call("qn_session_open", C.byref(session), self.model,
                  C.byref(SessionOptions(C.sizeof(SessionOptions), context, chunk, batch)))
        return session

    def encode(self, text):
        out, data = Tokens(), text.encode()
        self.call("qn_tokenizer_encode", C.c_void_p(self.lib.qn_model_tokenizer(self.model)), data,
                  C.c_size_t(len(data)), 1, C.byref(out))
        return out.ids[:out.n]

    def score(self, ids, vocab, chunk=0, batch=1):
        """Logits of every token, f32 [batch, n, vocab] without the batch where it is 1."""
        session = self.session(chunk, batch)
        out = np.empty((batch, len(ids), vocab), np.float32)
        array = np.tile(np.array(ids, np.int32), batch)
        self.call("qn_session_score", session, array.ctypes.data_as(C.c_void_p), C.c_size_t(len(ids)),
                  out.ctypes.data_as(C.c_void_p))
        self.lib.qn_session_close(session)
        return out[0] if batch == 1 else out

    def greedy(self, ids, n):
        session, next_id, out = self.session(), C.c_int32(), []
        array = np.array(ids, np.int32)
        if len(ids) > 1:
            self.call("qn_session_append", session, array.ctypes.data_as(C.c_void_p), C.c_size_t(len(ids) - 1))
        token = ids[-1]
        for _ in range(n):
            self.call("qn_session_step_greedy", session, C.c_int32(token), C.byref(next_id))
            out.append(token := next_id.value)
        self.lib.qn_session_close(session)
        return out

    def close(self):
        self.lib.qn_model_close(self.model)
        self.lib.qn_device_close(self.device)


# ---- transformers -----------------------------------------------------------------------------------------------

def hf_name(name):
    """Hugging Face's name of a tensor, without "model." and ".weight"."""
    for ours, theirs in (("token_embd", "embed_tokens"), ("output_norm", "norm"), ("output", "lm_head")):
        if name == ours + ".weight":
            return theirs
    _, layer, rest = name.split(".", 2)
    rest = rest[:-len(".weight")]
    return f"layers.{layer}." + {
        "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
        "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm", "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj", "post_attention_norm": "post_attention_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm"}[rest]


def build_reference(path):
    """The model in f32 on the decoded weights, eager attention."""
    import gguf
    import torch
    import transformers
    reader = gguf.GGUFReader(path)

    def value(key, default=None):
        field = reader.fields.get(key)
        return field.contents() if field else default
    arch = value("general.architecture")
    m = {k: value(f"{arch}.{k}") for k in (
        "block_count", "embedding_length", "feed_forward_length", "attention.head_count", "attention.head_count_kv",
        "attention.layer_norm_rms_epsilon", "rope.freq_base", "context_length", "attention.key_length",
        "attention.sliding_window")}
    tensors = {t.name: gguf.dequantize(t.data, t.tensor_type).astype(np.float32) for t in reader.tensors}
    heads, kv_heads, hidden = m["attention.head_count"], m["attention.head_count_kv"], m["embedding_length"]
    common = dict(
        vocab_size=tensors["token_embd.weight"].shape[0], hidden_size=hidden, num_hidden_layers=m["block_count"],
        intermediate_size=m["feed_forward_length"], num_attention_heads=heads, num_key_value_heads=kv_heads,
        head_dim=m["attention.key_length"] or hidden // heads, max_position_embeddings=m["context_length"],
        rms_norm_eps=m["attention.layer_norm_rms_epsilon"], tie_word_embeddings="output.weight" not in tensors,
        attn_implementation="eager")
    if arch == "llama":
        config = transformers.LlamaConfig(
            rope_parameters={"rope_type": "default", "rope_theta": m["rope.freq_base"]}, **common)
        model = transformers.LlamaForCausalLM(config)
    elif arch == "gemma3":
        config = transformers.Gemma3TextConfig(
            rope_parameters={
                "full_attention": {"rope_type": "default", "rope_theta": m["rope.freq_base"]},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}},
            query_pre_attn_scalar=256, sliding_window=m["attention.sliding_window"],
            layer_types=["full_attention" if i % 6 == 5 else "sliding_attention" for i in range(m["block_count"])],
            **common)
        model = transformers.Gemma3ForCausalLM(config)
    else:
        raise SystemExit(f"{path}: {arch} is not known here")
    state = {}
    for name, w in tensors.items():
        target = hf_name(name)
        if arch == "gemma3":
            if ".ffn_norm" in name:
                target = target.replace("post_attention_layernorm", "pre_feedforward_layernorm")
            if "norm" in name:
                w = w - np.float32(1)
        elif "attn_q" in name or "attn_k" in name:  # rotated in pairs: rows 0 2 4 ... 1 3 5 ... of each head
            n = heads if "attn_q" in name else kv_heads
            w = w.reshape(n, w.shape[0] // n // 2, 2, -1).swapaxes(1, 2).reshape(w.shape)
        state[("" if target == "lm_head" else "model.") + target + ".weight"] = torch.from_numpy(w.copy())
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
    model.tie_weights()
    model = model.float().eval()
    if os.environ.get("COMPARE_LOADER"):  # what transformers' own reader of GGUF makes of it
        other = transformers.AutoModelForCausalLM.from_pretrained(
            os.path.dirname(path), gguf_file=os.path.basename(path), dtype=torch.float32).state_dict()
        for name, w in model.state_dict().items():
            print(name, float((other[name] - w).abs().max()) if name in other else "absent")
    return model


def reference_logits(model, ids):
    import torch
    with torch.no_grad():
        return model(torch.tensor([ids]), use_cache=False).logits[0].float().numpy()


def reference_greedy(model, ids, n):
    import torch
    out = []
    with torch.no_grad():
        cache, x = None, torch.tensor([ids])
        for _ in range(n):
            y = model(x, past_key_values=cache, use_cache=True)
            cache = y.past_key_values
            out.append(int(y.logits[0, -1].argmax()))
            x = torch.tensor([[out[-1]]])
    return out


# ---- llama.cpp --------------------------------------------------------------------------------------------------

def peer_logits(path, ids, vocab, f32_cache):
    import llama_cpp as L
    sys.stderr.flush()
    saved, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)  # it says much
    kv = {"type_k": L.GGML_TYPE_F32, "type_v": L.GGML_TYPE_F32} if f32_cache else {}
    model = L.Llama(model_path=path, n_ctx=max(512, len(ids)), n_batch=512, logits_all=True, n_threads=2,
                    n_threads_batch=2, verbose=False, **kv)
    model.eval(ids)
    out = np.array(model.scores[:len(ids), :vocab], np.float32)
    model.close()
    os.dup2(saved, 2)
    return out


# ---- measures ---------------------------------------------------------------------------------------------------

def log_softmax(row):
    row = row.astype(np.float64)
    row -= row.max()
    return row - np.log(np.exp(row).sum())


def nmse(want, got):
    num = den = 0.0
    for a, b in zip(want, got):
        num += float(((b.astype(np.float64) - a) ** 2).sum())
        den += float((a.astype(np.float64) ** 2).sum())
    return num / den


def judge(want, got, ids):
    """Mean and largest KL, agreement of the most probable token, perplexity of what follows."""
    kl, same, loss = [], 0, 0.0
    for i, (a, b) in enumerate(zip(want, got)):
        p, q = log_softmax(a), log_softmax(b)
        kl.append(float((np.exp(p) * (p - q)).sum()))
        same += int(a.argmax() == b.argmax())
        if i + 1 < len(ids):
            loss -= q[ids[i + 1]]
    return {"kl": float(np.mean(kl)), "kl_max": float(np.max(kl)), "same_top": same / len(kl),
            "perplexity": float(np.exp(loss / (len(ids) - 1))), "nmse": nmse(want, got)}


def show(name, j):
    print(f"{name:28} NMSE {j['nmse']:.2e}  KL {j['kl']:.3e} (largest {j['kl_max']:.2e})  "
          f"top {100 * j['same_top']:.1f} %  perplexity {j['perplexity']:.4f}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("text")
    parser.add_argument("--library", default=os.path.join(HERE, "../../build/libquern.so"))
    parser.add_argument("--tokens", type=int, default=500)
    parser.add_argument("--prompts", type=int, default=20)
    parser.add_argument("--greedy", type=int, default=64)
    parser.add_argument("--at", type=int, default=20000, help="where in the text to begin")
    parser.add_argument("--peer", action="store_true")
    parser.add_argument("--bits", action="store_true")
    parser.add_argument("--golden")
    args = parser.parse_args()
    text = open(args.text, encoding="utf-8").read()
    model = build_reference(args.model)
    vocab = model.config.vocab_size
    exact = Quern(args.library, args.model, "f32")
    ids = exact.encode(text[args.at:args.at + 12 * args.tokens])[:args.tokens]
    begun = time.time()
    want = reference_logits(model, ids)
    print(f"{args.model}: {len(ids)} tokens, transformers {time.time() - begun:.1f} s", flush=True)
    ours = exact.score(ids, vocab)
    show("transformers f32", judge(want, want, ids))
    show("quern, f32 products", judge(want, ours, ids))
    if args.bits:
        bits(args, exact, ids, vocab, ours, "f32")
    default = Quern(args.library, args.model)
    ours = default.score(ids, vocab)
    show("quern, default products", judge(want, ours, ids))
    if args.bits:
        bits(args, default, ids, vocab, ours, "auto")
    if args.peer:
        show("llama.cpp, KV f16", judge(want, peer_logits(args.model, ids, vocab, False), ids))
        show("llama.cpp, KV f32", judge(want, peer_logits(args.model, ids, vocab, True), ids))
    golden = {"model": os.path.basename(args.model), "prompts": []}
    equal = equal_default = 0
    for i in range(args.prompts):
        start = 5000 + i * 4999
        prompt = exact.encode(text[start:start + 150])[:24 + i % 5]
        expected = reference_greedy(model, prompt, args.greedy)
        got, quick = exact.greedy(prompt, args.greedy), default.greedy(prompt, args.greedy)
        equal += got == expected
        equal_default += quick == expected
        if got != expected:
            at = next(k for k in range(args.greedy) if got[k] != expected[k])
            row = np.sort(reference_logits(model, prompt + expected[:at])[-1])
            print(f"prompt {i}: differs at {at}; the two best logits are {row[-1] - row[-2]:.2e} apart", flush=True)
        row = reference_logits(model, prompt)[-1]  # of the first new token
        top = np.argsort(-row)[:4]
        golden["prompts"].append({"ids": prompt, "greedy": expected[:16], "logits": [
            [int(t), float(row[t])] for t in top], "log_sum_exp": float(row[0] - log_softmax(row)[0])})
    if args.prompts:
        print(f"greedy, {args.greedy} tokens: equal on {equal} of {args.prompts} prompts with f32 products, "
              f"{equal_default} with the default ones", flush=True)
    if args.golden:
        with open(args.golden, "w", encoding="utf-8") as f:
            f.write(json.dumps(golden, separators=(",", ":")).replace('{"ids"', '\n{"ids"') + "\n")


def bits(args, model, ids, vocab, want, products):
    ids, want = ids[:200], want[:200]
    other = Quern(args.library, args.model, products, threads=1)
    same = {"1 thread": np.array_equal(other.score(ids, vocab), want)}
    other.close()
    for chunk in (1, 7, 64):
        same[f"chunk {chunk}"] = np.array_equal(model.score(ids, vocab, chunk=chunk), want)
    both = model.score(ids[:60], vocab, batch=3)
    same["batch 3"] = all(np.array_equal(row, want[:60]) for row in both)
    print("  bits: " + ", ".join(f"{k} {'same' if v else 'DIFFER'}" for k, v in same.items()), flush=True)


if __name__ == "__main__":
    main()
