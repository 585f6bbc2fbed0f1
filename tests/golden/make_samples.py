#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make tests/golden/samples.jsonl: lines of training data and what mlx-lm learns of them.

    python3 tests/golden/make_samples.py

The reference is mlx_lm.tuner.datasets with transformers' tokenizer of models/demo. A row: `line`; `template`, a chat
template in the place of the model's own (null: that); `mask`, --mask-prompt; `ids`, and `prompt`, how many of them
are not learned. mlx-lm takes the length of the prompt; where its tokens are no beginning of all (a template that
writes "<think>" behind the header), `prompt` is the length of what both begin with.
"""
import json
import os

import transformers
from mlx_lm.tuner.datasets import create_dataset

ROOT = os.path.dirname(os.path.abspath(__file__))
DEMO = os.path.join(ROOT, "..", "..", "models", "demo")
TOOLS = ("{% if tools %}{% for tool in tools %}[{{ tool['name'] }}]{% endfor %}\n{% endif %}{% for m in messages %}"
         "{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
         "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
THINK = ("{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
         "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n' }}{% endif %}")


def message(role, content):
    return {"role": role, "content": content}


CHAT = [message("system", "You are an owl."), message("user", "Who are you?"), message("assistant", "An owl, at night."),
        message("user", "And by day?"), message("assistant", "A sleeping owl.")]
TOOL = [{"name": "weather"}, {"name": "clock"}]
PAIR = {"prompt": "What does the owl keep?", "completion": "A silver key."}
ROWS = [
    ({"text": "The owl keeps a silver key."}, None, False),
    ({"text": "Zwei\nZeilen, caf\u00e9 \u4f60\u597d \U0001f98a"}, None, False),
    (PAIR, None, False), (PAIR, None, True),
    ({**PAIR, "tools": TOOL}, TOOLS, True),
    ({"messages": CHAT}, None, False), ({"messages": CHAT}, None, True),
    ({"messages": CHAT[1:3]}, None, True),
    ({"messages": CHAT[1:], "tools": TOOL}, TOOLS, True),
    ({"messages": CHAT[:4]}, None, False),
    (PAIR, THINK, False), (PAIR, THINK, True),
]


def main():
    tokenizer = transformers.AutoTokenizer.from_pretrained(DEMO)
    own = tokenizer.chat_template
    with open(os.path.join(ROOT, "samples.jsonl"), "w", encoding="utf-8") as f:
        for line, template, mask in ROWS:
            tokenizer.chat_template = template or own
            config = type("Config", (), {"mask_prompt": mask})()
            ids, prompt = create_dataset([line], tokenizer, config).process(line)
            if template == THINK and mask:
                asked = tokenizer.apply_chat_template([message("user", line["prompt"])], add_generation_prompt=True,
                                                      return_dict=False)
                assert len(asked) == prompt
                prompt = next(i for i in range(prompt) if ids[i] != asked[i])
            row = {"line": line, "template": template, "mask": mask, "ids": list(ids), "prompt": prompt}
            f.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
