"""Back-propagation through time beside an eager PyTorch loop that does the same work.

    python benchmarks/bptt.py                 one gradient of 400 particles x 5 models x 30 steps, on half-cheetah

The loop has the same networks and the same noise, and its gradient must be ours. PyTorch is no part of this library;
without it (pip install torch==2.13.0) only our own time and memory are told.
"""

import argparse
import time
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from cdpo.dynamics.calibration import Calibration
from cdpo.dynamics.ensemble import Ensemble, EnsembleSettings
from cdpo.dynamics.models import Belief, ModelSet, sampled_models
from cdpo.solvers.base import Objective, Trust
from cdpo.solvers.bptt import BPTT, BPTTSettings
from cdpo.solvers.policy import Policy
from cdpo.tasks import TASKS

TASK = TASKS["half-cheetah"]
MODELS, DISCOUNT = 5, 0.99
KEY = jax.random.key(0)
Gradient = list[np.ndarray]


def untrained(settings: EnsembleSettings) -> ModelSet:
    """Models that nothing has been learned by."""
    ensemble, size = Ensemble.create(TASK, settings, KEY), TASK.observations
    anywhere = jnp.array([-jnp.inf, jnp.inf])
    range_ = jnp.broadcast_to(anywhere[:, None], (2, size))
    calibration = Calibration.none(size)
    belief = Belief(ensemble, calibration, range_, anywhere, jnp.asarray(False), TASK)
    return sampled_models(belief, MODELS, "subset", KEY)


def problem(particles: int, horizon: int) -> tuple[BPTT, Policy, ModelSet, Trust, jax.Array]:
    """Untrained networks of the default sizes, half a step inside a trust region, and where rollouts begin."""
    models = untrained(EnsembleSettings())
    solver = BPTT(BPTTSettings(kind="svg", horizon=horizon, particles=particles))
    inputs, hidden = models.belief.ensemble.inputs, solver.settings.hidden
    policy, centre = (Policy.create(TASK, inputs, hidden, jax.random.fold_in(KEY, i)) for i in (1, 2))
    blank = jnp.zeros((4, TASK.observations))
    trust = Trust.around(centre, blank, blank, jnp.ones(()))
    begin = 0.1 * jax.random.normal(KEY, (MODELS, particles, TASK.observations))
    return solver, policy, models, trust, begin


def ours(particles: int, horizon: int) -> tuple[Callable[[], Gradient], int]:
    """A call for the gradient, and the bytes that its program needs beside its arguments."""
    solver, policy, models, trust, begin = problem(particles, horizon)
    state, objective = solver.begin(policy, MODELS, KEY), Objective(DISCOUNT, trust)

    @jax.jit
    def gradient(net, models, begin):
        return eqx.filter_grad(solver.lagrangian, has_aux=True)(net, policy, state, models, objective, begin, KEY)[0]

    program = gradient.lower(policy.net, models, begin).compile()
    bytes_ = program.memory_analysis().temp_size_in_bytes
    return lambda: [np.asarray(leaf) for leaf in jax.tree.leaves(program(policy.net, models, begin))], bytes_


def theirs(particles: int, horizon: int) -> Callable[[], Gradient]:
    """The same gradient by PyTorch, one operation after the other."""
    import torch

    solver, policy, models, trust, begin = problem(particles, horizon)
    task, belief = models.belief.task, models.belief

    def tensors(tree) -> list:
        return [torch.from_numpy(np.array(leaf)) for leaf in jax.tree.leaves(tree)]

    def perceptron(parameters: list, activation: Callable) -> Callable:
        half = len(parameters) // 2
        layers = list(zip(parameters[:half], parameters[half:], strict=True))

        def call(x):
            for weight, bias in layers[:-1]:
                x = activation(x @ weight + bias.unsqueeze(-2))
            return x @ layers[-1][0] + layers[-1][1].unsqueeze(-2)

        return call

    def soft_clip(x, low: float, high: float):
        middle, half = (low + high) / 2, (high - low) / 2
        return middle + half * torch.tanh((x - middle) / half)

    def gaussian(net: Callable, state):
        mean, raw = net(state).chunk(2, dim=-1)
        return soft_clip(mean, -2.5, 2.5), soft_clip(raw, -5.0, 1.0)

    own = [each.requires_grad_() for each in tensors(policy.net)]
    acts, centre = (perceptron(each, torch.relu) for each in (own, tensors(trust.centre.net)))
    silu = torch.nn.functional.silu
    reference = perceptron(tensors(models.reference), silu)
    heads = perceptron(tensors(belief.ensemble.net.member(models.heads[:, 0])), silu)
    gain = torch.from_numpy(np.array(models.gain[:, 0, None]))
    first = torch.from_numpy(np.array(begin))
    shape = (*begin.shape[:-1], task.actions)
    keys = [jax.random.split(key)[0] for key in jax.random.split(KEY, horizon)]
    noise = [torch.from_numpy(np.array(jax.random.normal(key, shape))) for key in keys]
    deviation = np.log(solver.settings.deviation)

    def gradient() -> Gradient:
        state, total, off, spent, weight, weights = first, 0.0, 0.0, 0.0, 1.0, 0.0
        for draw in noise:
            mean, log = gaussian(acts, state)
            action = torch.tanh(mean + torch.exp(log) * draw)
            seen = torch.cat([state, action], dim=-1)
            change = reference(seen)
            state_after = state + change + gain * (heads(seen) - change)
            reward = state_after[..., 0] - 0.1 * (action**2).sum(dim=-1)
            middle, width = gaussian(centre, state)
            kl = (
                0.5 * (torch.exp(2 * (log - width)) + ((mean - middle) / torch.exp(width)) ** 2 - 1) + width - log
            ).sum(-1)
            kl = torch.where(kl < 1.6, kl, 2 * torch.sqrt(1.6 * kl.clamp(min=1.6)) - 1.6)
            total, spent = total + weight * reward.mean(), spent + weight * kl.mean()
            off = off + weight * ((log - deviation) ** 2).mean()
            weight, weights, state = weight * DISCOUNT, weights + weight, state_after
        loss = (spent + off - total) / weights / 2  # the multiplier is one
        return [each.numpy() for each in torch.autograd.grad(loss, own)]

    return gradient


def best_of(repeats: int, *works: Callable[[], object]) -> list[float]:
    """Seconds of the fastest repeat of each, taken in turns; the first calls do not count."""
    times: list[list[float]] = [[] for _ in works]
    for _ in range(1 + repeats):
        for work, known in zip(works, times, strict=True):
            began = time.perf_counter()
            work()
            known.append(time.perf_counter() - began)
    return [min(known[1:]) for known in times]


def main() -> None:
    """Print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--particles", type=int, default=400)
    parser.add_argument("--horizon", type=int, default=30)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    size = options.particles, options.horizon
    print(f"a gradient of {size[0]} particles x {MODELS} models x {size[1]} steps on half-cheetah")
    gradient, bytes_ = ours(*size)
    try:
        other = theirs(*size)
    except ModuleNotFoundError:
        [seconds] = best_of(options.repeats, gradient)
        print(f"  ours {seconds * 1e3:.0f} ms, {bytes_ / 2**20:.0f} MiB; PyTorch is not installed, nothing beside it")
        return
    for a, b in zip(gradient(), other(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-2, atol=1e-4 * np.abs(b).max(), err_msg="not the same work")
    mine, eager = best_of(options.repeats, gradient, other)
    print(f"  ours {mine * 1e3:.0f} ms, {bytes_ / 2**20:.0f} MiB; eager PyTorch {eager * 1e3:.0f} ms,"
          f" {mine / eager:.2f} times its time")  # fmt: skip


if __name__ == "__main__":
    main()
