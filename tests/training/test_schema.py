"""Names on disk: every array of ours has one, and it stays whatever becomes of the code."""

import dataclasses
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.stats import norm

from cdpo.agents import RULES
from cdpo.dynamics.networks import MLP
from cdpo.solvers.mpo import MPOState
from cdpo.solvers.sac import SACState
from cdpo.solvers.values import Critics
from cdpo.tasks import find_task
from cdpo.training.presets import build_settings
from cdpo.training.schema import NAMES, STEPS, names, upgraded
from cdpo.training.store import VERSION, flatten, load_arrays, restore, save_arrays

# Every rule as it is, and what else decides on what is remembered.
OTHERS: list[dict[str, Any]] = [
    {"agent": "cdpo", "reference": "average", "ensemble": {"likelihood": "gaussian"}, "dyna": {"earlier": 2}},
    *({"agent": "cdpo", "learner": learner} for learner in ("mpo", "ppo", "trpo", "actor-critic")),
    {"agent": "psrl", "solver": "bptt"},
    {"agent": "psrl", "solver": "bptt", "bptt": {"kind": "svg"}},
    {"agent": "psrl", "solver": "mpc"},
]
AGENTS = [*({"agent": rule} for rule in RULES), *OTHERS]


def mind(agent, **changes):
    """What an agent remembers, in shapes alone: nothing is compiled."""
    task = find_task("pendulum-swingup", horizon=10)
    settings = build_settings(task, agent, "default", changes)
    return jax.eval_shape(lambda key: settings.agent(task).begin(settings.hidden, key), jax.random.key(0))


def classes(tree):
    """Those of the nodes of a tree."""
    children = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda node: node is not tree)[0]
    return {type(tree)}.union(*(classes(child) for path, child in children if path))


@pytest.fixture(scope="module")
def minds():
    return [mind(**told) for told in AGENTS]


def test_every_agent_has_names_for_all_that_it_remembers_and_no_two_are_the_same(minds):
    for each in minds:
        found = names(each)
        assert len(set(found)) == len(found) == len(jax.tree.leaves(each)) > 10


def test_the_table_has_no_line_that_nothing_needs(minds):
    assert set(NAMES) <= set().union(*map(classes, minds))
    for kind, lines in NAMES.items():
        is_tuple = issubclass(kind, tuple)
        fixed = set() if is_tuple else {each.name for each in dataclasses.fields(kind) if each.metadata.get("static")}
        fields = set(kind._fields) if is_tuple else {each.name for each in dataclasses.fields(kind)}
        assert set(lines) == fields - fixed, kind
        assert len(set(lines.values())) == len(lines), kind


def test_names_are_words_joined_by_dots():
    found = names(mind("cdpo", reference="average"))
    assert {
        "model.ensemble.network.weights.0",
        "model.ensemble.target_normaliser.deviation",
        "model.calibration.noise",
        "model_optimiser.0.mu.biases.1",
        "policy.input_normaliser.mean",
        "solver.learner.target_critics.weights.0",
        "solver.learner.critic_optimiser.0.count",
        "rule.network.biases.0",
    } <= set(found)


class Before(NamedTuple):
    far: Any
    near: Any


class After(NamedTuple):  # in another order, too
    close: Any
    far: Any


def test_a_renamed_attribute_costs_one_line_and_changes_nothing_on_disk(path):
    old = {Before: {"far": "critics", "near": "targets"}}
    new = {After: {"far": "critics", "close": "targets"}}
    save_arrays(path, flatten([Before(np.ones(2), {"x": np.zeros(3)})], lambda tree: names(tree, old)), {})
    [found] = restore([After({"x": np.ones(3)}, np.zeros(2))], load_arrays(path)[0], lambda tree: names(tree, new))
    assert found.far.tolist() == [1, 1] and found.close["x"].tolist() == [0, 0, 0]


@pytest.mark.parametrize("lines", [{}, {MLP: {"weights": "weights"}}], ids=["class", "attribute"])
def test_what_is_ours_and_has_no_name_is_an_error_that_says_where_names_are_given(lines):
    net = MLP.create(jax.random.key(0), (2, 1))
    with pytest.raises(TypeError, match=r"MLP\.\w+ has no name on disk; give it one in cdpo\.training\.schema"):
        names({"net": net}, lines)


@jax.tree_util.register_pytree_node_class
class Plain:
    """A class of another's that tells no names."""

    def __init__(self, *children):
        self.children = children

    def tree_flatten(self):
        return self.children, None

    @classmethod
    def tree_unflatten(cls, _, children):
        return cls(*children)


def test_classes_of_others_need_no_registering_and_ours_within_them_have_their_names():
    class Module(eqx.Module):
        own: Any

    net = MLP.create(jax.random.key(0), (2, 1))
    tree = Module([Plain(net, jnp.ones(1)), optax.adam(0.1).init(jnp.zeros(2)), None])
    assert names(tree) == [
        "own.0.0.weights.0",
        "own.0.0.biases.0",
        "own.0.1",
        "own.1.0.count",
        "own.1.0.mu",
        "own.1.0.nu",
    ]


def test_networks_of_one_shape_do_not_change_places():
    for kind, expected in [
        (SACState, {"critics": "critics", "targets": "target_critics"}),
        (MPOState, {"critics": "critics", "targets": "target_critics", "proposing": "proposal"}),
        (Critics, {"nets": "networks", "targets": "target_networks"}),
    ]:
        found = flatten(kind(**{name: np.array(name == "targets") for name in kind._fields}), names)
        assert {name for name, value in found.items() if value} == {expected["targets"]}
        assert set(expected.values()) <= set(found)


# --- Earlier versions


def test_there_is_a_step_from_every_version_to_the_next():
    assert list(STEPS) == list(range(1, VERSION))


OF_1 = {
    ".belief.ensemble.net.weights[0]": "model.ensemble.network.weights.0",
    ".belief.ensemble.targets.mean": "model.ensemble.target_normaliser.mean",
    ".belief.calibration.scale": "model.calibration.scale",
    ".belief.range": "model.state_range",
    ".fit_state[0].mu.biases[1]": "model_optimiser.0.mu.biases.1",
    ".policy.inputs.deviation": "policy.input_normaliser.deviation",
    ".net.weights[2]": "network.weights.2",  # of policies alone
    ".solver_state.learner.targets.weights[0]": "solver.learner.target_critics.weights.0",
    ".solver_state.learner.scale": "solver.learner.critic_scale",
    ".solver_state.earlier[1].net.biases[0]": "solver.earlier_policies.1.network.biases.0",
    ".solver_state.critics.targets.weights[0]": "solver.critics.target_networks.weights.0",
    ".solver_state.critics.optimiser[0].nu.weights[0]": "solver.critics.optimiser.0.nu.weights.0",
    ".solver_state.bounds": "solver.value_range",
    ".memory.targets.deviation": "rule.target_normaliser.deviation",
    ".learner.proposing.weights[0]": "learner.proposal.weights.0",
    ".told['updates']": "metrics.updates",
    ".key#threefry2x32": "key#threefry2x32",
}


@pytest.mark.parametrize("name", OF_1)
def test_names_of_version_1_are_those_of_version_2(name):
    """These pairs hold for good: what version 3 calls them is for the tests of its own step."""
    array = np.ones(1)
    assert STEPS[1]({name: array}) == {OF_1[name]: array}


def test_arrays_of_version_1_that_would_have_one_name_are_damage():
    with pytest.raises(ValueError, match="one name"):
        STEPS[1]({".belief.range": np.ones(1), "[model].range": np.ones(1), ".model.range": np.ones(1)})


def test_intervals_of_version_2_reach_as_far_as_those_of_a_gaussian_variable():
    scale = np.ones((3, 2), np.float32)  # of three seeds
    found = STEPS[2]({"model.calibration.scale": scale})
    reach = found.pop("model.calibration.reach")
    assert found == {"model.calibration.scale": scale}
    assert (reach.dtype, reach.shape) == (np.float32, (3, 10, 2))
    np.testing.assert_allclose(
        reach[1, :, 1], norm.ppf((1 + np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95])) / 2), rtol=1e-6
    )
    for other in ({}, {"model.calibration.scale": np.float32(1)}):  # no model; and what the library never wrote
        assert STEPS[2](other) == other


def test_arrays_go_through_all_steps_between(monkeypatch):
    def step(number):
        return lambda arrays: {f"{name} {number}": array for name, array in arrays.items()}

    monkeypatch.setattr("cdpo.training.schema.VERSION", 3)
    monkeypatch.setattr("cdpo.training.schema.STEPS", {1: step("two"), 2: step("three")})
    assert [list(upgraded({"x": 0}, version)) for version in (1, 2, 3)] == [["x two three"], ["x three"], ["x"]]
