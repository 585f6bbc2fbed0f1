# SPDX-License-Identifier: Apache-2.0
"""Make tests/golden/preferences/: a LoRA adapter before training, pairs of answers, and the losses of TRL.

    python3 tests/golden/make_dpo.py        (pip install trl; it was made with 1.16.0)

The reference is TRL's DPOTrainer on transformers and PEFT, on the CPU in f32, eager attention. The directory holds the
adapter as PEFT writes it before the first step, and golden.safetensors:

    tokens    i32 [20, 6, 32]  a batch for each step: rows 2 i and 2 i + 1 a chosen and a rejected answer, zeros behind
    mask      u8 [20, 6, 32]   1 where a token is of an answer
    losses    f64 [20]         before each step
    rewards   f64 [20, 4]      rewards/chosen, rewards/rejected, rewards/accuracies, rewards/margins
    settings  f64 [8]          learning rate, beta1, beta2, eps, weight decay, clip, alpha, beta
"""
import os
import random
import shutil
import tempfile

import torch
from datasets import Dataset
from peft import LoraConfig
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from trl import DPOConfig, DPOTrainer

import make_training

HERE = os.path.join(make_training.ROOT, "preferences")
STEPS, PAIRS, LENGTH, VOCAB, SEED = 20, 3, 32, 320, 67
LR, BETAS, EPS, DECAY, CLIP, ALPHA, RANK, BETA = 1e-3, (0.9, 0.99), 1e-8, 0.05, 3.0, 12, 4, 0.2


class Recorder(DPOTrainer):
    """Keeps each batch, as it reaches the loss, and what is said of it."""
    kept = []

    def _compute_loss(self, model, inputs, return_outputs):
        loss = super()._compute_loss(model, inputs, return_outputs)
        told = [self._metrics["train"]["rewards/" + k][-1] for k in ("chosen", "rejected", "accuracies", "margins")]
        self.kept.append((inputs["input_ids"], inputs["completion_mask"], float(loss), told))
        return loss


def word_tokenizer():
    words = Tokenizer(models.WordLevel({f"t{i}": i for i in range(VOCAB)}, unk_token="t0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, eos_token="t2", pad_token="t0")


def text(draw, least, most):
    return "".join(f" t{draw.randrange(3, VOCAB)}" for _ in range(draw.randrange(least, most)))


def interleaved(x):
    """[chosen..., rejected...] as pairs, LENGTH long."""
    wide = torch.zeros(len(x), LENGTH, dtype=x.dtype)
    wide[:, :x.shape[1]] = x
    return wide.view(2, PAIRS, LENGTH).transpose(0, 1).reshape(2 * PAIRS, LENGTH)


def make(scratch):
    draw = random.Random(SEED)
    torch.manual_seed(SEED)
    lines = [{"prompt": text(draw, 3, 9), "chosen": text(draw, 4, 16), "rejected": text(draw, 4, 16)}
             for _ in range(4 * PAIRS)]
    args = DPOConfig(output_dir=scratch, use_cpu=True, bf16=False, fp16=False, gradient_checkpointing=False,
                     per_device_train_batch_size=PAIRS, max_steps=STEPS, learning_rate=LR, adam_beta1=BETAS[0],
                     adam_beta2=BETAS[1], adam_epsilon=EPS, weight_decay=DECAY, max_grad_norm=CLIP,
                     lr_scheduler_type="constant", beta=BETA, report_to="none", logging_steps=1, save_strategy="no",
                     seed=SEED, disable_tqdm=True)
    base = make_training.base_model("llama/plain", scratch)
    trainer = Recorder(model=base, args=args, train_dataset=Dataset.from_list(lines),
                       processing_class=word_tokenizer(),
                       peft_config=LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=make_training.ALL,
                                              task_type="CAUSAL_LM"))
    shutil.rmtree(HERE, ignore_errors=True)
    make_training.save_adapter(trainer.model, HERE)
    trainer.train()
    kept = Recorder.kept
    assert len(kept) == STEPS
    settings = [LR, *BETAS, EPS, DECAY, CLIP, ALPHA, BETA]
    save_file({"tokens": torch.stack([interleaved(k[0]) for k in kept]).to(torch.int32),
               "mask": torch.stack([interleaved(k[1]) for k in kept]).to(torch.uint8),
               "losses": torch.tensor([k[2] for k in kept], dtype=torch.float64),
               "rewards": torch.tensor([k[3] for k in kept], dtype=torch.float64),
               "settings": torch.tensor(settings, dtype=torch.float64)}, os.path.join(HERE, "golden.safetensors"))
    for k in kept:
        print(tuple(k[0].shape), "%.4f" % k[2], ["%.3f" % x for x in k[3]])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        make(directory)
