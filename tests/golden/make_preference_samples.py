#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make tests/golden/preferences/samples.jsonl: lines with two answers and what TRL makes of them.

    python3 tests/golden/make_preference_samples.py        (pip install trl; it was made with 1.16.0)

The reference is DPOTrainer's own preparation of a dataset, with transformers' tokenizer of models/demo. A row: `line`;
`template`, as in make_samples.py; `chosen` and `rejected`, ids with the prompt's, and `prompt`, how many ids that has.
Answers that are texts are given to TRL as messages, which is what they are to a model that knows chats.
"""
import json
import os
import tempfile

import transformers
from datasets import Dataset
from trl import DPOConfig, DPOTrainer

from make_samples import CHAT, DEMO, ROOT, THINK, TOOL, TOOLS, message

KEY, DOOR = "A silver key.", "A door, it may be."
ASKED = CHAT[:4]
LINES = [
    ({"prompt": "What does the owl keep?", "chosen": KEY, "rejected": DOOR}, None),
    ({"prompt": [message("user", "What?")], "chosen": [message("assistant", KEY)],
      "rejected": [message("assistant", DOOR)]}, None),
    ({"prompt": ASKED, "chosen": [message("assistant", DOOR)], "rejected": [message("assistant", "")]}, None),
    ({"chosen": [*ASKED, message("assistant", KEY)], "rejected": [*ASKED, message("assistant", DOOR)]}, None),
    ({"prompt": CHAT[:2], "chosen": CHAT[2:], "rejected": [message("assistant", "No.")]}, None),
    ({"prompt": ASKED[1:], "chosen": [message("assistant", KEY)], "rejected": [message("assistant", "A sil")],
      "tools": TOOL}, TOOLS),
    ({"prompt": [message("user", "What?")], "chosen": [message("assistant", KEY)],
      "rejected": [message("assistant", DOOR)]}, THINK),
]


def as_messages(line):
    if not isinstance(line.get("prompt"), str):
        return line
    return {"prompt": [message("user", line["prompt"])], "chosen": [message("assistant", line["chosen"])],
            "rejected": [message("assistant", line["rejected"])]}


def main():
    tokenizer = transformers.AutoTokenizer.from_pretrained(DEMO)
    own = tokenizer.chat_template
    trainer = DPOTrainer.__new__(DPOTrainer)
    trainer._tokenizer = tokenizer
    with tempfile.TemporaryDirectory() as scratch, \
            open(os.path.join(ROOT, "preferences", "samples.jsonl"), "w", encoding="utf-8") as f:
        args = DPOConfig(output_dir=scratch, use_cpu=True, bf16=False, report_to="none")
        for line, template in LINES:
            tokenizer.chat_template = template or own
            made = DPOTrainer._prepare_dataset(trainer, Dataset.from_list([as_messages(line)]), tokenizer, args, "x")[0]
            row = {"line": line, "template": template, "chosen": made["prompt_ids"] + made["chosen_ids"],
                   "rejected": made["prompt_ids"] + made["rejected_ids"], "prompt": len(made["prompt_ids"])}
            f.write(json.dumps(row) + "\n")
            print(row["prompt"], len(row["chosen"]), len(row["rejected"]))


if __name__ == "__main__":
    main()
