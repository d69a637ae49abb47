#!/usr/bin/env python3
"""Writes baselines/language.json with torch 2.11.0 and transformers 5.24.0; run by hand:

    <a Python with them> tests/models/make_language_baseline.py

Hugging Face's Llama and BERT with the weights of make_vision_baseline.py, in the order of the names in their files. In
float64, Llama's norms and rotary angles would be computed in float32: they are replaced by the same formulas in
float64, and the logits of the unchanged model in float32 are recorded too.
"""

import json
import math
import tempfile
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch.nn import functional as F
from transformers import BertConfig, BertForSequenceClassification, LlamaConfig, LlamaForCausalLM
from transformers.generation.logits_process import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

torch.set_num_threads(1)


def formula(shape, k):
    i = torch.arange(math.prod(shape))
    return (2 * ((31 * i * i + 7919 * i + 104729 * k) % 10007).double() / 10007 - 1).view(shape)


def weight(name, shape, k):
    values = formula(shape, k)
    if len(shape) > 1:
        return values / math.sqrt(math.prod(shape) / shape[0])
    return 0.1 * values + (1 if name.endswith("weight") else 0)


def filled(model):
    """The model in float64 and in float32 with weights by the formula, and {name: shape} of its file."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        file_path = Path(folder) / "model.safetensors"
        with safe_open(file_path, "pt") as file:
            shapes = {name: list(file.get_slice(name).get_shape()) for name in sorted(file.keys())}
        save_file({name: weight(name, shape, k) for k, (name, shape) in enumerate(shapes.items())}, file_path, {"format": "pt"})
        return [type(model).from_pretrained(folder, dtype=d).eval() for d in (torch.float64, torch.float32)] + [shapes]


def in_float64(model):
    """Llama's norms and angles in the dtype of the input."""

    class Norm(torch.nn.Module):
        def __init__(self, norm):
            super().__init__()
            self.weight, self.eps = norm.weight, norm.variance_epsilon

        def forward(self, x):
            return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))

    class Rotary(torch.nn.Module):
        def __init__(self, size, theta):
            super().__init__()
            self.size, self.theta = size, theta

        def forward(self, x, position_ids):
            frequencies = self.theta ** (-torch.arange(0, self.size, 2, dtype=x.dtype) / self.size)
            angles = position_ids[..., None].to(x.dtype) * frequencies
            angles = torch.cat([angles, angles], -1)
            return angles.cos(), angles.sin()

    config = model.config
    for layer in model.model.layers:
        layer.input_layernorm, layer.post_attention_layernorm = Norm(layer.input_layernorm), Norm(layer.post_attention_layernorm)
    model.model.norm = Norm(model.model.norm)
    theta = config.rope_parameters["rope_theta"]
    model.model.rotary_emb = Rotary(config.hidden_size // config.num_attention_heads, theta)
    return model


def trained(model, loss_of, lr, names):
    """Losses of three steps on one batch, and the sums of squares of the first gradients by name in the file."""
    losses, squares = [], {}
    for step in range(3):
        model.zero_grad()
        loss = loss_of()
        loss.backward()
        losses.append(loss.item())
        if step == 0:
            squares = {name: p.grad.square().sum().item() for name, p in model.named_parameters() if name in names}
        with torch.no_grad():
            for p in model.parameters():
                p.sub_(lr * p.grad)
    return {"lr": lr, "losses": losses, "gradient_squares": squares}


def llama_case(n_kv_head, tied, theta):
    sizes = dict(vocab_size=11, hidden_size=24, intermediate_size=20, num_hidden_layers=2, num_attention_heads=4)
    config = LlamaConfig(
        **sizes,
        num_key_value_heads=n_kv_head,
        max_position_embeddings=12,
        rms_norm_eps=1e-5,
        tie_word_embeddings=tied,
        rope_parameters={"rope_type": "default", "rope_theta": theta},
        attn_implementation="sdpa",
        bos_token_id=None,
        eos_token_id=None,
    )
    exact, single, shapes = filled(LlamaForCausalLM(config))
    exact = in_float64(exact)
    tokens = (torch.arange(3 * 12) ** 2 % 11).view(3, 12)
    inputs, targets = tokens[:, :9], tokens[:, 1:10]
    out = {"n_kv_head": n_kv_head, "tied": tied, "theta": theta, "shapes": shapes}
    with torch.no_grad():
        out["logits"] = exact(inputs).logits.flatten().tolist()
        out["logits_float32"] = single(inputs).logits.double().flatten().tolist()
        prompts = [tokens[0, :4], tokens[1, :1], tokens[2, :6]]
        out["generated"] = [
            exact.generate(p[None], attention_mask=torch.ones_like(p[None]), max_new_tokens=6, do_sample=False, pad_token_id=0)[0, len(p) :].tolist() for p in prompts
        ]
    out["training"] = trained(exact, lambda: F.cross_entropy(exact(inputs).logits.flatten(0, 1), targets.flatten()), 0.1, shapes)
    return out


def bert_case(with_types):
    config = BertConfig(
        vocab_size=17, hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=20, num_labels=3,
        max_position_embeddings=9, hidden_dropout_prob=0, attention_probs_dropout_prob=0, attn_implementation="sdpa",
    )  # fmt: skip
    exact, single, shapes = filled(BertForSequenceClassification(config))
    lengths = torch.tensor([7, 1, 4, 5])
    mask = torch.arange(7) < lengths[:, None]
    tokens = (torch.arange(28).view(4, 7) ** 2 % 16 + 1) * mask
    types = (torch.arange(28).view(4, 7) % 7 > 2).long() if with_types else None
    labels = torch.tensor([0, 2, 1, 2])
    call = lambda model: model(tokens, attention_mask=mask.long(), token_type_ids=types).logits
    out = {"with_types": with_types, "shapes": shapes}
    with torch.no_grad():
        out["logits"], out["logits_float32"] = call(exact).flatten().tolist(), call(single).double().flatten().tolist()
    out["training"] = trained(exact, lambda: F.cross_entropy(call(exact), labels), 0.1, shapes)
    return out


def choice(temperature, top_k, top_p):
    """Probabilities from which transformers draws."""
    scores = 3 * formula((1, 13), 7)
    if temperature != 1:
        scores = TemperatureLogitsWarper(temperature)(None, scores)
    if top_k:
        scores = TopKLogitsWarper(top_k)(None, scores)
    if top_p < 1:
        scores = TopPLogitsWarper(top_p)(None, scores)
    return {"temperature": temperature, "top_k": top_k, "top_p": top_p, "probabilities": scores.softmax(1).flatten().tolist()}


out = {
    "torch": torch.__version__.split("+")[0],
    "llama": [llama_case(4, False, 10000.0), llama_case(2, True, 500000.0)],
    "bert": [bert_case(False), bert_case(True)],
    "choices": [choice(1.0, 0, 1.0), choice(0.7, 5, 1.0), choice(1.5, 0, 0.6), choice(0.9, 7, 0.8), choice(2.0, 100, 0.05)],
}
path = Path(__file__).parent / "baselines" / "language.json"
path.write_text(json.dumps(out) + "\n")
