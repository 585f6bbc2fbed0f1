# SPDX-License-Identifier: Apache-2.0
"""Make tests/golden/forward/: what transformers makes of texts inside the tiny models of tests/golden.

    python3 tests/golden/make_forward.py

The reference is transformers on the CPU in f32 with eager attention. The models are those that make_llama.py and
make_families.py made; FAMILY-NAME.safetensors holds

    tokens              i32 [40]           random
    lengths             i32 [4]            texts are tokens[:n] of these n
    mean, last          f32 [4, hidden]    of hidden_states[-1] over a text's tokens, and at its last one
    q.<i>               f32 [H, 40, D]     of layer i over all tokens, as they go into the scores
    k.<i>               f32 [G, 40, D]     the same; as past_key_values have them, which is asserted
    attention.<i>.<h>   f32 [40, 40]       of layer i and head h (i modulo the heads), output_attentions
    labels              i32 [6]            three labels: tokens [0:1], [1:3] and [3:6] of these
    label_logprobs      f32 [4, 3]         log p of each label behind each text, from a whole run of both
"""
import os
import sys
import tempfile

os.environ["TORCHDYNAMO_DISABLE"] = "1"

import torch
import transformers
from safetensors.torch import save_file

from make_families import draw

HERE = os.path.dirname(os.path.abspath(__file__))
MODELS = ["llama/llama3-tied", "gemma2/plain", "gemma3/text", "qwen3/plain", "qwen3/yarn", "mistral/window",
          "smollm3/plain"]
N_TOKENS, LENGTHS, SPANS = 40, [1, 7, 33, 40], [(0, 1), (1, 3), (3, 6)]


def load(name):
    folder = os.path.join(HERE, name)
    options = dict(dtype=torch.float32, attn_implementation="eager")
    recipe = os.path.join(folder, "weights.txt")
    if not os.path.exists(recipe):
        return transformers.AutoModelForCausalLM.from_pretrained(folder, **options).eval()
    weights = {}
    with open(recipe, encoding="utf-8") as f:
        for line in f:
            key, seed, offset, scale, *shape = line.split()
            weights[key] = draw(key, int(seed), float(offset), float(scale), tuple(int(n) for n in shape))
    with tempfile.TemporaryDirectory() as made:
        with open(os.path.join(folder, "config.json"), "rb") as a, open(os.path.join(made, "config.json"), "wb") as b:
            b.write(a.read())
        save_file(weights, os.path.join(made, "model.safetensors"), metadata={"format": "pt"})
        return transformers.AutoModelForCausalLM.from_pretrained(made, **options).eval()


def run(model, ids):
    """(outputs, [(q, k) of each layer])"""
    module, seen = sys.modules[type(model).__module__], {}
    usual = module.eager_attention_forward

    def watch(attention, query, key, *args, **kw):
        seen[attention.layer_idx] = (query[0].clone(), key[0].clone())
        return usual(attention, query, key, *args, **kw)

    module.eager_attention_forward = watch
    with torch.no_grad():
        out = model(input_ids=ids[None], use_cache=True, output_attentions=True, output_hidden_states=True)
    module.eager_attention_forward = usual
    return out, [seen[i] for i in range(model.config.num_hidden_layers)]


def label_logprob(model, text, label):
    logits = run(model, torch.cat((text, label)))[0].logits[0].double().log_softmax(-1)
    return sum(logits[len(text) - 1 + i, token] for i, token in enumerate(label.tolist()))


def make(name, seed):
    model = load(name)
    g = torch.Generator().manual_seed(seed)
    vocab = model.config.vocab_size
    tokens = torch.randint(3, vocab - 1, (N_TOKENS,), generator=g)
    labels = torch.randint(3, vocab - 1, (SPANS[-1][1],), generator=g)
    golden = {"tokens": tokens.int(), "lengths": torch.tensor(LENGTHS).int(), "labels": labels.int()}
    states = [run(model, tokens[:n])[0].hidden_states[-1][0] for n in LENGTHS]
    golden["mean"] = torch.stack([s.double().mean(0).float() for s in states])
    golden["last"] = torch.stack([s[-1] for s in states])
    out, seen = run(model, tokens)
    for i, (q, k) in enumerate(seen):
        kept = out.past_key_values.layers[i].keys[0]
        assert torch.equal(kept, k[:, -kept.shape[1]:]), (name, i)
        golden[f"q.{i}"], golden[f"k.{i}"] = q.contiguous(), k.contiguous()
        head = i % q.shape[0]
        golden[f"attention.{i}.{head}"] = out.attentions[i][0, head].contiguous()
    golden["label_logprobs"] = torch.tensor([[label_logprob(model, tokens[:n], labels[a:b]) for a, b in SPANS]
                                             for n in LENGTHS]).float()
    save_file(golden, os.path.join(HERE, "forward", name.replace("/", "-") + ".safetensors"))
    print(name, {k: list(v.shape) for k, v in golden.items() if k in ("q.0", "k.0", "mean")}, flush=True)


def main():
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    os.makedirs(os.path.join(HERE, "forward"), exist_ok=True)
    for i, name in enumerate(MODELS):
        make(name, 7000 + i)


if __name__ == "__main__":
    main()
