#!/usr/bin/env python3
"""The Python side of the tests that exchange weights.

    pytorch_exchange.py write FOLDER    writes what C++ is to read; tests/checkpoint/fixtures/pytorch was made so
    pytorch_exchange.py check FOLDER    reads what C++ wrote: ours.pt and ours.safetensors; fails where a value differs

Ends with 77 where this Python has no torch or no safetensors.
"""
import collections
import os
import sys

try:
    import torch
    from safetensors.torch import load_file, save_file
except ImportError:
    sys.exit(77)

DTYPES = ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64", "uint16", "uint32", "uint64",
          "float8_e4m3fn", "float8_e5m2"]
COMPLEX = ["complex64", "complex128"]


def plain():
    """One tensor of each dtype, and the shapes that are easily forgotten."""
    out = collections.OrderedDict()
    for name in DTYPES + COMPLEX:
        out["dtype." + name] = torch.arange(6).reshape(2, 3).to(getattr(torch, name))
    out["scalar"] = torch.tensor(0.1, dtype=torch.float64)
    out["empty"] = torch.zeros(0, 4)
    out["nan"] = torch.tensor([float("nan"), float("inf"), -0.0])
    return out


def views():
    """Tensors that share memory and lie in it with strides."""
    base = torch.arange(12, dtype=torch.float32)
    return {
        "base": base,
        "row": base.reshape(3, 4)[1],
        "transposed": base.reshape(3, 4).t(),
        "every_third": base[1::3],
        "expanded": base[2:3].expand(2, 3),
        "parameter": torch.nn.Parameter(base[:2]),
        "empty_at_end": base[12:],
    }


def network():
    """A state dict with BatchNorm's buffers and a tied weight, after a step in training mode."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 4, bias=False))
    net[2].weight = net[0].weight
    net(torch.arange(8.0).reshape(2, 4))
    return net.state_dict()


def lightning():
    """What Lightning 2 keeps around the weights."""
    return {
        "epoch": 1, "global_step": 20, "pytorch-lightning_version": "2.6.6",
        "state_dict": collections.OrderedDict((("model." + k, v) for k, v in network().items())),
        "loops": {"fit_loop": {"state_dict": {}, "epoch_progress": {"total": {"ready": 2, "completed": 1}}}},
        "callbacks": {"ModelCheckpoint{'monitor': 'loss'}": {"best_model_score": torch.tensor(0.5), "best_k_models": {"a.ckpt": torch.tensor(0.5)}, "last_model_path": ""}},
        "optimizer_states": [{"state": {0: {"step": torch.tensor(20.0), "exp_avg": torch.zeros(4, 4)}}, "param_groups": [{"lr": 1e-3, "betas": (0.9, 0.999), "params": [0]}]}],
        "lr_schedulers": [{"milestones": collections.Counter([3]), "base_lrs": [1e-3], "big": 2**70}],
        "hparams_name": "kwargs", "hyper_parameters": {"hidden": [8, 8], "dropout": 0.1, "size": torch.Size([2, 3]), "device": torch.device("cpu")},
    }


def lazy():
    """Views whose values are those of their storage, conjugated or negated."""
    pairs = torch.arange(4, dtype=torch.float32).reshape(2, 2)
    return {"conjugated": torch.view_as_complex(pairs).conj(), "negated": torch.view_as_complex(pairs.clone()).conj().imag}


def write(folder):
    for protocol in (3, 4, 5):
        torch.save(network(), os.path.join(folder, f"protocol{protocol}.pt"), pickle_protocol=protocol)
    torch.save(lazy(), os.path.join(folder, "lazy.pt"))
    torch.save(plain(), os.path.join(folder, "plain.pt"))
    torch.save(views(), os.path.join(folder, "views.pt"))
    torch.save(network(), os.path.join(folder, "network.pt"))
    torch.save(lightning(), os.path.join(folder, "lightning.ckpt"))
    torch.save({"module": torch.nn.Linear(2, 2)}, os.path.join(folder, "whole_module.pt"))
    torch.save(network(), os.path.join(folder, "legacy.pt"), _use_new_zipfile_serialization=False)
    save_file({k: v for k, v in plain().items() if not v.is_complex()}, os.path.join(folder, "plain.safetensors"))


def same(a, b):
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    # Bits: NaN equals itself, and -0.0 is not 0.0.
    flat_a, flat_b = a.contiguous().reshape(-1), b.contiguous().reshape(-1)
    return a.numel() == 0 or torch.equal(flat_a.view(torch.uint8), flat_b.view(torch.uint8))


def check(folder):
    expected = plain()
    for mmap in (False, True):
        got = torch.load(os.path.join(folder, "ours.pt"), weights_only=True, mmap=mmap)
        assert list(got) == list(expected) + ["tied"], list(got)
        for name, value in expected.items():
            assert same(got[name], value), name
        assert got["tied"].data_ptr() == got["dtype.float32"].data_ptr()
    got = load_file(os.path.join(folder, "ours.safetensors"))
    expected = {k: v for k, v in expected.items() if not v.is_complex()}
    assert set(got) == set(expected), set(got) ^ set(expected)
    for name, value in expected.items():
        assert same(got[name], value), name


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in ("write", "check"):
        sys.exit(__doc__)
    {"write": write, "check": check}[sys.argv[1]](sys.argv[2])
