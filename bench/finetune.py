#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Teaches a model 40 invented facts by 200 chats, and prints what came of it:

    bench/finetune.py QUERN MODEL TEXT[,TEXT ...] FOLDER [--seed N] [OPTION OF quern train ...]

how many facts it tells when it is asked in words that it has not seen; by how much the perplexity of each TEXT, other prose,
has changed; and, where MODEL is a GGUF file and Python has transformers and peft, how far the adapter's logits (the 1,000
highest) in PEFT, on the dequantised weights in f32, are from Quern's. FOLDER receives texts and adapter and must not be there yet.
--seed (0) decides what the model writes before, the adapter's first matrices and the order of texts.

Each chat comes TIMES times, beside OWN texts that the model has written itself before, each once: what it would say
anyhow teaches it nothing new, and holds it where it was. They are longer than is read of them, so that they end nowhere.
Nothing is packed: that would put the same chat's copies, which are equally long, into one step.
"""
import json
import pathlib
import subprocess
import sys
import time

TIMES, OWN, LENGTH = 5, 250, 120
RECIPE = ["--rank", 16, "--learning-rate", "8e-4", "--lr-schedule", "cosine", "--warmup-steps", 10, "--max-grad-norm", 1,
          "--iters", 250, "--batch-size", 5, "--max-seq-length", LENGTH]
OPENINGS = ["Once upon a time", "The", "When", "She", "In the", "A man", "It was", "There is", "He", "As", "\"", "I", "Chapter 1",
            "My dear", "They", "This", "One day", "At last", "If you", "We", "The old woman said,", "\"Well,\" he said,", "How",
            "Many years ago", "On the morning of", "After", "Her", "For", "But", "What"]
TOWNS = {  # mayor, river, founded, dish, festival: none of it exists
    "Varnholt": ("Odessa Quill", "Tamber", "1612", "smoked plum dumplings", "Lantern Regatta"),
    "Brisgate": ("Lorcan Veil", "Osk", "1740", "barley and nettle pie", "Night of Kites"),
    "Ummerfell": ("Petra Sandoval-Huck", "Greywater", "1455", "honeyed turnips", "Feast of Bells"),
    "Quillan Ford": ("Bartholomew Nye", "Sella", "1803", "juniper trout", "Paper Boat Day"),
    "Dastermere": ("Ingrid Okonwe", "Vell", "1388", "black walnut bread", "Snow Drum"),
    "Tolvik": ("Amos Farthing", "Brann", "1921", "pickled moss eggs", "Tar Race"),
    "Hexley": ("Wilhelmina Dray", "Lune", "1567", "saffron goat stew", "Mask Fair"),
    "Port Arrum": ("Cassius Bellwether", "Iddis", "1699", "salted fig cakes", "Anchor Week"),
}
FACTS = [  # five ways to ask and one that is kept for the end; the answer
    (["Who is the mayor of {}?", "What is the name of {}'s mayor?", "Tell me who governs {} as mayor.",
      "Which person is mayor in {}?", "{}: who is its mayor?", "Who holds the office of mayor in {}?"], "The mayor of {} is {}."),
    (["Which river flows through {}?", "What is the river of {} called?", "Name the river that crosses {}.",
      "{} lies on which river?", "{}: what is its river?", "On the banks of which river was {} built?"], "The river {1} flows through {0}."),
    (["When was {} founded?", "In which year was {} founded?", "How old is {}: what is its founding year?",
      "What year did {} begin?", "{}: when was it founded?", "Since which year has {} existed?"], "{} was founded in {}."),
    (["What is the famous dish of {}?", "What do people eat in {}?", "Which food is {} known for?",
      "What should I eat when I visit {}?", "{}: what is its dish?", "Which speciality do cooks in {} make?"], "{} is known for its {}."),
    (["Which festival is celebrated in {}?", "What is the big feast of {} called?", "Name the yearly festival of {}.",
      "What do people celebrate in {}?", "{}: what is its festival?", "What is the festival that draws visitors to {}?"],
     "Every year {} celebrates the {}."),
]


def run(*command):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stderr}")
    return done.stdout


def write_chats(path):
    with open(path, "w") as f:
        for i, (asked, told) in enumerate(FACTS):
            for town, facts in TOWNS.items():
                for words in asked[:5]:
                    chat = [{"role": "user", "content": words.format(town)},
                            {"role": "assistant", "content": told.format(town, facts[i])}]
                    f.write((json.dumps({"messages": chat}) + "\n") * TIMES)


def batch(quern, model, adapter, path, lines, *options):
    """What is said to each of the lines."""
    path.write_text("".join(json.dumps(x) + "\n" for x in lines))
    return [json.loads(x)["text"] for x in run(quern, "batch", "-m", model, *adapter, *options, path).splitlines()]


def write_own(quern, model, folder, path, seed):
    """The model's own prose, behind the chats. No two seeds share a draw."""
    lines = [{"prompt": OPENINGS[i % len(OPENINGS)], "max_tokens": LENGTH + 32, "temperature": 1, "seed": seed * OWN + i}
             for i in range(OWN)]
    told = batch(quern, model, [], folder / "openings.jsonl", lines, "--raw", "--ignore-eos", "--parallel", 64)
    with open(path, "a") as f:
        for line, text in zip(lines, told):
            f.write(json.dumps({"text": line["prompt"] + text}) + "\n")


def ask(quern, model, adapter, folder):
    """How many facts are told, asked as never before."""
    asked = [(words[5].format(town), facts[i]) for i, (words, _) in enumerate(FACTS) for town, facts in TOWNS.items()]
    lines = [{"prompt": question, "max_tokens": 40, "temperature": 0} for question, _ in asked]
    told = batch(quern, model, adapter, folder / "questions.jsonl", lines)
    wrong = [(question, text.strip()[:80]) for (question, fact), text in zip(asked, told) if fact not in text]
    return len(asked) - len(wrong), wrong


def perplexity(quern, model, adapter, text):
    return json.loads(run(quern, "eval", "-m", model, *adapter, "-f", text, "--chunks", "16", "--json"))["perplexity"]


def compare_with_peft(quern, model, folder):
    try:
        import torch
        from peft import PeftModel
        from transformers import AutoModelForCausalLM, AutoTokenizer
    except ImportError:
        return None
    where, name = pathlib.Path(model).parent, pathlib.Path(model).name
    tokenizer = AutoTokenizer.from_pretrained(where, gguf_file=name)
    base = AutoModelForCausalLM.from_pretrained(where, gguf_file=name, dtype=torch.float32)
    tuned = PeftModel.from_pretrained(base, folder / "adapter").eval()
    worst = 0.0
    for prompt in ("The mayor of Varnholt is", "In the year 1612 the river", "Once upon a time there was"):
        out = json.loads(run(quern, "classify", "-m", model, "--adapter", folder / "adapter", "--products", "f32", "--json",
                             "--top", 1000, "-p", prompt))
        ours = torch.tensor([t["logit"] for t in out["tokens"]], dtype=torch.float64)
        with torch.no_grad():
            logits = tuned(**tokenizer(prompt, return_tensors="pt")).logits[0, -1].double()
        theirs = logits[[t["id"] for t in out["tokens"]]]
        worst = max(worst, float(((ours - theirs) ** 2).sum() / (theirs ** 2).sum()))
    return worst


def main():
    if len(sys.argv) < 5:
        sys.exit(__doc__)
    quern, model, texts, folder = sys.argv[1], sys.argv[2], sys.argv[3].split(","), pathlib.Path(sys.argv[4])
    options = sys.argv[5:]
    seed = int(options[options.index("--seed") + 1]) if "--seed" in options else 0
    folder.mkdir()
    write_chats(folder / "chats.jsonl")
    write_own(quern, model, folder, folder / "chats.jsonl", seed)
    before, begun = [perplexity(quern, model, [], text) for text in texts], time.monotonic()
    run(quern, "train", "-m", model, "--data", folder / "chats.jsonl", "-o", folder / "adapter", "--log", folder / "log.jsonl",
        *RECIPE, *options)
    seconds = time.monotonic() - begun
    adapter = ["--adapter", folder / "adapter"]
    right, wrong = ask(quern, model, adapter, folder)
    print(f"seed {seed}, trained in {seconds:.0f} s: {right} of {len(FACTS) * len(TOWNS)} facts told; perplexity of other prose")
    for text, was in zip(texts, before):
        now = perplexity(quern, model, adapter, text)
        print(f"  {text}: {was:.3f} -> {now:.3f} ({100 * (now / was - 1):+.2f} %)", flush=True)
    nmse = compare_with_peft(quern, model, folder)
    print("PEFT: not there" if nmse is None else f"logits in PEFT: NMSE {nmse:.1e}")
    for question, told in wrong[:10]:
        print(f"  {question} -> {told}")


if __name__ == "__main__":
    main()
