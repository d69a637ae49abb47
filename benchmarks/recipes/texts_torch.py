#!/usr/bin/env python3
"""configs/recipes/text_classification.yaml in PyTorch with Hugging Face's BERT: the same sizes, schedule and data, no logs.

    benchmarks/recipes/texts_torch.py FOLDER [SEED]

FOLDER is one of benchmarks/recipes/make_texts.py. The result is of the epoch with the best validation.
"""

import copy
import csv
import math
import sys
import time
from pathlib import Path

import torch
from transformers import BertConfig, BertForSequenceClassification

BATCH, RATE, EPOCHS, LENGTH, WARMUP = 32, 1e-3, 5, 32, 100


def read(path, tokens):
    """Token numbers (N, LENGTH), their mask, and labels."""
    with open(path, encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    ids = torch.full((len(rows), LENGTH), tokens["[PAD]"])
    for line, row in zip(ids, rows):
        words = [tokens["[CLS]"], *(tokens[word] for word in row["text"].split()), tokens["[SEP]"]][:LENGTH]
        line[: len(words)] = torch.tensor(words)
    return ids, ids.ne(tokens["[PAD]"]).long(), torch.tensor([row["label"] == "positive" for row in rows]).long()


def accuracy(net, ids, mask, labels):
    net.eval()
    with torch.no_grad():
        parts = zip(ids.split(500), mask.split(500), labels.split(500))
        right = sum((net(a, attention_mask=b).logits.argmax(1) == c).sum().item() for a, b, c in parts)
    net.train()
    return right / len(labels)


def main():
    folder = Path(sys.argv[1])
    torch.manual_seed(int(sys.argv[2]) if len(sys.argv) > 2 else 1)
    begin = time.process_time()
    tokens = {word: number for number, word in enumerate((folder / "vocab.txt").read_text().split())}
    data, test = read(folder / "train.csv", tokens), read(folder / "test.csv", tokens)
    order = torch.randperm(len(data[0]))
    held, chosen = order[: len(order) // 10], order[len(order) // 10 :]
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    net = BertForSequenceClassification(BertConfig(vocab_size=len(tokens), max_position_embeddings=LENGTH, num_labels=2, **sizes))
    decayed = [value for value in net.parameters() if value.dim() > 1]
    others = [value for value in net.parameters() if value.dim() <= 1]
    groups = [{"params": decayed, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, RATE, fused=True)
    steps = EPOCHS * -(-len(chosen) // BATCH)
    rate = lambda step: step / WARMUP if step < WARMUP else 0.5 * (1 + math.cos(math.pi * (step - WARMUP) / (steps - WARMUP)))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    best, state = -1.0, None
    for _ in range(EPOCHS):
        for rows in chosen[torch.randperm(len(chosen))].split(BATCH):
            ids, mask, labels = (part[rows] for part in data)
            longest = int(mask.sum(1).max())  # batches are as long as their longest sentence
            net(ids[:, :longest], attention_mask=mask[:, :longest], labels=labels).loss.backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
        if (value := accuracy(net, *(part[held] for part in data))) > best:
            best, state = value, copy.deepcopy(net.state_dict())
    net.load_state_dict(state)
    print(f"test accuracy {100 * accuracy(net, *test):.1f} %, {time.process_time() - begin:.1f} s of CPU time")


main()
