"""The tabular laboratory: everything the paper does in finite MDPs, on exact tables."""

from cdpo.tabular.agents import AGENTS, BQL, CDPO, MM, PSRL, UBE, UCRL, Agent, Greedy, Oracle, QLearning, Random
from cdpo.tabular.environments import (
    ENVIRONMENTS,
    Bandit,
    Chain,
    DeepSea,
    PriorMDP,
    WideNarrow,
    from_gymnasium,
)
from cdpo.tabular.mdp import FiniteMDP, load_mdp
from cdpo.tabular.posterior import Posterior, Prior
from cdpo.tabular.regret import Regret, regret
from cdpo.tabular.simulation import Run, simulate

__all__ = [
    "AGENTS",
    "BQL",
    "CDPO",
    "ENVIRONMENTS",
    "MM",
    "PSRL",
    "UBE",
    "UCRL",
    "Agent",
    "Bandit",
    "Chain",
    "DeepSea",
    "FiniteMDP",
    "Greedy",
    "Oracle",
    "Posterior",
    "Prior",
    "PriorMDP",
    "QLearning",
    "Random",
    "Regret",
    "Run",
    "WideNarrow",
    "from_gymnasium",
    "load_mdp",
    "regret",
    "simulate",
]
