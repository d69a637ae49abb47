#!/usr/bin/env python3
"""Writes baselines/seq2seq.json with torch 2.11.0; run by hand:

    <a Python with torch 2.11.0> tests/models/make_seq2seq_baseline.py

An encoder and a decoder of torch's modules, in double. Their weights are values of a sine, which the test computes too:
parameter k in the order of names has 1.5 sin(k + 2.1 i²) at place i.
"""

import json
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)
VOCABULARY, EMBEDDING, HIDDEN, LAYERS, BATCH, LENGTH = 7, 3, 5, 2, 4, 6


class Part(nn.Module):
    def __init__(self, cell, output):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, EMBEDDING)
        self.rnn = {"gru": nn.GRU, "lstm": nn.LSTM}[cell](EMBEDDING, HIDDEN, LAYERS, batch_first=True)
        if output:
            self.output = nn.Linear(HIDDEN, VOCABULARY)


class Seq2Seq(nn.Module):
    def __init__(self, cell):
        super().__init__()
        self.encoder = Part(cell, output=False)
        self.decoder = Part(cell, output=True)

    def encode(self, source):
        return self.encoder.rnn(self.encoder.embedding(source))[1]

    def step(self, tokens, state):
        outputs, state = self.decoder.rnn(self.decoder.embedding(tokens), state)
        return self.decoder.output(outputs), state

    def forward(self, source, target):
        given = torch.cat([torch.zeros_like(target[:, :1]), target[:, :-1]], 1)
        return self.step(given, self.encode(source))[0]

    def decode(self, source, length):
        state, token, tokens = self.encode(source), torch.zeros_like(source[:, :1]), []
        for _ in range(length):
            logits, state = self.step(token, state)
            token = logits.argmax(2)
            tokens.append(token)
        return torch.cat(tokens, 1)


def main():
    cases = []
    for cell in ("gru", "lstm"):
        model = Seq2Seq(cell)
        parameters = sorted(model.named_parameters())
        with torch.no_grad():
            for k, (_, value) in enumerate(parameters):
                value.copy_((1.5 * torch.sin(k + 2.1 * torch.arange(value.numel()) ** 2)).view(value.shape))
        tokens = (torch.arange(2 * BATCH * LENGTH) ** 2 % VOCABULARY).view(2, BATCH, LENGTH)
        logits = model(tokens[0], tokens[1])
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[1].flatten())
        loss.backward()
        cases.append({
            "cell": cell,
            "names": [name for name, _ in parameters],
            "logits": logits.flatten().tolist(),
            "loss": loss.item(),
            "gradient_norms": [value.grad.norm().item() for _, value in parameters],
            "decoded": model.decode(tokens[0], LENGTH + 2).flatten().tolist(),
        })
    baseline = {"torch": torch.__version__.split("+")[0], "vocabulary": VOCABULARY, "embedding": EMBEDDING, "hidden": HIDDEN, "layers": LAYERS, "batch": BATCH, "length": LENGTH, "cases": cases}
    path = Path(__file__).parent / "baselines" / "seq2seq.json"
    path.write_text(json.dumps(baseline) + "\n")


if __name__ == "__main__":
    main()
