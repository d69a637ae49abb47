"""Small made data that can be learned; the same for any machine."""

import torch


def _generator(seed):
    return torch.Generator().manual_seed(seed)


def labelled_images(rows, channels, size, classes=5):
    """A picture for each class, under noise that is three times as strong."""
    g = _generator(1)
    labels = torch.randint(classes, (rows,), generator=g)
    prototypes = torch.randn(classes, channels, size, size, generator=g)
    return {"input": prototypes[labels] + 3 * torch.randn(rows, channels, size, size, generator=g), "target": labels}


def segmented_images(rows, channels, size, classes=3):
    """Vertical stripes of classes; a pixel has the mean of its class, and a tenth of the pixels do not count."""
    g = _generator(2)
    offsets = torch.randint(size, (rows, 1, 1), generator=g)
    masks = ((torch.arange(size)[None, None, :] + offsets) // 3 % classes).expand(rows, size, size).contiguous()
    colours = torch.randn(classes, channels, generator=g)
    images = colours[masks].permute(0, 3, 1, 2) + torch.randn(rows, channels, size, size, generator=g)
    masks[torch.rand(rows, size, size, generator=g) < 0.1] = -100
    return {"input": images.contiguous(), "target": masks}


def bounded_images(rows, size, channels=1, low=0.0):
    """Pictures of a few blobs with values between `low` and 1."""
    g = _generator(3)
    coarse = torch.rand(rows, channels, 4, 4, generator=g)
    fine = torch.nn.functional.interpolate(coarse, size=(size, size), mode="bilinear")
    return {"input": (low + (1 - low) * fine).contiguous()}


def token_windows(rows, length, vocabulary=29):
    """A Markov chain: a token is followed by one of two, or by any other in one case of five."""
    g = _generator(4)
    following = torch.randint(vocabulary, (vocabulary, 2), generator=g)
    tokens = [torch.randint(vocabulary, (rows,), generator=g)]
    for _ in range(length):
        chosen = following[tokens[-1], torch.randint(2, (rows,), generator=g)]
        other = torch.randint(vocabulary, (rows,), generator=g)
        tokens.append(torch.where(torch.rand(rows, generator=g) < 0.2, other, chosen))
    stream = torch.stack(tokens, 1)
    return {"input": stream[:, :-1].contiguous(), "target": stream[:, 1:].contiguous()}


def labelled_texts(rows, length, vocabulary=31, classes=3):
    """Texts of different lengths; the class is that of most of the tokens."""
    g = _generator(5)
    labels = torch.randint(classes, (rows,), generator=g)
    lengths = torch.randint(3, length + 1, (rows,), generator=g)
    tokens = torch.randint(1, vocabulary, (rows, length), generator=g)
    same = torch.rand(rows, length, generator=g) < 0.4
    tokens = torch.where(same, tokens // classes * classes + labels[:, None], tokens).clamp(1, vocabulary - 1)
    mask = torch.arange(length) < lengths[:, None]
    return {"tokens": tokens * mask, "mask": mask, "label": labels}


def table(rows, numbers, cardinalities):
    """A noisy function of numbers and categories; category 0 does not occur."""
    g = _generator(6)
    x = torch.randn(rows, numbers, generator=g)
    categories = torch.stack([torch.randint(1, c, (rows,), generator=g) for c in cardinalities], 1)
    y = x[:, 0] * x[:, 1] + torch.sin(2 * x[:, 2]) + 0.5 * categories.sum(1) + 0.3 * torch.randn(rows, generator=g)
    return {"numbers": x, "categories": categories, "target": 10 + 4 * y}


def series(rows, window, horizon, columns):
    """Sums of two waves with noise."""
    g = _generator(7)
    time = torch.arange(window + horizon)[None, :, None]
    phase, speed = (torch.rand(rows, 1, columns, generator=g) for _ in range(2))
    values = torch.sin(6.28 * phase + (0.2 + 0.3 * speed) * time)
    values = values + 0.2 * torch.randn(rows, window + horizon, columns, generator=g)
    return {"input": values[:, :window].contiguous(), "target": 5 + 2 * values[:, window:].contiguous()}


def reversals(rows, length, vocabulary):
    source = torch.randint(1, vocabulary, (rows, length), generator=_generator(8))
    return {"source": source, "target": source.flip(1).contiguous()}
