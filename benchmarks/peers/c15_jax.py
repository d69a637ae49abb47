"""C15, JAX: one jitted function of loss, gradients and AdamW, with donated buffers, on one thread."""

import json
import os

os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
os.environ["JAX_PLATFORMS"] = "cpu"
os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
from c15_nets import (  # noqa: E402
    BATCHES,
    CELL_INPUTS,
    CELL_WIDTH,
    INPUTS,
    RATE,
    SIDE,
    WIDTH,
    arguments,
    report_of,
    weight,
)


def linear(p, name, x):
    return x @ p[f"{name}.weight"].T + p[f"{name}.bias"]


def layers(p, prefix, count, x):
    for i in range(count):
        x = linear(p, f"{prefix}.layer{i}", x if i == 0 else jax.nn.relu(x))
    return x


def cross_entropy(logits, y):
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), y[..., None], axis=-1))


def layer_shapes(prefix, widths):
    shapes = {}
    for i, (a, b) in enumerate(zip(widths, widths[1:])):
        shapes |= {f"{prefix}.layer{i}.weight": (b, a), f"{prefix}.layer{i}.bias": (b,)}
    return shapes


def linear_shapes(name, a, b):
    return {f"{name}.weight": (b, a), f"{name}.bias": (b,)}


def mlp(widths):
    return layer_shapes("net", widths), lambda p, x, y: cross_entropy(layers(p, "net", len(widths) - 1, x), y)


def lstm_cell(gates, c):
    i, f, g, o = jnp.split(gates, 4, axis=-1)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(c), c


def cells(_):
    shapes = linear_shapes("last", CELL_WIDTH, 1)
    for name, inputs in (("first", CELL_INPUTS), ("second", CELL_WIDTH)):
        shapes |= {f"{name}.weight_ih": (4 * CELL_WIDTH, inputs), f"{name}.weight_hh": (4 * CELL_WIDTH, CELL_WIDTH)}
        shapes |= {f"{name}.bias_ih": (4 * CELL_WIDTH,), f"{name}.bias_hh": (4 * CELL_WIDTH,)}

    def loss(p, x, y):
        def cell(name, x, state):
            gates = x @ p[f"{name}.weight_ih"].T + p[f"{name}.bias_ih"] + state[0] @ p[f"{name}.weight_hh"].T + p[f"{name}.bias_hh"]
            return lstm_cell(gates, state[1])

        def step(states, one):
            first = cell("first", one, states[0])
            return (first, cell("second", first[0], states[1])), None

        zero = (jnp.zeros((x.shape[0], CELL_WIDTH)),) * 2
        (_, (h, _)), _ = jax.lax.scan(step, (zero, zero), jnp.swapaxes(x, 0, 1))
        return jnp.mean((linear(p, "last", h) - y) ** 2)

    return shapes, loss


def lstm(_):
    shapes = {
        "lstm.weight_ih_l0": (4 * WIDTH, INPUTS),
        "lstm.weight_hh_l0": (4 * WIDTH, WIDTH),
        "lstm.bias_ih_l0": (4 * WIDTH,),
        "lstm.bias_hh_l0": (4 * WIDTH,),
    } | linear_shapes("last", WIDTH, 1)

    def loss(p, x, y):
        given = x @ p["lstm.weight_ih_l0"].T + p["lstm.bias_ih_l0"]

        def cell(state, one):
            h, c = state
            return lstm_cell(one + h @ p["lstm.weight_hh_l0"].T + p["lstm.bias_hh_l0"], c), None

        zero = jnp.zeros((x.shape[0], WIDTH))
        (h, _), _ = jax.lax.scan(cell, (zero, zero), jnp.swapaxes(given, 0, 1))
        return jnp.mean((linear(p, "last", h) - y) ** 2)

    return shapes, loss


def conv(_):
    shapes = {"first.weight": (8, 1, 3, 3), "first.bias": (8,), "second.weight": (16, 8, 3, 3), "second.bias": (16,)}
    shapes |= linear_shapes("last", SIDE * SIDE, 10)

    def layer(p, name, x):
        x = jax.lax.conv_general_dilated(x, p[f"{name}.weight"], (1, 1), "SAME") + p[f"{name}.bias"][:, None, None]
        return jax.lax.reduce_window(jax.nn.relu(x), -jnp.inf, jax.lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")

    def loss(p, x, y):
        x = layer(p, "second", layer(p, "first", x))
        return cross_entropy(linear(p, "last", x.reshape(x.shape[0], -1)), y)

    return shapes, loss


def dqn(widths):
    count = len(widths) - 1
    shapes = layer_shapes("online", widths) | layer_shapes("target", widths)

    def loss(p, state, action, reward, following, goes_on):
        expected = reward + goes_on * layers(p, "target", count, following).max(1) * 0.99
        values = jnp.take_along_axis(layers(p, "online", count, state), action, axis=1)[:, 0]
        error = jnp.abs(values - jax.lax.stop_gradient(expected))
        return jnp.mean(jnp.where(error < 1, 0.5 * error**2, error - 0.5))

    return shapes, loss


def gpt(widths):
    classes, tokens, blocks, heads, c = widths
    shapes = {"gpt.transformer.wte.weight": (classes, c), "gpt.transformer.wpe.weight": (4 * tokens, c)}
    norms = ["gpt.transformer.ln_f"]
    for b in range(blocks):
        block = f"gpt.transformer.h.{b}"
        norms += [f"{block}.ln_1", f"{block}.ln_2"]
        for name, a, b_out in (("attn.c_attn", c, 3 * c), ("attn.c_proj", c, c), ("mlp.c_fc", c, 4 * c), ("mlp.c_proj", 4 * c, c)):
            shapes |= linear_shapes(f"{block}.{name}", a, b_out)
    for name in norms:
        shapes |= {f"{name}.weight": (c,), f"{name}.bias": (c,)}

    def norm(p, name, x):
        x = x - x.mean(-1, keepdims=True)
        return x / jnp.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * p[f"{name}.weight"] + p[f"{name}.bias"]

    def loss(p, x, y):
        n, mask = x.shape[0], jnp.tril(jnp.ones((tokens, tokens), bool))
        h = p["gpt.transformer.wte.weight"][x] + p["gpt.transformer.wpe.weight"][:tokens]
        for b in range(blocks):
            block = f"gpt.transformer.h.{b}"
            parts = jnp.split(linear(p, f"{block}.attn.c_attn", norm(p, f"{block}.ln_1", h)), 3, axis=-1)
            q, k, v = (part.reshape(n, tokens, heads, -1).transpose(0, 2, 1, 3) for part in parts)
            scores = jnp.where(mask, q @ k.transpose(0, 1, 3, 2) / jnp.sqrt(c // heads), -jnp.inf)
            mixed = (jax.nn.softmax(scores) @ v).transpose(0, 2, 1, 3).reshape(n, tokens, c)
            h = h + linear(p, f"{block}.attn.c_proj", mixed)
            inner = jax.nn.gelu(linear(p, f"{block}.mlp.c_fc", norm(p, f"{block}.ln_2", h)), approximate=False)
            h = h + linear(p, f"{block}.mlp.c_proj", inner)
        return cross_entropy(norm(p, "gpt.transformer.ln_f", h) @ p["gpt.transformer.wte.weight"].T, y)

    return shapes, loss


def train(kind, widths, batches, steps, measured):
    shapes, loss_of = {"mlp": mlp, "lstm": lstm, "cells": cells, "conv": conv, "dqn": dqn, "gpt": gpt}[kind](widths)
    params = {name: jnp.asarray(weight(name, shapes[name], float(i))) for i, name in enumerate(sorted(shapes))}
    fixed = {name: params.pop(name) for name in list(params) if name.startswith("target.")}
    state = {"m": jax.tree.map(jnp.zeros_like, params), "v": jax.tree.map(jnp.zeros_like, params), "t": jnp.zeros(())}

    def step(params, fixed, state, batch):
        fixed = {name: value + 0.005 * (params["online" + name[6:]] - value) for name, value in fixed.items()}
        loss, grads = jax.value_and_grad(lambda p: loss_of(p | fixed, *batch))(params)
        t = state["t"] + 1
        m = jax.tree.map(lambda a, g: 0.9 * a + 0.1 * g, state["m"], grads)
        v = jax.tree.map(lambda a, g: 0.999 * a + 0.001 * g * g, state["v"], grads)
        rate, root = RATE / (1 - 0.9**t), jnp.sqrt(1 - 0.999**t)
        update = lambda p, a, b: p * (1 - RATE * 0.01) - rate * a / (jnp.sqrt(b) / root + 1e-8)  # noqa: E731
        return jax.tree.map(update, params, m, v), fixed, {"m": m, "v": v, "t": t}, loss

    step = jax.jit(step, donate_argnums=(0, 1, 2))
    batches = [tuple(jnp.asarray(part) for part in batch) for batch in batches]
    for i in range(steps):
        params, fixed, state, loss = step(params, fixed, state, batches[i % BATCHES])
        measured.see(i, loss)


def predict(_, widths, batches, steps, measured):
    shapes = layer_shapes("net", widths)
    params = {name: jnp.asarray(weight(name, shapes[name], float(i))) for i, name in enumerate(sorted(shapes))}
    output_of = jax.jit(lambda p, x: layers(p, "net", len(widths) - 1, x))
    batches = [jnp.asarray(batch[0]) for batch in batches]
    for i in range(steps):
        measured.see_prediction(i, output_of(params, batches[i % BATCHES]))


def main():
    args = arguments()
    with open(args.report, "w", encoding="utf-8") as file:
        json.dump(report_of(train, predict, args.divide), file)


main()
