"""PSRL on the chain in plain NumPy, one seed, one step at a time: how the tabular studies are usually written.

It shares no code with the library and is the yardstick of the benchmark.
"""

import numpy as np


def run(size: int, steps: int, seed: int, discount: float = 0.9) -> float:
    """Total reward of PSRL with the library's priors, planning every size + 1 steps."""
    rng = np.random.default_rng(seed)
    delta = 0.1 * np.exp(-size / 4)
    count = np.zeros((size, 2, size))
    total = np.zeros_like(count)
    squares = np.zeros_like(count)
    policy = np.zeros(size, int)
    state, earned = 0, 0.0
    for step in range(steps):
        if step % (size + 1) == 0:
            policy = _plan(rng, count, total, squares, discount, policy)
        right = policy[state] == 1
        slips = right and rng.random() < 1 / size
        if right and not slips:
            successor = state + 1 if state < size - 1 else 0
            mean = 1.0 if state == size - 1 else -delta
        else:
            successor = max(state - 1, 0)
            mean = -delta if right else 0.0
        reward = rng.normal(mean, delta)
        cell = (state, policy[state], successor)
        count[cell] += 1
        total[cell] += reward
        squares[cell] += reward**2
        earned += reward
        state = successor
    return earned


def _plan(
    rng: np.random.Generator,
    count: np.ndarray,
    total: np.ndarray,
    squares: np.ndarray,
    discount: float,
    policy: np.ndarray,
) -> np.ndarray:
    """Draw a model from the posterior and solve it by policy iteration."""
    size = len(policy)
    average = total / np.maximum(count, 1)
    strength, shape = 4 + count, 3 + count / 2
    rate = 3 + (squares - count * average**2) / 2 + 4 * count * average**2 / (2 * strength)
    precision = rng.gamma(shape, 1 / rate)
    mean = rng.normal(total / strength, 1 / np.sqrt(strength * precision))
    transition = np.stack([[rng.dirichlet(1 + count[s, a]) for a in range(2)] for s in range(size)])
    reward = (transition * mean).sum(axis=-1)
    states = np.arange(size)
    for _ in range(100):
        value = np.linalg.solve(np.eye(size) - discount * transition[states, policy], reward[states, policy])
        q = reward + discount * transition @ value
        better = np.where(q.max(axis=1) > q[states, policy] + 1e-9, q.argmax(axis=1), policy)
        if (better == policy).all():
            break
        policy = better
    return policy
