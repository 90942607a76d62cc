"""The names that learned arrays have on disk.

    model.ensemble.network.weights.0        solver.learner.critic_optimiser.0.mu.biases.1

They are the files' own. An attribute may be called anything else later: that costs its line in `NAMES`, and no file
changes. Another name or another place on disk, or another array, is another format: that costs the next `VERSION` in
`store`, and a step in `STEPS` that leads there from the arrays before.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from cdpo.agents.model_based import ModelMind
from cdpo.agents.newest import NewestMind
from cdpo.agents.replaying import PolicyMind
from cdpo.dynamics.calibration import Calibration
from cdpo.dynamics.ensemble import Ensemble
from cdpo.dynamics.models import Belief
from cdpo.dynamics.networks import MLP, Normaliser
from cdpo.solvers.dyna import DynaState
from cdpo.solvers.mpo import MPOState
from cdpo.solvers.onpolicy import OnPolicyState
from cdpo.solvers.policy import Policy
from cdpo.solvers.sac import SACState
from cdpo.solvers.values import Critics, Memory
from cdpo.training.store import VERSION

_LEARNER = {
    "critics": "critics",
    "scale": "critic_scale",
    "rewards": "reward_range",
    "log_multiplier": "log_multiplier",
    "critic_optimiser": "critic_optimiser",
    "policy_optimiser": "policy_optimiser",
}
_TWINS = {
    **_LEARNER,
    "targets": "target_critics",
    "log_temperature": "log_temperature",
    "temperature_optimiser": "temperature_optimiser",
}

# Of every class of ours that holds arrays: what each of its attributes is called on disk.
NAMES: Mapping[type, Mapping[str, str]] = {
    ModelMind: {
        "belief": "model",
        "fit_state": "model_optimiser",
        "policy": "policy",
        "solver_state": "solver",
        "memory": "rule",
    },
    PolicyMind: {"policy": "policy", "learner": "learner", "rows": "rows_learned"},
    NewestMind: {"policy": "policy", "learner": "learner", "rows": "rows_learned", "told": "metrics"},
    Belief: {
        "ensemble": "ensemble",
        "calibration": "calibration",
        "range": "state_range",
        "rewards": "reward_range",
        "ends": "has_ended",
    },
    Ensemble: {
        "net": "network",
        "inputs": "input_normaliser",
        "targets": "target_normaliser",
        "fits": "fits",
        "held_out": "held_out_error",
    },
    Calibration: {"scale": "scale", "noise": "noise", "reach": "reach"},
    MLP: {"weights": "weights", "biases": "biases"},
    Normaliser: {"mean": "mean", "deviation": "deviation"},
    Policy: {"net": "network", "inputs": "input_normaliser"},
    DynaState: {"learner": "learner", "earlier": "earlier_policies"},
    SACState: _TWINS,
    MPOState: {
        **_TWINS,
        "proposing": "proposal",
        "updates": "proposal_age",
        "log_weights": "log_kl_weights",
    },
    OnPolicyState: _LEARNER,
    Memory: {
        "critics": "critics",
        "scale": "critic_scale",
        "log_multiplier": "log_multiplier",
        "bounds": "value_range",
    },
    Critics: {"nets": "networks", "targets": "target_networks", "optimiser": "optimiser"},
}


def names(tree: Any, table: Mapping[type, Mapping[str, str]] = NAMES) -> list[str]:
    """A name for each leaf of a tree, in the order of `jax.tree.leaves`.

    Classes of others, as the states of optimisers are, give the names of their attributes; places in tuples and lists
    and keys of dictionaries are names as they are. A class of ours has to be in the table.
    """
    return [".".join(words) for words in _paths(tree, table)]


def _paths(tree: Any, table: Mapping[type, Mapping[str, str]]) -> list[tuple[str, ...]]:
    """The words of each leaf's name."""
    found = []
    for path, child in jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda node: node is not tree)[0]:
        if not path:  # the tree is a leaf itself
            return [()]
        if inner := _paths(child, table):
            word = _word(tree, path[0], table)
            found += [(word, *words) for words in inner]
    return found


def _word(node: Any, key: Any, table: Mapping[type, Mapping[str, str]]) -> str:
    """What a child of a node is called."""
    told = str(getattr(key, "name", getattr(key, "idx", getattr(key, "key", key))))
    kind = type(node)
    if kind not in table and kind.__module__.partition(".")[0] != "cdpo":
        return told
    if told not in table.get(kind, {}):
        raise TypeError(f"{kind.__name__}.{told} has no name on disk; give it one in cdpo.training.schema")
    return table[kind][told]


# --- Arrays of earlier versions ---------------------------------------------------------------------------------------


# What attributes were called in version 1, after their parent where that matters. It is as it was and never changes.
_OF_1 = {
    "ensemble.targets": "target_normaliser",
    "memory.targets": "target_normaliser",
    "learner.targets": "target_critics",
    "critics.targets": "target_networks",
    "calibration.scale": "scale",
    "belief": "model",
    "fit_state": "model_optimiser",
    "solver_state": "solver",
    "memory": "rule",
    "rows": "rows_learned",
    "told": "metrics",
    "range": "state_range",
    "rewards": "reward_range",
    "ends": "has_ended",
    "net": "network",
    "nets": "networks",
    "inputs": "input_normaliser",
    "held_out": "held_out_error",
    "earlier": "earlier_policies",
    "scale": "critic_scale",
    "proposing": "proposal",
    "updates": "proposal_age",
    "log_weights": "log_kl_weights",
    "bounds": "value_range",
}
_PART_OF_1 = re.compile(r"\.(\w+)|\[(\d+)\]|\['([^']*)'\]")


def _name_from_1(name: str) -> str:
    """`.belief.ensemble.net.weights[0]` -> `model.ensemble.network.weights.0`; JAX wrote these paths of attributes."""
    path, mark, generator = name.partition("#")
    words, parent = [], ""
    for attribute, index, key in _PART_OF_1.findall(path):
        words.append(_OF_1.get(f"{parent}.{attribute}", _OF_1.get(attribute, attribute)) or index or key)
        parent = attribute
    return ".".join(words) + mark + generator


Arrays = Mapping[str, np.ndarray]


def _from_1(arrays: Arrays) -> Arrays:
    """With other names."""
    current = {_name_from_1(name): array for name, array in arrays.items()}
    if len(current) < len(arrays):
        raise ValueError("two of its arrays have one name")
    return current


# How far the intervals of version 3 reached at their levels, .1 to .9 and .95, where they are a Gaussian variable's.
_REACH_OF_3 = (
    0.1256613, 0.2533471, 0.3853205, 0.5244005, 0.6744898, 0.8416212, 1.0364334, 1.2815516, 1.6448536, 1.9599640,
)  # fmt: skip


def _from_2(arrays: Arrays) -> Arrays:
    """With how far intervals reach: it was as far as those of a Gaussian variable."""
    scale = arrays.get("model.calibration.scale")
    if scale is None or scale.ndim == 0:  # of an agent without a model; or not what the library wrote, as is told later
        return arrays
    levels = np.array(_REACH_OF_3, np.float32)[:, None]
    # A view: it takes no memory that the size of the file would not explain.
    reach = np.broadcast_to(levels, (*scale.shape[:-1], len(levels), scale.shape[-1]))
    return {**arrays, "model.calibration.reach": reach}


STEPS: Mapping[int, Callable[[Arrays], Arrays]] = {1: _from_1, 2: _from_2}
"""From each version's arrays to the next one's: 3 comes here when there is a version 4."""


def upgraded(arrays: Arrays, version: int) -> Arrays:
    """The arrays of today, by their names, for those of an earlier version; a ValueError if they make no sense."""
    for each in range(version, VERSION):
        arrays = STEPS[each](arrays)
    return arrays
