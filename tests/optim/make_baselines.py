#!/usr/bin/env python3
"""Writes baselines/optimizers.json and baselines/schedules.json with torch 2.11.0; run by hand:

    <a Python with torch 2.11.0> tests/optim/make_baselines.py

Each case names a class and the options of ours, and what torch's class gives: weights of the problem below, or rates.
The tests make ours from the same class and options.
"""

import json
import math
from pathlib import Path

import torch
from torch import optim
from torch.optim import lr_scheduler as lrs

OUT = Path(__file__).parent / "baselines"
SHOWN = (1, 10, 100, 1000)
# A line search decides by comparisons, and its history holds differences of close values: after few steps already rounding shows.
# Muon's matrices go through bfloat16, whose sums processors round differently, and each of its iterations multiplies that by 3.4.
SHOWN_SHORT = (1, 3, 10)
torch.set_num_threads(1)


# ---- the problem: two linear layers fitted to targets that move with the step (baseline_problem.h is its twin) ----
# The targets move faster than the weights can follow, so gradients stay away from 0, where RMSprop's steps are signs of rounding errors:
# a processor's rounding stays what it is over 1,000 steps. Line searches get a slow target, or each is for another problem than the last.

def table(rows, columns, seed):
    return torch.tensor([[math.sin(seed + 3 * i + 7 * j) for j in range(columns)] for i in range(rows)], dtype=torch.float64)


class Problem:
    def __init__(self, slow=False):
        self.slow = slow
        self.x, self.y = table(8, 4, 1), table(8, 5, 2)
        self.w, self.v, self.b = table(4, 3, 3), table(3, 5, 4), table(1, 5, 5)[0]
        for p in self.params():
            p.requires_grad_()

    def params(self):
        return [self.w, self.v, self.b]

    def set_gradients(self, step):
        with torch.no_grad():
            h = self.x @ self.w
            scale = math.cos(0.01 * step) if self.slow else 0.5 + math.cos(2 * step)
            r = h @ self.v + self.b - self.y * scale
            self.v.grad = h.T @ r / 8
            self.w.grad = self.x.T @ (r @ self.v.T) / 8
            self.b.grad = r.mean(0)
            return 0.5 * (r * r).sum() / 8

    def weights(self):
        return [float(f"{x:.13g}") for p in self.params() for x in p.detach().flatten().tolist()]


class Lion(optim.Optimizer):
    """Algorithm 2 of Chen et al. 2023, arXiv 2302.06675; torch has none."""

    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                m = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                c = b1 * m + (1 - b1) * p.grad
                p -= group["lr"] * (c.sign() + group["weight_decay"] * p)
                self.state[p]["exp_avg"] = b2 * m + (1 - b2) * p.grad


class MuonAndAdamW:
    """torch.optim.Muon for the matrices, AdamW for the rest."""

    def __init__(self, matrices, others, adamw, **muon):
        self.parts = [optim.Muon(matrices, **muon), optim.AdamW(others, **adamw)]

    def step(self):
        for part in self.parts:
            part.step()


def optimizer_cases():
    def case(name, options, make):
        return {"class": name, "options": options, "make": make}

    def same(name, cls, **options):
        return case(name, options, lambda p: cls(p.params(), **options))

    cases = [
        same("SGD", optim.SGD, lr=0.05),
        same("SGD", optim.SGD, lr=0.02, momentum=0.9, weight_decay=0.01),
        same("SGD", optim.SGD, lr=0.02, momentum=0.9, nesterov=True, weight_decay=0.01),
        same("SGD", optim.SGD, lr=0.05, momentum=0.8, dampening=0.3, weight_decay=0.01),
        same("SGD", optim.SGD, lr=1e-4, momentum=0.5, maximize=True),
    ]
    for name, cls in (("Adam", optim.Adam), ("AdamW", optim.AdamW)):
        cases += [
            same(name, cls, lr=0.01),
            same(name, cls, lr=0.01, betas=[0.8, 0.98], eps=1e-2, weight_decay=0.05),
            same(name, cls, lr=0.01, amsgrad=True),
            same(name, cls, lr=0.01, betas=[0.9, 0.95], amsgrad=True, eps=1e-2, weight_decay=0.05),
            same(name, cls, lr=1e-4, maximize=True),
        ]
    cases += [
        same("Adagrad", optim.Adagrad, lr=0.1),
        same("Adagrad", optim.Adagrad, lr=0.1, lr_decay=0.01, weight_decay=0.02, initial_accumulator_value=0.3, eps=1e-2),
        same("RMSprop", optim.RMSprop, lr=0.003),
        same("RMSprop", optim.RMSprop, lr=0.003, eps=1e-2),
        same("RMSprop", optim.RMSprop, lr=0.003, alpha=0.9, weight_decay=0.02, momentum=0.5),
        same("RMSprop", optim.RMSprop, lr=0.003, alpha=0.95, centered=True, momentum=0.5),
        same("RMSprop", optim.RMSprop, lr=0.003, alpha=0.95, centered=True, eps=1e-2),
        same("RMSprop", optim.RMSprop, lr=1e-4, maximize=True),
        same("Lion", Lion, lr=0.001),
        same("Lion", Lion, lr=0.001, betas=[0.95, 0.98], weight_decay=0.1),
    ]

    def groups(p):
        return optim.AdamW([{"params": [p.w], "lr": 0.003, "weight_decay": 0.5}, {"params": [p.v]}, {"params": [p.b], "weight_decay": 0.0}], lr=0.01, weight_decay=0.1)

    cases.append(case("AdamW", {"lr": 0.01, "weight_decay": 0.1, "no_decay_norm_and_bias": True,
                                "groups": [{"pattern": "w*", "lr": 0.003, "weight_decay": 0.5}]}, groups))
    muon = {"lr": 0.01, "momentum": 0.9, "weight_decay": 0.05}
    adamw = {"lr": 0.02, "weight_decay": 0.1, "betas": [0.85, 0.99]}
    cases += [
        case("Muon", {**muon, "adamw": adamw}, lambda p: MuonAndAdamW([p.w, p.v], [p.b], adamw, **muon)),
        case("Muon", {**muon, "ns_steps": 2, "adamw": adamw}, lambda p: MuonAndAdamW([p.w, p.v], [p.b], adamw, **muon, ns_steps=2)),
        case("Muon", {**muon, "nesterov": False, "adjust_lr_fn": "match_rms_adamw", "ns_steps": 3, "adamw_parameters": ["v"], "adamw": adamw},
             lambda p: MuonAndAdamW([p.w], [p.v, p.b], adamw, **muon, nesterov=False, adjust_lr_fn="match_rms_adamw", ns_steps=3)),
        same("LBFGS", optim.LBFGS, lr=0.05, max_iter=2, history_size=5),
        same("LBFGS", optim.LBFGS, max_iter=4, line_search_fn="strong_wolfe"),
    ]
    return cases


def run_optimizer(case):
    torch.manual_seed(0)
    with_closure = case["class"] == "LBFGS"
    problem = Problem(slow=with_closure)
    optimizer = case.pop("make")(problem)
    shown = SHOWN_SHORT if case["class"] in ("LBFGS", "Muon") else SHOWN
    weights = {}
    for step in range(1, shown[-1] + 1):
        if with_closure:
            optimizer.step(lambda: problem.set_gradients(step))
        else:
            problem.set_gradients(step)
            optimizer.step()
        if step in shown:
            weights[str(step)] = problem.weights()
    return {**case, "weights": weights}


# ---- schedules ----

STEPS = 400
LR, MOMENTUM = 0.3, 0.9


def metric(step):
    return (step * 7919 % 101) / 101 + 50 / (step + 1)


def warmed(factory, length, start, kind):
    """A warm-up of ours as one of torch's: then `factory` from its step 0."""
    def make(o):
        if kind == "linear":
            warm = lrs.LinearLR(o, start_factor=start, end_factor=1.0, total_iters=length)
        elif kind == "constant":
            warm = lrs.ConstantLR(o, factor=start, total_iters=length)
        else:
            warm = lrs.LambdaLR(o, lambda s: start ** (1 - s / length))
        return lrs.SequentialLR(o, [warm, factory(o)], [length])
    return make


def schedule_cases():
    def case(name, options, make):
        return {"class": name, "options": options, "make": make}

    def same(name, **options):
        return case(name, options, lambda o: getattr(lrs, name)(o, **options))

    def component(name, **options):
        return {"class_path": name, "init_args": options}

    def wsd(s, warm, stable_end, end, last, decay):
        if s < warm:
            return s / warm
        if s <= stable_end:
            return 1.0
        return last + (1 - last) * decay(min((s - stable_end) / (end - stable_end), 1.0))

    decays = {"linear": lambda x: 1 - x, "cosine": lambda x: (1 + math.cos(math.pi * x)) / 2, "sqrt": lambda x: 1 - math.sqrt(x)}
    cases = [
        same("StepLR", step_size=30, gamma=0.7),
        same("MultiStepLR", milestones=[50, 120, 300], gamma=0.5),
        same("MultiStepLR", milestones=[50, 50, 300], gamma=0.5),
        same("ExponentialLR", gamma=0.99),
        same("ConstantLR", factor=0.25, total_iters=40),
        same("LinearLR", start_factor=0.2, end_factor=0.9, total_iters=150),
        same("LinearLR", start_factor=1.0, end_factor=0.0, total_iters=300),
        same("PolynomialLR", total_iters=300, power=2.0),
        case("CosineAnnealingLR", {"t_max": 300, "eta_min": 0.01}, lambda o: lrs.CosineAnnealingLR(o, 300, 0.01)),
        case("CosineAnnealingLR", {"t_max": 80}, lambda o: lrs.CosineAnnealingLR(o, 80)),
        case("CosineAnnealingWarmRestarts", {"t_0": 50}, lambda o: lrs.CosineAnnealingWarmRestarts(o, 50)),
        case("CosineAnnealingWarmRestarts", {"t_0": 20, "t_mult": 2, "eta_min": 0.01}, lambda o: lrs.CosineAnnealingWarmRestarts(o, 20, 2, 0.01)),
        same("CyclicLR", base_lr=0.01, max_lr=0.5, step_size_up=30, step_size_down=50),
        same("CyclicLR", base_lr=0.01, max_lr=0.5, step_size_up=40, mode="triangular2", base_momentum=0.7, max_momentum=0.95),
        same("CyclicLR", base_lr=0.01, max_lr=0.5, step_size_up=40, mode="exp_range", gamma=0.995, cycle_momentum=False),
        same("OneCycleLR", max_lr=0.5, total_steps=401),
        same("OneCycleLR", max_lr=0.5, total_steps=410, pct_start=0.2, anneal_strategy="linear", div_factor=10.0, final_div_factor=50.0),
        same("OneCycleLR", max_lr=0.5, total_steps=410, three_phase=True, cycle_momentum=False),
        same("OneCycleLR", max_lr=0.5, total_steps=410, three_phase=True, base_momentum=0.6, max_momentum=0.9),
        same("ReduceLROnPlateau"),
        same("ReduceLROnPlateau", factor=0.5, patience=3, cooldown=12, min_lr=0.001, threshold=0.01),
        same("ReduceLROnPlateau", mode="max", factor=0.7, patience=2, threshold=0.1, threshold_mode="abs", eps=0.001),
        same("ReduceLROnPlateau", mode="max", factor=0.7, patience=2, threshold=0.1),
        same("ReduceLROnPlateau", factor=0.8, patience=2, threshold=0.5, threshold_mode="abs"),
        # transformers.get_inverse_sqrt_schedule after its warm-up
        case("InverseSquareRootLR", {"timescale": 40}, lambda o: lrs.LambdaLR(o, lambda s: 1 / math.sqrt((s + 40) / 40))),
    ]
    for shape, decay in decays.items():
        cases.append(case("WarmupStableDecayLR", {"warmup": 40, "decay": 100, "total_steps": 380, "decay_shape": shape, "final_factor": 0.1},
                          lambda o, d=decay: lrs.LambdaLR(o, lambda s: wsd(s, 40, 280, 380, 0.1, d))))
    cosine = component("CosineAnnealingLR", t_max=300, eta_min=0.01)
    for kind in ("linear", "constant", "exponential"):
        cases.append(case("WarmupLR", {"length": 60, "start_factor": 0.05, "kind": kind, "after": cosine},
                          warmed(lambda o: lrs.CosineAnnealingLR(o, 300, 0.01), 60, 0.05, kind)))
    cases += [
        case("WarmupLR", {"length": 60, "start_factor": 0.05, "after": component("StepLR", step_size=100, gamma=0.5)},
             warmed(lambda o: lrs.StepLR(o, 100, 0.5), 60, 0.05, "linear")),
        case("WarmupLR", {"length": 60, "start_factor": 0.05}, lambda o: lrs.LinearLR(o, 0.05, 1.0, 60)),
        case("SequentialLR", {"schedulers": [component("ConstantLR", factor=0.1, total_iters=50), component("ExponentialLR", gamma=0.99),
                                             component("LinearLR", start_factor=0.5, end_factor=0.1, total_iters=100)], "milestones": [60, 200]},
             lambda o: lrs.SequentialLR(o, [lrs.ConstantLR(o, 0.1, 50), lrs.ExponentialLR(o, 0.99), lrs.LinearLR(o, 0.5, 0.1, 100)], [60, 200])),
        case("ChainedScheduler", {"schedulers": [component("LinearLR", start_factor=0.1, total_iters=50), component("ExponentialLR", gamma=0.99),
                                                 component("StepLR", step_size=100, gamma=0.5)]},
             lambda o: lrs.ChainedScheduler([lrs.LinearLR(o, 0.1, 1.0, 50), lrs.ExponentialLR(o, 0.99), lrs.StepLR(o, 100, 0.5)], o)),
    ]
    return cases


def shown(step):
    return step <= 20 or step % 5 == 0 or step % 50 in (1, 49)


def run_schedule(case):
    optimizer = optim.SGD([torch.zeros(1, requires_grad=True)], lr=LR, momentum=MOMENTUM)
    schedule = case.pop("make")(optimizer)
    steps, rates, momenta = [], [], []
    for step in range(STEPS + 1):
        if step > 0:
            optimizer.step()
            if case["class"] == "ReduceLROnPlateau":
                schedule.step(metric(step))
            else:
                schedule.step()
        if shown(step):
            rates.append(float(optimizer.param_groups[0]["lr"]))
            momenta.append(float(optimizer.param_groups[0]["momentum"]))
    case["lr"] = rates
    if any(m != MOMENTUM for m in momenta):
        case["momentum"] = momenta
    return case


def write(name, header, cases):
    lines = ",\n".join(json.dumps(case) for case in cases)
    text = json.dumps(header)[:-1] + ', "cases": [\n' + lines + "\n]}\n"
    (OUT / name).write_text(text)
    print(name, len(text))


def main():
    OUT.mkdir(exist_ok=True)
    made_with = {"torch": torch.__version__.split("+")[0]}
    write("optimizers.json", made_with, [run_optimizer(case) for case in optimizer_cases()])
    steps = [step for step in range(STEPS + 1) if shown(step)]
    write("schedules.json", {**made_with, "initial_lr": LR, "initial_momentum": MOMENTUM, "steps": steps}, [run_schedule(case) for case in schedule_cases()])


if __name__ == "__main__":
    main()
