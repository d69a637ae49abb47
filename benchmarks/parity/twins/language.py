"""Twins of the language models: those of Hugging Face, and the recurrent encoder and decoder."""

import torch
from case import Arrays, Case
from data import labelled_texts, reversals, token_windows
from torch import nn
from torch.nn import functional as F
from transformers import BertConfig, BertForSequenceClassification, GPT2Config, GPT2LMHeadModel, LlamaConfig
from transformers import LlamaForCausalLM

VOCABULARY, LENGTH = 29, 16
SIZES = {"vocab_size": VOCABULARY, "block_size": LENGTH, "n_layer": 2, "n_head": 4, "n_embd": 32}


def gpt2():
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=LENGTH,
        n_embd=32,
        n_layer=2,
        n_head=4,
        embd_pdrop=0,
        attn_pdrop=0,
        resid_pdrop=0,
        bos_token_id=None,
        eos_token_id=None,
    )
    return GPT2LMHeadModel(config)


def llama():
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=LENGTH,
        rms_norm_eps=1e-5,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    return LlamaForCausalLM(config)


def bert():
    config = BertConfig(
        vocab_size=31,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=LENGTH,
        num_labels=3,
        hidden_dropout_prob=0,
        attention_probs_dropout_prob=0,
    )
    return BertForSequenceClassification(config)


def next_tokens(model, batch):
    return F.cross_entropy(model(batch["input"]).logits.flatten(0, 1), batch["target"].flatten())


def classified_texts(model, batch):
    logits = model(batch["tokens"], attention_mask=batch["mask"].long()).logits
    return F.cross_entropy(logits, batch["label"])


def gpt2_names(state: Arrays) -> Arrays:
    """Hugging Face stores the weights of GPT-2's linear layers transposed."""
    linear = ("c_attn.weight", "c_proj.weight", "c_fc.weight")
    return {name: value.T.contiguous() if name.endswith(linear) else value for name, value in state.items()}


def _renamed(state: Arrays, names: dict[str, str], joined: dict[str, tuple[str, list[str]]]) -> Arrays:
    """`names` replaces parts of names; `joined` concatenates rows of several layers into one."""
    found = {}
    for name, value in state.items():
        for old, new in names.items():
            name = name.replace(old, new)
        found[name] = value
    for target, (first, others) in joined.items():
        for name in [n for n in found if first in n]:
            parts = [found.pop(name.replace(first, part)) for part in [first, *others]]
            found[name.replace(first, target)] = torch.cat(parts)
    return found


def llama_names(state: Arrays) -> Arrays:
    names = {
        "model.embed_tokens.": "transformer.wte.",
        "model.norm.": "transformer.ln_f.",
        "model.layers.": "transformer.h.",
        "input_layernorm.": "ln_1.",
        "post_attention_layernorm.": "ln_2.",
        "self_attn.o_proj.": "attn.c_proj.",
        "mlp.down_proj.": "mlp.c_proj.",
    }
    joined = {
        "attn.c_attn.": ("self_attn.q_proj.", ["self_attn.k_proj.", "self_attn.v_proj."]),
        "mlp.c_fc.": ("mlp.gate_proj.", ["mlp.up_proj."]),
    }
    return _renamed(state, names, joined)


def bert_names(state: Arrays) -> Arrays:
    names = {
        "bert.embeddings.word_embeddings.": "embeddings.token.",
        "bert.embeddings.position_embeddings.": "embeddings.position.",
        "bert.embeddings.token_type_embeddings.": "embeddings.type.",
        "bert.embeddings.LayerNorm.": "embeddings.norm.",
        "bert.encoder.layer.": "layers.",
        "attention.output.dense.": "attention.out_proj.",
        "attention.output.LayerNorm.": "norm_1.",
        "intermediate.dense.": "widen.",
        "output.dense.": "narrow.",
        "output.LayerNorm.": "norm_2.",
        "bert.pooler.dense.": "pooler.",
    }
    joined = {
        "attention.in_proj.": ("attention.self.query.", ["attention.self.key.", "attention.self.value."]),
    }
    return _renamed(state, names, joined)


class RecurrentPart(nn.Module):
    def __init__(self, vocabulary, with_output):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, 12)
        self.rnn = nn.GRU(12, 32, 1, batch_first=True)
        if with_output:
            self.output = nn.Linear(32, vocabulary)


class Seq2Seq(nn.Module):
    def __init__(self, vocabulary):
        super().__init__()
        self.encoder, self.decoder = RecurrentPart(vocabulary, False), RecurrentPart(vocabulary, True)

    def forward(self, source, target):
        state = self.encoder.rnn(self.encoder.embedding(source))[1]
        given = torch.cat([torch.zeros_like(target[:, :1]), target[:, :-1]], 1)
        return self.decoder.output(self.decoder.rnn(self.decoder.embedding(given), state)[0])


def reversed_tokens(model, batch):
    logits = model(batch["source"], batch["target"])
    return F.cross_entropy(logits.flatten(0, 1), batch["target"].flatten())


LLAMA_PARTS = {"n_kv_head": 2, "mlp": "swiglu", "mlp_hidden": 64, "positions": "rotary", "norm": "rms"}
CASES = [
    Case(
        name="gpt2",
        title="`GPT`, GPT-2's options",
        twin_title="Hugging Face GPT2LMHeadModel",
        model={"class_path": "GPT", "init_args": {**SIZES, "activation": "gelu_tanh"}},
        twin=gpt2,
        loss_of=next_tokens,
        arrays=lambda rows: token_windows(rows, LENGTH, VOCABULARY),
        key_map="hf_gpt2",
        to_fulgur=gpt2_names,
    ),
    Case(
        name="llama",
        title="`GPT`, Llama's options",
        twin_title="Hugging Face LlamaForCausalLM",
        model={"class_path": "GPT", "init_args": {**SIZES, **LLAMA_PARTS, "bias": False, "tie_weights": False}},
        twin=llama,
        loss_of=next_tokens,
        arrays=lambda rows: token_windows(rows, LENGTH, VOCABULARY),
        key_map="hf_llama",
        to_fulgur=llama_names,
    ),
    Case(
        name="bert",
        title="`BertClassifier`",
        twin_title="Hugging Face BertForSequenceClassification",
        model={
            "class_path": "BertClassifier",
            "init_args": {
                "vocab_size": 31,
                "max_length": LENGTH,
                "num_layers": 2,
                "num_heads": 4,
                "hidden_dim": 32,
                "mlp_dim": 64,
                "num_classes": 3,
                "dropout": 0,
            },
        },
        twin=bert,
        loss_of=classified_texts,
        arrays=lambda rows: labelled_texts(rows, LENGTH),
        entries=["tokens", "mask", "label"],
        key_map="hf_bert",
        to_fulgur=bert_names,
    ),
    Case(
        name="seq2seq",
        title="`Seq2Seq`",
        twin_title="own module",
        model={"class_path": "Seq2Seq", "init_args": {"vocabulary": 11, "embedding": 12, "hidden": 32}},
        twin=lambda: Seq2Seq(11),
        loss_of=reversed_tokens,
        arrays=lambda rows: reversals(rows, 6, 11),
        entries=["source", "target"],
    ),
]
