"""Twins of the models of tables and series."""

import math

import torch
from case import Case
from data import series, table
from torch import nn
from torch.nn import functional as F

NUMBERS, CARDINALITIES = 4, [4, 3]
MEAN, STD = 12.0, 5.0


class Targets(nn.Module):
    """The mean and the deviation of the targets are buffers of the model."""

    def __init__(self, means, deviations):
        super().__init__()
        self.register_buffer("target_mean", torch.tensor(means))
        self.register_buffer("target_std", torch.tensor(deviations))

    def loss(self, raw, target):
        return F.mse_loss(raw, (target.view_as(raw) - self.target_mean) / self.target_std)


class TabularMlp(Targets):
    def __init__(self):
        super().__init__([MEAN], [STD])
        for i, c in enumerate(CARDINALITIES):
            setattr(self, f"embedding{i}", nn.Parameter(0.1 * torch.randn(c, 3)))
        self.layer0, self.layer1, self.layer2 = nn.Linear(NUMBERS + 6, 32), nn.Linear(32, 16), nn.Linear(16, 1)

    def forward(self, numbers, categories):
        embedded = [self.embedding0[categories[:, 0]], self.embedding1[categories[:, 1]]]
        x = torch.cat([numbers, *embedded], 1)
        return self.layer2(F.relu(self.layer1(F.relu(self.layer0(x)))))


class FtBlock(nn.Module):
    def __init__(self, width, heads, with_norm):
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width) if with_norm else None
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.ffn_norm = nn.LayerNorm(width)
        ffn_width = width * 4 // 3
        self.linear1, self.linear2 = nn.Linear(width, 2 * ffn_width), nn.Linear(ffn_width, width)

    def forward(self, x):
        normed = self.attention_norm(x) if self.attention_norm else x
        q, k, v = (layer(normed).unflatten(2, (self.heads, -1)).transpose(1, 2) for layer in (self.query, self.key, self.value))
        attention = (q @ k.transpose(2, 3) / math.sqrt(q.shape[3])).softmax(3)
        x = x + self.out((attention @ v).transpose(1, 2).flatten(2))
        values, gates = self.linear1(self.ffn_norm(x)).chunk(2, 2)
        return x + self.linear2(values * F.relu(gates))


class FtTransformer(Targets):
    """Gorishniy et al. 2021: tokens, blocks with norms before their halves, a head on the first token."""

    def __init__(self, width=24, heads=4, blocks=2):
        super().__init__([MEAN], [STD])
        self.first_token = nn.Parameter(0.1 * torch.randn(width))
        self.number_weight = nn.Parameter(0.1 * torch.randn(NUMBERS, width))
        self.number_bias = nn.Parameter(0.1 * torch.randn(NUMBERS, width))
        for i, c in enumerate(CARDINALITIES):
            setattr(self, f"embedding{i}", nn.Parameter(0.1 * torch.randn(c, width)))
        self.category_bias = nn.Parameter(0.1 * torch.randn(len(CARDINALITIES), width))
        for i in range(blocks):
            setattr(self, f"block{i}", FtBlock(width, heads, i > 0))
        self.blocks = blocks
        self.head_norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1)

    def forward(self, numbers, categories):
        first = self.first_token.expand(len(numbers), 1, -1)
        embedded = torch.stack([self.embedding0[categories[:, 0]], self.embedding1[categories[:, 1]]], 1)
        x = torch.cat([first, numbers[:, :, None] * self.number_weight + self.number_bias, embedded + self.category_bias], 1)
        for i in range(self.blocks):
            x = getattr(self, f"block{i}")(x)
        return self.head(F.relu(self.head_norm(x[:, 0])))


class Lstm(Targets):
    def __init__(self):
        super().__init__([5.0, 5.0], [2.0, 2.0])
        self.lstm = nn.LSTM(2, 24, batch_first=True)
        self.head = nn.Linear(24, 3 * 2)

    def forward(self, x):
        return self.head(self.lstm(x)[0][:, -1]).view(-1, 3, 2)


def regressed(model, batch):
    return model.loss(model(batch["numbers"], batch["categories"]), batch["target"])


def forecast(model, batch):
    return model.loss(model(batch["input"]), batch["target"])


TABLE = {"num_numbers": NUMBERS, "cardinalities": CARDINALITIES, "target_mean": [MEAN], "target_std": [STD]}
NO_DROPOUT = {"attention_dropout": 0, "ffn_dropout": 0, "residual_dropout": 0}
CASES = [
    Case(
        name="tabular_mlp",
        title="`TabularMlp`",
        twin_title="own module",
        model={"class_path": "TabularMlp", "init_args": {**TABLE, "hidden": [32, 16], "embedding_size": 3}},
        twin=TabularMlp,
        loss_of=regressed,
        arrays=lambda rows: table(rows, NUMBERS, CARDINALITIES),
        entries=["numbers", "categories", "target"],
    ),
    Case(
        name="ft_transformer",
        title="`FtTransformer`",
        twin_title="own module",
        model={"class_path": "FtTransformer", "init_args": {**TABLE, "width": 24, "blocks": 2, "heads": 4, **NO_DROPOUT}},
        twin=FtTransformer,
        loss_of=regressed,
        arrays=lambda rows: table(rows, NUMBERS, CARDINALITIES),
        entries=["numbers", "categories", "target"],
    ),
    Case(
        name="lstm",
        title="`LstmForecaster`",
        twin_title="own module",
        model={
            "class_path": "LstmForecaster",
            "init_args": {
                "num_inputs": 2,
                "horizon": 3,
                "num_outputs": 2,
                "hidden": 24,
                "target_mean": [5.0, 5.0],
                "target_std": [2.0, 2.0],
            },
        },
        twin=Lstm,
        loss_of=forecast,
        arrays=lambda rows: series(rows, 12, 3, 2),
    ),
]
