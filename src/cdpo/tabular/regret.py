"""Regret in its four forms, and stuck seeds."""

from dataclasses import dataclass

import numpy as np

from cdpo.tabular.simulation import Run


@dataclass(frozen=True)
class Regret:
    """Cumulated regrets of one run, [seeds, blocks] in float64, against the oracle's run with the same seeds."""

    ends: np.ndarray  # [blocks], steps done
    realised: np.ndarray  # the oracle's rewards minus the agent's
    expected: np.ndarray  # optimal average reward times t, minus the mean rewards of the transitions taken
    value: np.ndarray  # sum over blocks of E_start[V* - V_pi], the paper's definition
    oracle: np.ndarray  # the oracle's rewards
    average: np.ndarray  # [seeds], optimal average reward

    @property
    def normalised(self) -> np.ndarray:
        """Realised regret over the oracle's sum, [seeds]; not a number where the oracle earns nothing."""
        total = np.abs(self.oracle[:, -1])
        return np.divide(self.realised[:, -1], total, out=np.full_like(total, np.nan), where=total > 0)

    @property
    def stuck(self) -> np.ndarray:
        """[seeds] bool: the second half of the run still loses more than half of the optimal average reward."""
        middle = len(self.ends) // 2
        lost = self.expected[:, -1] - self.expected[:, middle - 1] if middle else self.expected[:, -1]
        steps = self.ends[-1] - (self.ends[middle - 1] if middle else 0)
        return lost > 0.5 * np.abs(self.average) * steps


def regret(run: Run, oracle: Run) -> Regret:
    """Regret of a run against the oracle's run with the same environment, seeds and steps."""
    reward = np.cumsum(run.reward, axis=1, dtype=np.float64)
    expected = np.cumsum(run.expected, axis=1, dtype=np.float64)
    best = np.cumsum(oracle.reward, axis=1, dtype=np.float64)
    # The oracle may have been run with another period: its sum is taken at the agent's block ends.
    times = np.concatenate([[0], oracle.ends])
    best_here = np.stack([np.interp(run.ends, times, np.concatenate([[0.0], row])) for row in best])
    return Regret(
        ends=run.ends,
        realised=best_here - reward,
        expected=run.average[:, None] * run.ends - expected,
        value=np.cumsum(run.value_gap, axis=1, dtype=np.float64),
        oracle=best_here,
        average=run.average,
    )
