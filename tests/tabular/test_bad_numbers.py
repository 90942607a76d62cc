"""Bad numbers on purpose: the seed that has them ends there, and says so."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from cdpo.tabular.agents import CDPO, Agent, Plan, Random
from cdpo.tabular.environments import Bandit
from cdpo.tabular.mdp import FiniteMDP
from cdpo.tabular.planning import Model
from cdpo.tabular.posterior import Posterior
from cdpo.tabular.simulation import simulate

UNLUCKY = 2.0  # the first arm of one of eight seeds is above


def fields(result):
    return result.reward, result.expected, result.value_gap


class Fragile(NamedTuple):
    """Memory of an agent that fails in some seeds."""

    fails: Array  # bool
    block: Array
    kept: Array


@dataclass(frozen=True)
class Failing(Agent):
    """Random actions, and from the fourth block on a NaN or an infinity in a part of what an unlucky seed has."""

    name: ClassVar[str] = "failing"
    part: str = "nothing"
    number: float = np.nan

    def begin(self, mdp, prior):
        return Fragile(mdp.reward_mean[0, 0, 0] > UNLUCKY, jnp.array(0), jnp.array(0.0))

    def plan(self, memory, state, key):
        policy = jnp.full((1, 4), 0.25)
        model = Model(jnp.ones((1, 4, 1)), self._spoiled("model", memory, jnp.zeros((1, 4))))
        plan = Plan(self._spoiled("policy", memory, policy), policy, model if self.part == "model" else None)
        return memory._replace(block=memory.block + 1), plan

    def act(self, memory, state, noise):
        return jnp.int32(4 * noise)

    def absorb(self, memory, steps):
        return memory._replace(kept=self._spoiled("memory", memory._replace(block=memory.block - 1), memory.kept))

    def _spoiled(self, part, memory, numbers):
        return jnp.where(memory.fails & (memory.block >= 3) & (self.part == part), self.number, numbers)


def failing(part, number=np.nan):
    return simulate(Bandit(4), Failing(part, number), seeds=8, steps=60, period=5)


@pytest.mark.parametrize(
    ("part", "number"),
    [("model", np.nan), ("model", np.inf), ("policy", np.nan), ("memory", np.nan), ("memory", np.inf)],
)
def test_bad_numbers_stop_their_seed_alone_and_say_what_was_bad(part, number):
    result, healthy = failing(part, number), failing("nothing")
    assert healthy.stopped == {} and all(np.isfinite(field).all() for field in fields(healthy))
    ((seed, why),) = result.stopped.items()
    assert why == f"the {part} in block 4, after 15 steps: not a finite number"
    for field, whole in zip(fields(result), fields(healthy), strict=True):
        np.testing.assert_array_equal(np.delete(field, seed, axis=0), np.delete(whole, seed, axis=0))
        np.testing.assert_array_equal(field[seed, :3], whole[seed, :3])
        assert np.isnan(field[seed, 3:]).all()


@dataclass(frozen=True)
class Spoiled(Bandit):
    """A bandit that pays, or would pay, no number in seeds whose first arm is above a mean."""

    above: float = UNLUCKY
    arms: tuple[int, ...] = (0, 1, 2, 3)

    def make(self, key):
        mdp = super().make(key)
        bad = (mdp.reward_mean[0, 0, 0] > self.above) & np.isin(np.arange(4), self.arms)[None, :, None]
        return FiniteMDP(mdp.transition, jnp.where(bad, jnp.nan, mdp.reward_mean), mdp.reward_sd)


def test_a_reward_that_is_no_number_stops_its_seed():
    result = simulate(Spoiled(4), Random(), seeds=8, steps=60, period=5)
    assert list(result.stopped.values()) == ["the reward in block 1, after 0 steps: not a finite number"]
    sound = simulate(Bandit(4), Random(), seeds=8, steps=60, period=5)
    for x, y in zip(fields(result), fields(sound), strict=True):
        np.testing.assert_array_equal(np.delete(x, list(result.stopped), 0), np.delete(y, list(result.stopped), 0))


@dataclass(frozen=True)
class Last(Random):
    """Takes the last arm for ever."""

    def policy(self, mdp):
        return jnp.eye(mdp.actions)[-1][None]


def test_a_value_that_is_no_number_stops_its_seed():
    """What is never taken is part of the value of the best policy all the same."""
    result = simulate(Spoiled(4, arms=(0,)), Last(), seeds=8, steps=60, period=5)
    assert list(result.stopped.values()) == ["the value in block 1, after 0 steps: not a finite number"]


def test_where_every_seed_is_stopped_the_run_ends_as_long_as_it_was_told():
    counted, seen = [], []
    watch = lambda done, lanes, carry: seen.append(done)  # noqa: E731
    world = Spoiled(4, above=-np.inf)
    told = {"seeds": 3, "steps": 62, "period": 5, "segment": 4}
    result = simulate(world, Random(), **told, watch=watch, progress=counted.append)
    assert list(result.stopped) == [0, 1, 2]
    assert result.reward.shape == (3, 13) and np.isnan(result.reward).all()
    assert sum(counted) == 3 * 62 and seen == [0, 20, 40, 60, 62]


def test_a_bad_model_among_those_that_cdpo_samples_stops_the_seed(monkeypatch):
    """Comparisons with it are false: unnoticed, the update would be none."""
    sample_set = Posterior.sample_set

    def spoiled(self, known, key, models):
        found = sample_set(self, known, key, models)
        return found._replace(reward=found.reward.at[-1].set(jnp.where(self.count.sum() > 5, jnp.nan, 0.0)))

    monkeypatch.setattr(Posterior, "sample_set", spoiled)
    result = simulate(Bandit(3), CDPO(models=3), seeds=2, steps=20, period=5)
    assert set(result.stopped.values()) == {"the policy in block 3, after 10 steps: not a finite number"}
