# SPDX-License-Identifier: Apache-2.0
"""Train the demo model from nothing: tokenizer, chats, weights, measurements.

    python3 models/demo/train.py --out DIR --minutes 5

Worker processes write chats from grammar.py without end; the trainer keeps the latest few million
on the device and draws batches from them. Every chat is one padded sequence from position 0, as at
inference, and the loss is on reply tokens alone (their end token included). The learning rate
follows a cosine in elapsed time, so the run ends on time on any machine. The weights are then
rounded to bf16, written as an ordinary Hugging Face directory, read back and measured against the
exact entropy of the grammar. Exit status 1 if the model misses its bar.

Needs torch, tokenizers and safetensors; with transformers it also compares logits with
LlamaForCausalLM and the chat template with the training format.
"""
import argparse
import json
import math
import multiprocessing as mp
import os
import queue
import random
import sys
import time

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import grammar  # noqa: E402

SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
PAD, START, END = range(3)
VOCAB, MAX_LEN, LONGEST = 2048, 1024, 1016
SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
         r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
CHAT_TEMPLATE = ("{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + "
                 "message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
                 "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": VOCAB,
    "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "hidden_act": "silu",
    "max_position_embeddings": MAX_LEN, "rope_theta": 10000.0, "rope_scaling": None,
    "rms_norm_eps": 1e-5, "attention_bias": False, "mlp_bias": False, "attention_dropout": 0.0,
    "tie_word_embeddings": True, "initializer_range": 0.02, "bos_token_id": None,
    "eos_token_id": END, "pad_token_id": PAD, "use_cache": True, "torch_dtype": "bfloat16",
}

# ---------------------------------------------------------------------------------------------
# Tokenizer and chats


def render(turns):
    """ChatML text of [(prompt, reply), ..]; a None reply leaves the generation prompt open."""
    text = ""
    for prompt, reply in turns:
        text += "<|im_start|>user\n" + prompt + "<|im_end|>\n<|im_start|>assistant\n"
        if reply is not None:
            text += reply + "<|im_end|>\n"
    return text


def build_tokenizer(out, n_turns):
    from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers,
                            processors, trainers)
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tok.decoder = decoders.ByteLevel()
    tok.post_processor = processors.ByteLevel(trim_offsets=False)
    rng = random.Random("tokenizer")
    lines = ["user\n", "assistant\n", "system\n"] * n_turns
    for _ in range(n_turns):
        lines.extend(grammar.write_pair(rng))
    # Nouns are what must be copied exactly, so weigh them up until each is close to one token.
    for noun in grammar.NOUNS:
        lines.extend([" " + noun] * (n_turns // 25))
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB, special_tokens=[AddedToken(s, special=True) for s in SPECIALS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tok.train_from_iterator(lines, trainer)
    assert tok.get_vocab_size() == VOCAB, tok.get_vocab_size()
    assert [tok.token_to_id(s) for s in SPECIALS] == [PAD, START, END]
    every_byte = "".join(map(chr, range(0x250))) + "\u20ac\U0001f98a\ud7ff"
    assert tok.decode(tok.encode(every_byte).ids, skip_special_tokens=False) == every_byte
    tok.save(os.path.join(out, "tokenizer.json"))
    return tok


def load_tokenizer(out):
    from tokenizers import Tokenizer
    return Tokenizer.from_file(os.path.join(out, "tokenizer.json"))


def mark_replies(ids, header):
    """Token ids with reply tokens as -id - 1: what follows each assistant header up to its end."""
    marked, i, n = [], 0, len(header)
    while i < len(ids):
        if ids[i:i + n] == header:
            marked += header
            i += n
            while i < len(ids):
                marked.append(-ids[i] - 1)
                i += 1
                if ids[i - 1] == END:
                    break
        else:
            marked.append(ids[i])
            i += 1
    return marked


def worker(out, name, seed, n_single, n_multi, len_single, q, stop):
    """Fill the queue with (is_multi, int16 array [n, length]) until told to stop."""
    import numpy as np
    tok = load_tokenizer(out)
    header = tok.encode("<|im_start|>assistant\n").ids
    rng = random.Random(f"train-{seed}-{name}")

    def pack(chats, length):
        rows = np.full((len(chats), length), PAD, np.int16)
        n = 0
        for e in tok.encode_batch([render(c) for c in chats]):
            if len(e.ids) <= length:
                rows[n, :len(e.ids)] = mark_replies(e.ids, header)
                n += 1
        return rows[:n]

    def conversation():
        """Two to eight exchanges, cut so that nearly all fit."""
        turns, size = [], 0
        for _ in range(rng.randint(2, 8)):
            turn = grammar.write_turn(rng)
            size += len(turn[0]) + len(turn[1]) + 60
            if size > 4 * LONGEST:
                break
            turns.append(turn)
        return turns

    while not stop.is_set():
        shards = [(False, pack([[grammar.write_turn(rng)] for _ in range(n_single)], len_single)),
                  (True, pack([conversation() for _ in range(n_multi)], MAX_LEN))]
        for shard in shards:
            while not stop.is_set():
                try:
                    q.put(shard, timeout=0.5)
                    break
                except queue.Full:
                    pass
    q.cancel_join_thread()


class Pool:
    """The latest chats of one length, on the device; a ring once full."""

    def __init__(self, torch, capacity, length, device):
        self.torch, self.n, self.at = torch, 0, 0
        self.rows = torch.zeros((capacity, length), dtype=torch.int16, device=device)
        self.seen = 0

    def add(self, array):
        rows = self.torch.from_numpy(array).to(self.rows.device)
        k = min(len(rows), len(self.rows) - self.at)
        self.rows[self.at:self.at + k] = rows[:k]
        self.at = (self.at + k) % len(self.rows)
        self.n = max(self.n, min(len(self.rows), self.n + k))
        self.seen += k

    def batch(self, size):
        pick = self.torch.randint(self.n, (size,), device=self.rows.device)
        rows = self.rows[pick].long()
        reply = rows < 0
        return self.torch.where(reply, -rows - 1, rows), reply


# ---------------------------------------------------------------------------------------------
# The model, with Hugging Face's parameter names


def build_model(torch):
    nn, F, c = torch.nn, torch.nn.functional, CONFIG
    heads, kv, hd, hidden = (c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"],
                             c["hidden_size"])

    class Norm(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(hidden))

        def forward(self, x):
            x = x.float()
            return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) +
                                                  c["rms_norm_eps"]))

    def linear(k, n, std=c["initializer_range"]):
        m = nn.Linear(k, n, bias=False)
        nn.init.normal_(m.weight, std=std)
        return m

    deep = c["initializer_range"] / math.sqrt(2 * c["num_hidden_layers"])

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.q_proj, self.k_proj = linear(hidden, heads * hd), linear(hidden, kv * hd)
            self.v_proj, self.o_proj = linear(hidden, kv * hd), linear(heads * hd, hidden, deep)

        def forward(self, x, cos, sin):
            B, L, _ = x.shape
            q, k, v = (p(x).view(B, L, -1, hd).transpose(1, 2)
                       for p in (self.q_proj, self.k_proj, self.v_proj))

            def rope(t):
                a, b = t.chunk(2, -1)
                return (t * cos + torch.cat((-b, a), -1) * sin).to(v.dtype)
            k, v = (t.repeat_interleave(heads // kv, 1) for t in (rope(k), v))
            y = F.scaled_dot_product_attention(rope(q), k, v, is_causal=True)
            return self.o_proj(y.transpose(1, 2).reshape(B, L, -1))

    class MLP(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate_proj = linear(hidden, c["intermediate_size"])
            self.up_proj = linear(hidden, c["intermediate_size"])
            self.down_proj = linear(c["intermediate_size"], hidden, deep)

        def forward(self, x):
            return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.input_layernorm, self.post_attention_layernorm = Norm(), Norm()
            self.self_attn, self.mlp = Attention(), MLP()

        def forward(self, x, cos, sin):
            x = x + self.self_attn(self.input_layernorm(x), cos, sin)
            return x + self.mlp(self.post_attention_layernorm(x))

    class Body(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed_tokens = nn.Embedding(c["vocab_size"], hidden)
            nn.init.normal_(self.embed_tokens.weight, std=c["initializer_range"])
            self.layers = nn.ModuleList(Layer() for _ in range(c["num_hidden_layers"]))
            self.norm = Norm()

    class Llama(nn.Module):
        """ids [B, L] -> logits [B, L, V]"""

        def __init__(self):
            super().__init__()
            self.model = Body()
            freq = c["rope_theta"] ** (-torch.arange(0, hd, 2).float() / hd)
            angle = torch.outer(torch.arange(MAX_LEN).float(), freq).repeat(1, 2)
            self.register_buffer("cos", angle.cos(), persistent=False)
            self.register_buffer("sin", angle.sin(), persistent=False)

        def forward(self, ids):
            x = self.model.embed_tokens(ids)
            cos, sin = self.cos[:ids.shape[1]], self.sin[:ids.shape[1]]
            for layer in self.model.layers:
                x = layer(x, cos, sin)
            return F.linear(self.model.norm(x), self.model.embed_tokens.weight)

    return Llama()


def reply_loss(torch, logits, ids, reply, reduction="mean"):
    """Cross-entropy of reply tokens given everything before them."""
    target = torch.where(reply, ids, -100)[:, 1:]
    return torch.nn.functional.cross_entropy(
        logits[:, :-1].float().flatten(0, 1), target.flatten(), ignore_index=-100,
        reduction=reduction)


# ---------------------------------------------------------------------------------------------
# Training


def train(torch, args, out, tok):
    dev = torch.device(args.device)
    cuda = dev.type == "cuda"
    rng = random.Random("length")
    longest = max(len(e.ids) for e in tok.encode_batch(
        [render([grammar.write_turn(rng)]) for _ in range(args.probe)]))
    len_single = -(-(longest + 4) // 8) * 8
    ctx = mp.get_context("spawn")
    q, stop = ctx.Queue(4 * args.workers), ctx.Event()
    n_single, n_multi = (4096, 512) if cuda else (128, 8)
    procs = [ctx.Process(target=worker, daemon=True,
                         args=(out, i, args.seed, n_single, n_multi, len_single, q, stop))
             for i in range(args.workers)]
    for p in procs:
        p.start()
    single = Pool(torch, 6_000_000 if cuda else 20_000, len_single, dev)
    multi = Pool(torch, 600_000 if cuda else 1_000, MAX_LEN, dev)

    def drain(wait):
        need = args.workers if wait else 0
        taken = 0
        while taken < need or taken < 8:
            try:
                is_multi, rows = q.get(timeout=300) if taken < need else q.get_nowait()
            except queue.Empty:
                if taken < need:
                    raise RuntimeError("the data workers delivered nothing in 300 s") from None
                return
            (multi if is_multi else single).add(rows)
            taken += 1

    try:
        t0 = time.time()
        while not (single.n and multi.n):
            drain(True)
        print(f"single chats up to {len_single} tokens; first data after {time.time() - t0:.1f} s",
              flush=True)
        model = fit(torch, args, dev, single, multi, drain)
    finally:
        stop.set()
        for p in procs:
            p.join(3)
            if p.is_alive():
                p.terminate()
    print(f"chats written: {single.seen} single, {multi.seen} of several turns")
    return model


def fit(torch, args, dev, single, multi, drain):
    cuda = dev.type == "cuda"
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    model = build_model(torch).to(dev)
    decay = [p for p in model.parameters() if p.ndim == 2]
    plain = [p for p in model.parameters() if p.ndim != 2]
    opt = torch.optim.AdamW([{"params": decay, "weight_decay": 0.05},
                             {"params": plain, "weight_decay": 0.0}],
                            lr=args.lr, betas=(0.9, 0.98), eps=1e-9, fused=cuda)

    def loss_of(ids, reply):
        with torch.autocast(dev.type, torch.bfloat16, enabled=cuda):
            logits = model(ids)
        return reply_loss(torch, logits, ids, reply)

    step_loss = loss_of
    n_single, n_multi = args.batch, max(1, args.batch // 8)
    if cuda and not args.no_compile:
        try:
            t0 = time.time()
            compiled = torch.compile(loss_of, dynamic=False)
            for pool, n in ((single, n_single), (multi, n_multi)):
                compiled(*pool.batch(n)).backward()
                opt.zero_grad(set_to_none=True)
            torch.cuda.synchronize()
            step_loss = compiled
            print(f"compiled in {time.time() - t0:.1f} s", flush=True)
        except Exception as e:  # any failure of the compiler leaves the plain model
            print(f"torch.compile is unavailable ({type(e).__name__}: {str(e)[:200]})", flush=True)

    total, start, step, shown = args.minutes * 60, time.time(), 0, 0.0
    average, weight, choose = 0.0, 0.0, random.Random(args.seed)
    while True:
        done = (time.time() - start) / total
        if done >= 1:
            break
        warm = min(1.0, (step + 1) / 200)
        for group in opt.param_groups:
            group["lr"] = args.lr * warm * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * done)))
        pool, n = (multi, n_multi) if choose.random() < 0.2 else (single, n_single)
        loss = step_loss(*pool.batch(n))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad(set_to_none=True)
        step += 1
        if step % 4 == 0:
            drain(False)
        if pool is single:
            average, weight = 0.98 * average + 0.02 * loss.detach(), 0.98 * weight + 0.02
        if step % 20 == 0 and cuda:
            torch.cuda.synchronize()
        if weight and done * total - shown > (15 if cuda else 5):
            shown = done * total
            value = float(average) / weight
            print(f"{shown:6.0f} s  step {step:6d}  loss {value:.4f}  pool {single.n}", flush=True)
            if not math.isfinite(value):
                raise RuntimeError("the loss is not finite: lower --lr")
    print(f"{step} steps in {time.time() - start:.0f} s", flush=True)
    return model


# ---------------------------------------------------------------------------------------------
# Writing and reading the directory


def write_json(out, name, value):
    with open(os.path.join(out, name), "w", encoding="utf-8") as f:
        json.dump(value, f, indent=2)
        f.write("\n")


def save(torch, model, out):
    from safetensors.torch import save_file
    tensors = {k: v.detach().to("cpu", torch.bfloat16).contiguous()
               for k, v in model.state_dict().items()}
    save_file(tensors, os.path.join(out, "model.safetensors"), metadata={"format": "pt"})
    write_json(out, "config.json", CONFIG)
    write_json(out, "generation_config.json", {
        "do_sample": True, "temperature": 0.7, "top_p": 1.0, "max_new_tokens": 256,
        "eos_token_id": [END, PAD], "pad_token_id": PAD})
    write_json(out, "tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": MAX_LEN,
        "add_bos_token": False, "bos_token": None, "unk_token": None, "eos_token": SPECIALS[END],
        "pad_token": SPECIALS[PAD], "clean_up_tokenization_spaces": False,
        "model_input_names": ["input_ids", "attention_mask"], "chat_template": CHAT_TEMPLATE,
        "added_tokens_decoder": {str(i): {"content": s, "lstrip": False, "normalized": False,
                                          "rstrip": False, "single_word": False, "special": True}
                                 for i, s in enumerate(SPECIALS)}})
    return sum(t.numel() for t in tensors.values())


def load(torch, out, device):
    """The saved (bf16-rounded) weights, computed with in f32."""
    from safetensors.torch import load_file
    model = build_model(torch)
    state = {k: v.float() for k, v in load_file(os.path.join(out, "model.safetensors")).items()}
    model.load_state_dict(state)
    return model.to(device).eval()


# ---------------------------------------------------------------------------------------------
# Measuring


def cross_entropies(torch, model, tok, chats, device):
    """Nats of the last reply of each chat, end token included."""
    header = tok.encode("<|im_start|>assistant\n").ids
    result = []
    for i in range(0, len(chats), 64):
        rows = [mark_replies(e.ids, header)
                for e in tok.encode_batch([render(c) for c in chats[i:i + 64]])]
        length = max(map(len, rows))
        x = torch.tensor([r + [PAD] * (length - len(r)) for r in rows], device=device)
        reply = x < 0
        for j, r in enumerate(rows):  # only the last reply counts
            last = max(k for k, t in enumerate(r) if t >= 0 and k + 1 < len(r) and r[k + 1] < 0)
            reply[j, :last] = False
        ids = torch.where(x < 0, -x - 1, x)
        nll = reply_loss(torch, model(ids), ids, reply, "none").view(len(rows), -1)
        result += nll.sum(1).tolist()
    return result


def sample(torch, model, tok, chats, device, seed):
    """Replies to chats whose last reply is None, at temperature 1."""
    gen = torch.Generator(device=device).manual_seed(seed)
    replies = []
    for i in range(0, len(chats), 256):
        rows = [tok.encode(render(c)).ids for c in chats[i:i + 256]]
        start = [len(r) for r in rows]
        n, limit = len(rows), min(MAX_LEN, max(start) + 200)
        ids = torch.full((n, limit), PAD, device=device)
        for j, r in enumerate(rows):
            ids[j, :len(r)] = torch.tensor(r, device=device)
        at = torch.tensor(start, device=device)
        lines = torch.arange(n, device=device)
        open_ = torch.ones(n, dtype=torch.bool, device=device)
        while bool(open_.any()) and int(at.max()) < limit:
            logits = model(ids[:, :int(at.max())])[lines, at - 1].float()
            token = torch.multinomial(logits.softmax(-1), 1, generator=gen)[:, 0]
            open_ &= (token != END) & (token != PAD)
            ids[lines[open_], at[open_]] = token[open_]
            at += open_.long()
        for j in range(n):
            replies.append(tok.decode(ids[j, start[j]:int(at[j])].tolist(),
                                      skip_special_tokens=False))
    return replies


def judge(prompts, replies):
    """(how many parse and use both nouns, the failures)"""
    bad = [(p, r) for p, r in zip(prompts, replies) if grammar.logprob(p, r) is None]
    return len(prompts) - len(bad), bad


def evaluate(torch, args, model, tok, dev, out, n_params):
    rng = random.Random(f"held-out-{args.seed}")
    n, k = args.eval_chats, args.eval_stories
    pairs = [grammar.write_pair(rng) for _ in range(n)]
    ce = cross_entropies(torch, model, tok, [[p] for p in pairs], dev)
    own = [-grammar.logprob(*p) for p in pairs]
    exact = sum(grammar.entropy(p[0]) for p in pairs) / n
    mean = sum(ce) / n
    tokens = sum(len(tok.encode(r).ids) + 1 for _, r in pairs) / n
    excess = [a - b for a, b in zip(ce, own)]
    gap = sum(excess) / n
    sigma = math.sqrt(sum((x - gap) ** 2 for x in excess) / (n - 1) / n)

    def story_test(make):
        chats = [make() for _ in range(k)]
        replies = sample(torch, model, tok, chats, dev, args.seed)
        return judge([c[-1][0] for c in chats], replies), chats, replies

    def made_up():
        nouns = [grammar.made_up_noun(rng), grammar.made_up_noun(rng)]
        return [(grammar.write_prompt(rng, nouns), None)]

    def third_turn():
        return [grammar.write_turn(rng), grammar.write_turn(rng),
                (grammar.write_pair(rng)[0], None)]

    (good, bad), chats, replies = story_test(lambda: [(grammar.write_pair(rng)[0], None)])
    (good_new, bad_new), _, _ = story_test(made_up)
    (good_third, _), _, _ = story_test(third_turn)
    long = []
    for _ in range(max(1, n // 8)):
        turns = [grammar.write_turn(rng) for _ in range(3)] + [grammar.write_pair(rng)]
        long.append(turns)
    long_ce = cross_entropies(torch, model, tok, long, dev)
    long_own = [-grammar.logprob(*c[-1]) for c in long]

    size = os.path.getsize(os.path.join(out, "model.safetensors"))
    rows = [
        ("parameters", f"{n_params}"), ("model.safetensors", f"{size} bytes"),
        ("held-out chats", f"{n}"), ("tokens a reply, end included", f"{tokens:.1f}"),
        ("exact entropy of these prompts", f"{exact:.3f} nats a reply"),
        ("exact entropy of the task", f"{grammar.mean_entropy():.3f} nats a reply"),
        ("grammar's own -log p of these replies", f"{sum(own) / n:.3f}"),
        ("model's cross-entropy", f"{mean:.3f} nats a reply, {mean / tokens:.4f} a token"),
        ("model over grammar, same replies", f"{gap:.3f} +- {sigma:.3f} nats"),
        ("cross-entropy / exact entropy", f"{mean / exact:.4f} (bar 1.05)"),
        ("stories that parse and use both", f"{good} of {k} (bar 95 %)"),
        ("the same, made-up nouns", f"{good_new} of {k}"),
        ("the same, third turn of a chat", f"{good_third} of {k}"),
        ("fourth turn, model over grammar",
         f"{(sum(long_ce) - sum(long_own)) / len(long):.3f} nats"),
    ]
    table = "\n".join(f"| {a} | {b} |" for a, b in rows)
    print("\n| measure | value |\n| --- | --- |\n" + table + "\n")
    write_json(out, "measured.json", dict(rows))
    for c, r in list(zip(chats, replies))[:6]:
        print("> " + c[-1][0] + "\n" + r + "\n")
    for label, fails in (("failed", bad), ("failed, made-up", bad_new)):
        for p, r in fails[:4]:
            print(f"{label}: {p!r} -> {r!r}")
    with open(os.path.join(out, "samples.jsonl"), "w", encoding="utf-8") as f:
        for c, r in zip(chats, replies):
            f.write(json.dumps({"prompt": c[-1][0], "reply": r}) + "\n")
    ok = True
    if mean / exact > 1.05:
        ok = False
        worst = sorted(zip(excess, pairs), reverse=True)[:3]
        print("MISSED: cross-entropy is over 1.05 x entropy; the worst replies:")
        for e, p in worst:
            print(f"  +{e:.2f} nats: {p}")
    if good < 0.95 * k:
        ok = False
        print("MISSED: fewer than 95 % of the stories parse and use both nouns")
    return ok


def check_with_transformers(torch, model, tok, out, device):
    """Independent reading of the directory: same chat text, same tokens, same logits."""
    try:
        from transformers import AutoModelForCausalLM, AutoTokenizer
    except ImportError:
        print("transformers is not installed: directory not cross-checked")
        return True
    rng = random.Random("cross-check")
    pair = grammar.write_pair(rng)
    prompt = grammar.write_prompt(rng, ["fox", "lantern"])
    text = render([pair, (prompt, None)])
    hf_tok = AutoTokenizer.from_pretrained(out)
    messages = [{"role": "user", "content": pair[0]}, {"role": "assistant", "content": pair[1]},
                {"role": "user", "content": prompt}]
    try:
        theirs = hf_tok.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    except ImportError as e:
        print(f"chat template not cross-checked: {e}")
        theirs = text
    ids = tok.encode(text).ids
    same_text, same_ids = theirs == text, hf_tok(text)["input_ids"] == ids
    hf = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32).to(device).eval()
    x = torch.tensor([ids], device=device)
    torch.set_float32_matmul_precision("highest")
    difference = float((hf(x).logits - model(x)).abs().max())
    print(f"transformers: template {same_text}, tokens {same_ids}, "
          f"largest logit difference {difference:.2e}")
    return same_text and same_ids and difference < 1e-2


def main():
    import torch
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("--out", required=True)
    ap.add_argument("--minutes", type=float, default=5.0)
    ap.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    ap.add_argument("--batch", type=int, help="single-turn chats a step")
    ap.add_argument("--lr", type=float, default=3e-3)
    ap.add_argument("--workers", type=int)
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--eval-chats", type=int)
    ap.add_argument("--eval-stories", type=int)
    ap.add_argument("--no-compile", action="store_true")
    args = ap.parse_args()
    cuda = args.device.startswith("cuda")
    args.batch = args.batch or (768 if cuda else 16)
    args.workers = args.workers or (max(1, (os.cpu_count() or 2) - 2) if cuda else 1)
    args.eval_chats = args.eval_chats or (4096 if cuda else 64)
    args.eval_stories = args.eval_stories or (200 if cuda else 8)
    args.probe = 20000 if cuda else 2000
    if not cuda:
        torch.set_num_threads(1)
    os.makedirs(args.out, exist_ok=True)
    problems = grammar.check_unambiguous()
    if problems:
        raise SystemExit(f"the grammar is ambiguous: {problems[:3]}")
    t0 = time.time()
    tok = build_tokenizer(args.out, 40000 if cuda else 4000)
    print(f"tokenizer in {time.time() - t0:.1f} s", flush=True)
    model = train(torch, args, args.out, tok)
    n_params = save(torch, model, args.out)
    model = load(torch, args.out, args.device)
    with torch.no_grad():
        torch.set_float32_matmul_precision("highest")
        ok = evaluate(torch, args, model, tok, args.device, args.out, n_params)
        ok = check_with_transformers(torch, model, tok, args.out, args.device) and ok
    print("PASS" if ok else "FAIL")
    return 0 if ok else 1


if __name__ == "__main__":
    raise SystemExit(main())
