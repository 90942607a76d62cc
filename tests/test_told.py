import dataclasses
from dataclasses import dataclass
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
import pytest

from cdpo.agents import CDPO, HUCRL
from cdpo.dynamics.ensemble import EnsembleSettings
from cdpo.errors import UserError
from cdpo.solvers.actor_critic import ActorCriticSettings
from cdpo.solvers.bptt import BPTTSettings
from cdpo.solvers.dyna import DynaSettings
from cdpo.solvers.mpc import MPCSettings
from cdpo.solvers.mpo import MPOSettings
from cdpo.solvers.ppo import PPOSettings
from cdpo.solvers.sac import SACSettings
from cdpo.solvers.trpo import TRPOSettings
from cdpo.told import Told


@dataclass(frozen=True)
class Some(Told, shaping=("share",)):
    word: str = "a"
    count: int = 3
    rate: float = 0.5
    share: float = 0.25

    def __post_init__(self):
        if not self.rate > 0:
            raise ValueError("rate")


def test_numbers_are_leaves_and_words_counts_and_what_shapes_are_structure():
    assert jax.tree.leaves(Some()) == [0.5]
    same = jax.tree.structure(Some())
    assert jax.tree.structure(Some(rate=7.0)) == same
    for other in (Some(word="b"), Some(count=4), Some(share=0.5)):
        assert jax.tree.structure(other) != same


@pytest.mark.parametrize(
    "one",
    [
        Some("b", 4, 0.1),
        CDPO(kl=0.3),
        HUCRL(beta=2.0),
        DynaSettings(),
        SACSettings(),
        MPOSettings(),
        PPOSettings(),
        TRPOSettings(),
        ActorCriticSettings(),
        BPTTSettings(),
        MPCSettings(),
    ],
)
def test_a_tree_is_put_together_again(one):
    leaves, structure = jax.tree.flatten(one)
    assert jax.tree.unflatten(structure, leaves) == one
    assert type(jax.tree.unflatten(structure, leaves)) is type(one)


def test_a_program_takes_other_numbers_without_being_compiled_again():
    traced = []

    @jax.jit
    def program(some):
        traced.append(some.word)
        return some.rate * some.count

    assert [float(program(Some(rate=rate))) for rate in (1.0, 2.0)] == [3.0, 6.0]
    assert traced == ["a"]
    assert float(program(Some(word="b"))) == 1.5
    assert traced == ["a", "b"]


def test_numbers_of_several_lie_side_by_side():
    both = jax.tree.map(lambda *leaves: jnp.stack(leaves), Some(rate=1.0), Some(rate=2.0))
    assert jax.vmap(lambda some: some.rate * some.count)(both).tolist() == [3.0, 6.0]


def test_every_number_of_an_agent_is_a_leaf_but_those_that_decide_on_shapes():
    none = (
        EnsembleSettings,
        SACSettings,
        MPOSettings,
        PPOSettings,
        TRPOSettings,
        ActorCriticSettings,
        BPTTSettings,
        CDPO,
    )
    for settings, shaping in ((DynaSettings(), 1), (MPCSettings(), 1), *((kind(), 0) for kind in none)):
        floats = [field.name for field in dataclasses.fields(settings) if field.type is float]
        assert len(jax.tree.leaves(settings)) == len(floats) - shaping


@dataclass(frozen=True)
class Ranged(Told, zero=("may_be_none", "part_or_none", "few"), shares=("part_or_none", "some")):
    part: ClassVar[str] = "ranged"
    count: int = 1
    few: int = 0
    sizes: tuple[int, ...] = (1,)
    rate: float = 1.0
    may_be_none: float = 0.0
    part_or_none: float = 0.0
    some: float = 1.0
    word: Literal["one", "two"] = "one"


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"count": 0}, "ranged.count must be at least 1, not 0"),
        ({"few": -1}, "ranged.few must be at least 0, not -1"),
        ({"count": 1_000_001}, "ranged.count must be at most 1000000, not 1000001"),
        ({"sizes": (3, 0)}, r"ranged.sizes must hold sizes of at least 1 and at most 1000000, not \(3, 0\)"),
        ({"rate": 0.0}, "ranged.rate must be above 0, not 0"),
        ({"rate": float("nan")}, "ranged.rate must be a finite number, not nan"),
        ({"may_be_none": -0.5}, "ranged.may_be_none must not be negative, not -0.5"),
        ({"part_or_none": 1.5}, "ranged.part_or_none must be between 0 and 1, not 1.5"),
        ({"some": 0.0}, r"ranged.some must be in \(0, 1\], not 0"),
        ({"word": "three"}, "unknown word 'three'"),
    ],
)
def test_what_is_outside_its_range_is_told_in_one_line(wrong, told):
    with pytest.raises(UserError, match=told):
        Ranged(**wrong)


def test_ranges_are_inherited_from_every_base():
    class Other(Told, zero=("rate",)):
        pass

    @dataclass(frozen=True)
    class Both(Ranged, Other):
        pass

    assert Both(rate=0.0, may_be_none=0.0).rate == 0
    with pytest.raises(UserError, match="in \\(0, 1\\]"):
        Both(some=2.0)
