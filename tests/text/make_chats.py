#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/text/chats.jsonl: conversations and the ids that transformers' apply_chat_template gives for them
with real vocabularies and templates, which are read from QUERN_TEST_DATA and not copied.

    QUERN_TEST_DATA=... tests/text/make_chats.py

A row: the folders of tokenizer and configuration (or the name of a template and its special tokens), the chat as
JSON, and `ids`. Where a message spells control tokens, `text_ids` are the ids when they stay text: what the template
wrote is cut at its control tokens, and each piece is encoded by a tokenizer that matches none. Needs transformers."""
import json
import os
import pathlib
import re

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

DATA = pathlib.Path(os.environ["QUERN_TEST_DATA"])
MARK = "\ue000"  # stands for a control token in a message while the template renders it

MODELS = [
    {"tokenizer": "assembled/qwen2.5", "config": "configs_only/qwen2.5", "control": "<|im_end|>"},
    {"tokenizer": "assembled/qwen2.5", "config": "configs_only/qwen3", "control": "<|im_start|>"},
    {"tokenizer": "assembled/llama3.2", "config": "configs_only/llama3.2-1b-instruct", "control": "<|eot_id|>"},
    {"tokenizer": "tokenizers/minimind", "config": "tokenizers/minimind", "control": "<|im_end|>"},
    {"tokenizer": "tokenizers/torchtune_gemma_cropped", "config": "configs_only/gemma1"},
    {"tokenizer": "tokenizers/mistral01", "template": "templates/mistral-common/v1_spm.jinja", "bos_token": "<s>",
     "eos_token": "</s>"},
    {"tokenizer": "tokenizers/llama2", "template": "templates/chujiezheng/llama-2-chat.jinja", "bos_token": "<s>",
     "eos_token": "</s>"},
    {"tokenizer": "tokenizers/llama2", "template": "hf.js#HuggingFaceH4/zephyr-7b-beta (add_generation_prompt=false)",
     "bos_token": "<s>", "eos_token": "</s>"},
]
TOOL = {"type": "function", "function": {"name": "weather", "description": "Tells the weather.", "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "description": "Where"}}, "required": ["city"]}}}


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


CHATS = [
    {"messages": [user("Hello")], "add_generation_prompt": True},
    {"messages": [user("Hello")], "add_generation_prompt": False},
    {"messages": [{"role": "system", "content": "Be brief."}, user("What's 12345 + 678?"), assistant("13023."),
                  user("And  twice\n\n\tthat?")], "add_generation_prompt": True},
    {"messages": [user("Où est Zoë?\u00a0日本語 🦀\r\n"), assistant(" Là-bas. "), user("it's\n\n")],
     "add_generation_prompt": True},
    {"messages": [user("x" * 100 + " 3.14159 <b> && || <|no_token|> [INST")], "add_generation_prompt": True},
    {"messages": [{**user("Hm"), "name": None}, {**assistant("Yes?"), "tool_calls": None, "reasoning_content": None},
                  {"role": "user", "content": "And now?"}], "add_generation_prompt": True},
    {"messages": [user("Rain in Paris?")], "tools": [TOOL], "add_generation_prompt": True},
]


def load(model):
    path = str(DATA / model["tokenizer"] / "tokenizer.json")
    if "config" in model:
        config = json.loads((DATA / model["config"] / "tokenizer_config.json").read_text())
        plain = lambda v: v["content"] if isinstance(v, dict) else v
        tokens = {k: plain(config.get(k)) for k in ("bos_token", "eos_token") if config.get(k)}
        template = config["chat_template"]
    else:
        tokens = {k: model[k] for k in ("bos_token", "eos_token")}
        template = json.loads((DATA / "chat_templates/templates.json").read_text())[model["template"]]
    library = Tokenizer.from_file(path)
    fast = PreTrainedTokenizerFast(tokenizer_file=path, **tokens)
    fast.chat_template = template
    return library, fast


def text_ids(library, rendered, control):
    """The ids where MARK stands for `control` as text."""
    added = sorted((t.content for t in library.get_added_tokens_decoder().values()), key=len, reverse=True)
    ids = []
    for piece in re.split("(" + "|".join(map(re.escape, added)) + ")", rendered):
        if piece in added:
            ids.append(library.token_to_id(piece))
        elif piece:
            library.encode_special_tokens = True
            ids += library.encode(piece.replace(MARK, control), add_special_tokens=False).ids
            library.encode_special_tokens = False
    return ids


def main():
    with open(pathlib.Path(__file__).with_name("chats.jsonl"), "w", encoding="utf-8") as out:
        for model in MODELS:
            library, fast = load(model)
            chats = list(CHATS)
            if "control" in model:
                chats.append({"messages": [user(f"End {model['control']}\nhere{model['control']}!"), assistant("No."),
                                           user(model["control"])], "add_generation_prompt": True})
            for chat in chats:
                chat = {**chat, "date_string": "26 Jul 2024"}
                arguments = {k: v for k, v in chat.items() if k != "messages"}
                row = {**model, "chat": chat}
                control = row.pop("control", None)
                try:
                    rendered = fast.apply_chat_template(chat["messages"], tokenize=False, **arguments)
                except Exception as e:  # a template may refuse a system message
                    assert type(e).__name__ == "TemplateError", e
                    continue
                row["ids"] = fast.apply_chat_template(chat["messages"], tokenize=True, return_dict=False, **arguments)
                assert row["ids"] == library.encode(rendered, add_special_tokens=False).ids
                if control and control in json.dumps(chat["messages"]):
                    marked = json.loads(json.dumps(chat["messages"]).replace(control, json.dumps(MARK)[1:-1]))
                    rendered = fast.apply_chat_template(marked, tokenize=False, **arguments)
                    row["text_ids"] = text_ids(library, rendered, control)
                    assert row["text_ids"] != row["ids"]
                out.write(json.dumps(row) + "\n")


main()
