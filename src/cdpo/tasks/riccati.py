"""The linear-quadratic regulator: the best that can be done in a linear system, in closed form.

A return is minus the sum of costs, not discounted. `start` is E[s s'] over the states in which episodes begin, [n, n].
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

_SETTLED = 1e-13  # of the largest entry: the change at which a Riccati iteration has come to rest
_STEPS = 10_000  # after which it never will


class System(NamedTuple):
    """s' = A s + B a + w with w ~ N(0, noise^2 I), where a step costs s'Qs + a'Ra."""

    A: np.ndarray  # [n, n]
    B: np.ndarray  # [n, m]
    Q: np.ndarray  # [n, n]
    R: np.ndarray  # [m, m]
    noise: float

    def cost(self, state: np.ndarray, action: np.ndarray) -> float:
        """Of one step, from [n] and [m]."""
        return float(state @ self.Q @ state + action @ self.R @ action)

    def step(self, state: np.ndarray, action: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """The next state [n], from [n], [m] and standard normal noise [n]."""
        following: np.ndarray = self.A @ state + self.B @ action + self.noise * noise
        return following


def backward(system: System, ahead: np.ndarray, discount: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """One step of Riccati's recursion: the best gain K [m, n], a = -K s, and P of the cost to go s'Ps, [n, n].

    `ahead` is the P of the step after.
    """
    A, B, Q, R, _ = system
    gain = np.linalg.solve(R + discount * B.T @ ahead @ B, discount * B.T @ ahead @ A)
    here = Q + discount * A.T @ ahead @ (A - B @ gain)
    return gain, (here + here.T) / 2


def finite(system: System, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """The best gains [steps, m, n] of an episode, first step first, and its P [steps + 1, n, n]; the last is zero."""
    gains, ahead = [], [np.zeros_like(system.Q)]
    for _ in range(steps):
        gain, here = backward(system, ahead[-1])
        gains.append(gain)
        ahead.append(here)
    return np.array(gains[::-1]), np.array(ahead[::-1])


def stationary(system: System, discount: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """The best gain [m, n] for discounted costs that never end, and its P [n, n], the fixed point of `backward`."""
    ahead = np.zeros_like(system.Q)
    with np.errstate(over="ignore", invalid="ignore"):  # of a system that cannot be held, which is told below
        for _ in range(_STEPS):
            gain, here = backward(system, ahead, discount)
            change = np.max(np.abs(here - ahead))
            if np.isfinite(change) and change <= _SETTLED * np.max(np.abs(here)):
                return gain, here
            ahead = here
    raise ValueError("Riccati's recursion does not come to rest: the system cannot be held")


def optimal_return(system: System, start: np.ndarray, steps: int) -> float:
    """Expected return of the best policy over an episode: -(tr(P_0 E[s s']) + noise^2 sum over t of tr(P_{t+1}))."""
    _, ahead = finite(system, steps)
    return -float(np.trace(ahead[0] @ start) + system.noise**2 * np.trace(ahead[1:], axis1=1, axis2=2).sum())


def linear_return(system: System, start: np.ndarray, gains: Iterable[np.ndarray], deviation: float = 0.0) -> float:
    """Expected return of a_t = -K_t s_t + deviation * normal noise, for gains [steps, m, n]: by second moments."""
    A, B, Q, R, noise = system
    moment, total = start, 0.0
    drive = noise**2 * np.eye(len(A)) + deviation**2 * B @ B.T
    for gain in gains:
        total += np.trace((Q + gain.T @ R @ gain) @ moment) + deviation**2 * np.trace(R)
        closed = A - B @ gain
        moment = closed @ moment @ closed.T + drive
    return -float(total)
