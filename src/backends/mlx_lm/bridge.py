# SPDX-License-Identifier: Apache-2.0
"""Runs a model with mlx-lm for quern, which starts this and talks to it in JSON Lines.

Standard input has commands, by "cmd": load, generate, chat, info, cancel, quit; standard output has their answers in the
same order, a line each, as `quern serve --stdio` has them. A thread reads, so that a cancel is heard in the midst of a
reply, which it ends; its own answer, done with finish idle, follows. What libraries print goes to standard error.
"""
import json
import os
import queue
import sys
import threading

del sys.path[0]  # this file's folder: nothing is imported from there
os.environ["HF_HUB_OFFLINE"] = "1"  # models are there already
answers = os.dup(1)
os.dup2(2, 1)
lines = queue.Queue()
cancelled = threading.Event()


def say(**fields):
    data = (json.dumps(fields) + "\n").encode()
    while data:
        try:
            data = data[os.write(answers, data):]
        except OSError:
            os._exit(0)  # quern has gone


def whole(text):
    """Text that is UTF-8, without half a character of UTF-16."""
    return text.encode("utf-8", "replace").decode()


def read_lines():
    try:
        for line in sys.stdin.buffer:
            asked = json.loads(line)
            if asked["cmd"] == "quit":
                break
            if asked["cmd"] == "cancel":
                cancelled.set()
            lines.put(asked)
    finally:
        os._exit(0)


class Cancelled(Exception):
    pass


def look_for_cancel(*_):
    if cancelled.is_set():
        raise Cancelled


class Model:
    def __init__(self, path):
        try:
            import mlx_lm
        except ModuleNotFoundError as error:
            if error.name not in ("mlx_lm", "mlx"):
                raise
            raise RuntimeError(f"{sys.executable} has no module {error.name}: pip install mlx-lm") from None
        self.stream = mlx_lm.stream_generate
        self.model, self.tokenizer = mlx_lm.load(path)
        args = getattr(self.model, "args", None)
        inner = getattr(args, "text_config", None)  # of models that read images, too
        fields = {**(inner if isinstance(inner, dict) else {}), **vars(args or object)}
        self.context = fields.get("max_position_embeddings") or 0
        self.info = {"model_type": str(getattr(self.model, "model_type", fields.get("model_type", ""))),
                     "vocab_size": fields.get("vocab_size") or len(self.tokenizer._tokenizer),
                     "layers": len(self.model.layers), "hidden_size": fields.get("hidden_size") or 0}

    def prompt(self, asked):
        if asked["cmd"] == "generate":
            return self.tokenizer.encode(asked["prompt"])
        if not self.tokenizer.has_chat_template:
            raise RuntimeError("the model has no chat template")
        text = self.tokenizer.apply_chat_template(asked["messages"], add_generation_prompt=True, tokenize=False)
        return self.tokenizer.encode(text, add_special_tokens=False)

    def reply(self, asked):
        import mlx.core
        from mlx_lm.sample_utils import make_sampler
        ids = self.prompt(asked)
        if not ids:
            raise RuntimeError("the prompt has no tokens")
        room = self.context - len(ids) if self.context else asked["max_tokens"] or 256
        if room <= 0:
            raise RuntimeError(f"the prompt takes {len(ids)} tokens, the context holds {self.context}")
        mlx.core.random.seed(asked["seed"])
        sampler = make_sampler(temp=asked["temperature"], top_p=asked["top_p"], min_p=asked["min_p"], top_k=asked["top_k"])
        pieces = self.stream(self.model, self.tokenizer, ids, max_tokens=min(asked["max_tokens"] or room, room), sampler=sampler,
                             prefill_step_size=512, prompt_progress_callback=look_for_cancel)
        finish = "length"
        for piece in pieces:
            look_for_cancel()
            stopped = piece.finish_reason == "stop"  # its token is the one that ends, its text what was held back
            if piece.text or not stopped:
                say(token=whole(piece.text), token_id=-1 if stopped else int(piece.token))
            finish = piece.finish_reason or finish
        say(done=True, finish=finish)


def answer(model, asked):
    """The model from now on."""
    cmd = asked["cmd"]
    if cmd == "load":
        model = Model(asked["path"])
        say(ok=True, model_type=model.info["model_type"], vocab_size=model.info["vocab_size"])
    elif cmd == "info":
        say(**model.info)
    elif cmd == "cancel":
        cancelled.clear()
        say(done=True, finish="idle")
    else:
        model.reply(asked)
    return model


def main():
    model = None
    threading.Thread(target=read_lines, daemon=True).start()
    while True:
        asked = lines.get()
        try:
            model = answer(model, asked)
        except Cancelled:
            say(done=True, finish="cancelled")
        except Exception as error:
            say(error=whole(" ".join((str(error) or type(error).__name__).split()))[:300])


main()
