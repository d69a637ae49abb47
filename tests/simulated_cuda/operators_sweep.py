#!/usr/bin/env python3
"""Every operator that LibTorch's own tests have samples of, with gradients, on simulated CUDA and on the CPU: the same
results and dtypes, or a refusal in one line that is expected (REFUSED). Of what draws random numbers only shapes and dtypes are compared.

    scripts/simulated_gpu.sh <a Python with torch 2.11.0> tests/simulated_cuda/operators_sweep.py [samples of each] [pattern of names]

Each operator has its own process, since a failed device stays failed.
"""

import os
import re
import sys
import types
import unittest
import warnings

try:
    import numpy  # noqa: F401  samples need it
    import torch
except ImportError:
    print("skipped: this Python has no torch or no numpy")
    sys.exit(4)

# LibTorch's samples lie beside helpers for its tests, which import this package; nothing of it is used here.
expecttest = types.ModuleType("expecttest")
expecttest.TestCase = unittest.TestCase
sys.modules.setdefault("expecttest", expecttest)
from torch.testing._internal.common_methods_invocations import op_db  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_flatten, tree_map  # noqa: E402

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
TOLERANCES = {torch.float16: 5e-2, torch.bfloat16: 1e-1}
# Operators of a sparse layout, and what the refusal says.
REFUSED = {"sparse.sampled_addmm": "simulated CUDA computes strided dense tensors only", "sparse.mm": "Could not run"}
# CUDA has no kernel for the dtype either.
NOT_ON_A_GPU = re.compile(r'"\w+_cuda\w*" not implemented for')
# Memory as it came; eigenvectors up to a phase; products that overflow float16; samples that are views of a larger storage, or must stay on the CPU; a random start inside.
NOT_COMPARABLE = re.compile(r"(new_)?empty(_like|_strided|_permuted)?|as_strided|tensor_split|svd_lowrank|pca_lowrank|linalg\.eig|masked\.prod")
# What they save for the backward is another on a GPU: only the first result is the caller's.
SAVES_OTHERS = {"native_batch_norm", "_native_batch_norm_legit", "_batch_norm_with_update", "native_layer_norm"}
torch.set_num_threads(1)
torch.cuda._is_in_bad_fork = lambda: False
warnings.simplefilter("ignore")


class SeesRandom(TorchDispatchMode):
    seen = False

    def __torch_dispatch__(self, func, _, args=(), kwargs=None):
        self.seen |= torch.Tag.nondeterministic_seeded in func.tags
        return func(*args, **(kwargs or {}))


def results(op, sample, device, with_gradients):
    def moved(value):
        if isinstance(value, torch.Tensor):
            return value.detach().to(device).requires_grad_(value.requires_grad and with_gradients)
        return torch.device(device) if isinstance(value, torch.device) else value

    args, kwargs = tree_map(moved, ((sample.input, *sample.args), sample.kwargs))
    if "device" in kwargs:
        kwargs["device"] = device
    leaves = [t for t in tree_flatten((args, kwargs))[0] if isinstance(t, torch.Tensor) and t.requires_grad]
    out = op.op(*args, **kwargs)
    found = tree_flatten(out)[0]
    if op.name in SAVES_OTHERS:
        found = found[:1]
    made = [t for t in found if isinstance(t, torch.Tensor) and t.requires_grad]
    if made and leaves:
        found = found + list(torch.autograd.grad(made, leaves, [torch.full_like(t, 0.5) for t in made], allow_unused=True))
    return [r.detach().cpu() if isinstance(r, torch.Tensor) else r for r in found]


def difference(expected, got, random):
    for i, (a, b) in enumerate(zip(expected, got)):
        if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor) or a.layout != torch.strided:
            continue
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"result {i} is {tuple(b.shape)} of {b.dtype}, the CPU's {tuple(a.shape)} of {a.dtype}"
        tolerance = TOLERANCES.get(a.dtype, 1e-4)
        if not random and not torch.allclose(a, b, tolerance, tolerance, equal_nan=True):
            return f"result {i} differs"
    return None


def problems(op, count):
    for dtype in DTYPES:
        if dtype not in op.dtypes or dtype not in op.dtypesIfCUDA:
            continue
        gradients = op.supports_autograd
        samples = list(op.sample_inputs("cpu", dtype, requires_grad=gradients))
        for number in range(0, len(samples), max(1, len(samples) // count)):
            sample = samples[number]
            text = f"{op.name} {op.variant_test_name} {dtype} sample {number}: "
            try:
                with SeesRandom() as mode:
                    expected = results(op, sample, "cpu", gradients)
            except Exception:
                continue  # no kernel of the CPU for this sample
            try:
                got = results(op, sample, "cuda", gradients)
            except Exception as error:
                line = str(error).split("\n")[0]
                if not (op.name in REFUSED and REFUSED[op.name] in line) and not NOT_ON_A_GPU.search(line):
                    yield text + f"{type(error).__name__}: {line}"
                if "CUDA error" in line:
                    return
                continue
            found = difference(expected, got, mode.seen)
            if found:
                yield text + found


def main():
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 6
    pattern = re.compile(sys.argv[2] if len(sys.argv) > 2 else "")
    failed = compared = 0
    for op in op_db:
        if NOT_COMPARABLE.fullmatch(op.name) or not pattern.search(op.name):
            continue
        compared += 1
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            bad = 0
            try:
                for problem in problems(op, count):
                    print(problem, flush=True)
                    bad = 1
            except Exception as error:
                print(f"{op.name}: {type(error).__name__}: {error}", flush=True)
                bad = 1
            os._exit(bad)
        status = os.waitpid(child, 0)[1]
        if os.WIFSIGNALED(status):
            print(f"{op.name}: signal {os.WTERMSIG(status)}")
        failed += status != 0
    print(f"{compared} operators, {failed} with problems")
    sys.exit(failed > 0 or compared == 0)


if __name__ == "__main__":
    main()
