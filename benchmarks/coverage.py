"""How often 95% intervals of few seeds hold the truth: the library's, and percentile bootstrap intervals beside them.

    python benchmarks/coverage.py

Each number is of 2,000 experiments with as many seeds as it says (of two agents, that many each). The mean and the
interquartile mean are of a seed's result, with these distributions; the truth is that of the population, and below four
seeds nothing is cut, so that an interquartile mean is held against what it is of many seeds all the same. The
probability is that of a seed being above one of another agent: of the same distribution further up, or of one whose
seeds are all alike ("one is steady").
"""

import argparse
from collections.abc import Callable

import numpy as np

from cdpo.statistics import improvement, interquartile_band, interquartile_mean, mean_band

Draw = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]

SEEDS = (2, 3, 6, 8, 10)
EXPERIMENTS, MANY, RESAMPLES = 2000, 400_000, 400
RESULTS: dict[str, Draw] = {
    "normal": lambda rng, shape: rng.normal(size=shape),
    "exponential": lambda rng, shape: rng.exponential(size=shape),
    "lognormal": lambda rng, shape: rng.lognormal(size=shape),
    "a fifth fail": lambda rng, shape: rng.normal(size=shape) - 10 * (rng.uniform(size=shape) < 0.2),
    "two in five fail": lambda rng, shape: rng.normal(size=shape) - 10 * (rng.uniform(size=shape) < 0.4),
    "ties (0 to 3)": lambda rng, shape: rng.integers(4, size=shape).astype(float),
}
BESIDE: dict[str, tuple[Draw, Draw]] = {
    "normal, alike": (RESULTS["normal"], RESULTS["normal"]),
    "normal, further up": (lambda rng, shape: rng.normal(1.7, size=shape), RESULTS["normal"]),
    "exponential, further up": (lambda rng, shape: rng.exponential(size=shape) + 0.7, RESULTS["exponential"]),
    "two in five fail, both": (RESULTS["two in five fail"], RESULTS["two in five fail"]),
    "one is steady": (RESULTS["normal"], lambda rng, shape: np.zeros(shape)),
    "one is steady, and below": (lambda rng, shape: rng.normal(1.7, size=shape), lambda rng, shape: np.zeros(shape)),
    "ties (0 to 3), further up": (lambda rng, shape: 1.0 + rng.integers(4, size=shape), RESULTS["ties (0 to 3)"]),
}


def covered(low: np.ndarray, high: np.ndarray, truth: float) -> float:
    """The share of intervals that hold it, but for the last bits."""
    return float(np.mean((low <= truth + 1e-9) & (truth <= high + 1e-9)))


def of_means(draw: Draw, seeds: int) -> tuple[float, float, float, float]:
    """Coverage of the mean, bootstrap and ours, and of the interquartile mean, likewise."""
    rng = np.random.default_rng(0)
    many = np.sort(draw(rng, (MANY,)))
    rows = draw(rng, (seeds, EXPERIMENTS))
    drawn = rows[rng.integers(seeds, size=(RESAMPLES, seeds))]
    found = []
    for truth, band, middle in (
        (many.mean(), mean_band, drawn.mean(axis=1)),
        (many[MANY // 4 : -MANY // 4].mean(), interquartile_band, interquartile_mean(np.moveaxis(drawn, 1, -1))),
    ):
        _, low, high = band(rows)
        found += [covered(*np.quantile(middle, (0.025, 0.975), axis=0), truth), covered(low, high, truth)]
    return found[0], found[1], found[2], found[3]


def of_probabilities(first: Draw, second: Draw, seeds: int) -> tuple[float, float]:
    """Coverage of the probability of improvement, bootstrap and ours."""
    rng = np.random.default_rng(0)
    truth = float(np.mean(wins(first(rng, (MANY, 1)), second(rng, (MANY, 1)))))
    x, y = first(rng, (EXPERIMENTS, seeds)), second(rng, (EXPERIMENTS, seeds))
    found = [improvement([a], [b]) for a, b in zip(x, y, strict=True)]
    ours = covered(np.array([each.low for each in found]), np.array([each.high for each in found]), truth)
    of_x, of_y = rng.multinomial(seeds, np.full(seeds, 1 / seeds), size=(2, RESAMPLES)) / seeds
    drawn = np.einsum("rx,exy,ry->re", of_x, wins(x, y), of_y, optimize=True)
    return covered(*np.quantile(drawn, (0.025, 0.975), axis=0), truth), ours


def wins(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Of x [e, n] and y [e, m], who wins, [e, n, m]; a tie is half a win."""
    x, y = x[:, :, None], y[:, None, :]
    return (x > y) + 0.5 * (x == y)


def table(name: str, rows: dict[str, list[tuple[float, float]]]) -> str:
    """A line for each distribution, a column for each number of seeds: bootstrap and ours."""
    head = [f"| {name} | " + " | ".join(f"{seeds} seeds" for seeds in SEEDS) + " |", "|---" * (1 + len(SEEDS)) + "|"]
    body = [f"| {of} | " + " | ".join(f"{a:.0%}, {b:.0%}" for a, b in row) + " |" for of, row in rows.items()]
    return "\n".join([*head, *body])


def main() -> None:
    """The three tables."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    both = {of: [of_means(draw, seeds) for seeds in SEEDS] for of, draw in RESULTS.items()}
    print(table("mean", {of: [(a, b) for a, b, _, _ in row] for of, row in both.items()}), "\n")
    print(table("interquartile mean", {of: [(a, b) for _, _, a, b in row] for of, row in both.items()}), "\n")
    shares = {of: [of_probabilities(*pair, seeds) for seeds in SEEDS] for of, pair in BESIDE.items()}
    print(table("probability", shares))


if __name__ == "__main__":
    main()
