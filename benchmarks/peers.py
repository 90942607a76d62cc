"""SAC and PPO beside those of Stable-Baselines3 and SBX, and MPO beside Tonic's: the same environment, steps and seeds.

    python benchmarks/peers.py sac Pendulum-v1 --steps 10000 --seeds 5 --out sac-Pendulum-v1.csv

Every library trains each seed anew, and its policy's mode is judged by the same ten episodes. SAC has the settings of
Haarnoja et al. 2018 (arXiv:1812.05905), PPO those of Schulman et al. 2017 (arXiv:1707.06347) for MuJoCo, with z-scores
of observations, scaled rewards, gradients of a norm of at most 0.5 and a learning rate that falls to zero, as in
OpenAI's baselines. The other libraries are an extra (pip install 'cdpo[peers]').

MPO is each library's own: ours has its preset, Tonic's (Pardo 2020, arXiv:2011.07537) what it came with, but that it
begins to learn after 1,000 steps and not 10,000, which would be the budget. It is in the package deprl, for older
versions of what all others need: pip install --no-deps deprl; then pandas, pyyaml, termcolor and gdown.

What is left to differ: ours lives through whole episodes and learns at their end. So its SAC makes the updates of an
episode after it and not between its steps, and begins with one random episode, theirs with 100 random steps; and an
iteration of its PPO is 2,000 steps, whole episodes of the tasks here, theirs 2,048. Our last episode is the first that
reaches the budget, and is not learned from: the column `steps` tells the real ones.
"""

import argparse
import csv
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import cdpo
from cdpo.statistics import interquartile
from cdpo.tasks import Task, find_task

AGENTS = {"sac": cdpo.SAC, "ppo": cdpo.PPO, "mpo": cdpo.MPO}
LIBRARIES = {
    "sac": ("cdpo", "stable-baselines3", "sbx"),
    "ppo": ("cdpo", "stable-baselines3", "sbx"),
    "mpo": ("cdpo", "tonic"),
}
FIELDS = ("library", "agent", "environment", "seed", "steps", "return")
EPISODES, FIRST = 10, 10**6  # of an evaluation, and the seed of its first reset

Act = Callable[[np.ndarray], np.ndarray]
"""The action of a policy's mode, in the environment's units."""


def trained(library: str, agent: str, task: Task, steps: int, seed: int) -> tuple[Act, int]:
    """A policy after so many real steps, and how many there were."""
    if library == "cdpo":
        return ours(agent, task, steps, seed)
    return tonics(task, steps, seed) if library == "tonic" else theirs(library, agent, task, steps, seed)


def ours(agent: str, task: Task, steps: int, seed: int) -> tuple[Act, int]:
    """By this library, with its preset for agents without a model."""
    told: dict[str, Any] = {"loop": {"evaluate": 10**9, "evaluation_episodes": 1}}
    if agent == "ppo":
        told |= {"steps": 2000, "annealed": float(steps)}
    learner, lived = AGENTS[agent](task, seed=seed, **told), 0
    while lived < steps:
        random = not learner.episodes  # the first call makes one more
        learner.learn(episodes=max((steps - lived) // task.horizon - random, 1))
        lived = learner.records[-1]["env_steps"]
    if learner.stopped:
        raise RuntimeError(f"seed {seed} was stopped: {learner.stopped[seed]}")
    return lambda observation: learner.predict(observation, deterministic=True)[0], lived


def theirs(library: str, agent: str, task: Task, steps: int, seed: int) -> tuple[Act, int]:
    """By another library, in its own way."""
    import sbx
    import stable_baselines3
    import torch
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    torch.set_num_threads(1)
    kind = getattr(sbx if library == "sbx" else stable_baselines3, agent.upper())
    told: dict[str, Any] = {"seed": seed, "gamma": 0.99, "device": "cpu"}
    if agent == "sac":
        told |= {"learning_rate": 3e-4, "batch_size": 256, "tau": 0.005, "ent_coef": "auto", "learning_starts": 100}
        told |= {"train_freq": 1, "gradient_steps": 1, "policy_kwargs": {"net_arch": [256, 256]}}
        model = kind("MlpPolicy", task.make(), **told).learn(steps)
        return lambda observation: model.predict(observation, deterministic=True)[0], model.num_timesteps
    told |= {"learning_rate": lambda left: 3e-4 * max(left, 0.0), "n_steps": 2048, "batch_size": 64, "n_epochs": 10}
    told |= {"gae_lambda": 0.95, "clip_range": 0.2, "ent_coef": 0.0, "vf_coef": 0.5, "max_grad_norm": 0.5}
    told |= {"policy_kwargs": {"net_arch": [64, 64], "ortho_init": True}}
    scaled = VecNormalize(DummyVecEnv([task.make]), gamma=0.99)
    model = kind("MlpPolicy", scaled, **told).learn(steps)
    return (
        lambda observation: model.predict(scaled.normalize_obs(observation), deterministic=True)[0],
        model.num_timesteps,
    )


def tonics(task: Task, steps: int, seed: int) -> tuple[Act, int]:
    """By the MPO of Tonic, which knows actions from -1 to 1 and is told of a step after it."""
    import sys

    import gymnasium
    import torch

    sys.modules.setdefault("gym", gymnasium)
    from deprl.vendor.tonic import replays
    from deprl.vendor.tonic.torch import agents

    torch.set_num_threads(1)
    environment = task.make()
    box = environment.action_space
    middle, reach = (box.high + box.low) / 2, (box.high - box.low) / 2
    learner = agents.MPO(replay=replays.Buffer(size=steps, return_steps=5, steps_before_batches=1000))
    learner.initialize(environment.observation_space, box, seed=seed)
    observation, _ = environment.reset(seed=seed)
    for step in range(1, steps + 1):
        action = learner.step(np.float32(observation)[None], step)[0]
        observation, reward, terminated, truncated, _ = environment.step(middle + reach * np.clip(action, -1, 1))
        learner.update(
            observations=np.float32(observation)[None],
            rewards=np.float32([reward]),
            resets=np.array([terminated or truncated]),
            terminations=np.array([terminated]),
            steps=step,
        )
        if terminated or truncated:
            observation, _ = environment.reset()
    environment.close()

    def act(observation: np.ndarray) -> np.ndarray:
        return middle + reach * np.clip(learner.test_step(np.float32(observation)[None], steps)[0], -1, 1)

    return act, steps


def evaluated(task: Task, act: Act) -> float:
    """The mean return of episodes whose seeds are the same for everyone."""
    environment, total = task.make(), 0.0
    for number in range(EPISODES):
        observation, _ = environment.reset(seed=FIRST + number)
        over = False
        while not over:
            observation, reward, terminated, truncated, _ = environment.step(act(observation))
            total += float(reward)
            over = terminated or truncated
    environment.close()
    return total / EPISODES


def main() -> None:
    """Write the returns of all runs as they end, and print what they come to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("agent", choices=AGENTS)
    parser.add_argument("environment", help="a Gymnasium id or a task's name")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--libraries", nargs="+", help="some of those that have the agent; all, if not given")
    parser.add_argument("--out", type=Path, required=True, help="a CSV file")
    options = parser.parse_args()
    known = LIBRARIES[options.agent]
    if not set(options.libraries or known) <= set(known):
        parser.error(f"{options.agent} is compared with {', '.join(known)}")
    task = find_task(options.environment)
    returns: dict[str, list[float]] = {library: [] for library in options.libraries or known}
    with open(options.out, "w", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(FIELDS)
        for seed in range(options.seeds):
            for library in returns:
                began = time.monotonic()
                act, steps = trained(library, options.agent, task, options.steps, seed)
                result = evaluated(task, act)
                returns[library].append(result)
                rows.writerow((library, options.agent, options.environment, seed, steps, f"{result:.2f}"))
                file.flush()
                print(f"{library}, seed {seed}: {result:.1f} after {steps} steps, {time.monotonic() - began:.0f} s",
                      flush=True)  # fmt: skip
    for library, each in returns.items():
        found = interquartile(each)
        interval = "" if found.low is None else f", 95% interval {found.low:.1f} to {found.high:.1f}"
        print(f"{library}: interquartile mean {found.mean:.1f}{interval}, {found.seeds} seeds")


if __name__ == "__main__":
    main()
