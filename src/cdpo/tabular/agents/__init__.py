"""One file per agent; greedy, UCRL (optimism), PSRL and CDPO are four variations of one loop."""

from cdpo.tabular.agents.base import Agent, Plan, PosteriorAgent
from cdpo.tabular.agents.bql import BQL
from cdpo.tabular.agents.cdpo import CDPO
from cdpo.tabular.agents.greedy import Greedy
from cdpo.tabular.agents.mm import MM
from cdpo.tabular.agents.psrl import PSRL
from cdpo.tabular.agents.q_learning import QLearning
from cdpo.tabular.agents.scale import Oracle, Random
from cdpo.tabular.agents.ube import UBE
from cdpo.tabular.agents.ucrl import UCRL

AGENTS: dict[str, type[Agent]] = {
    agent.name: agent for agent in (CDPO, PSRL, UCRL, Greedy, UBE, MM, BQL, QLearning, Oracle, Random)
}

__all__ = [
    "AGENTS",
    "BQL",
    "CDPO",
    "MM",
    "PSRL",
    "UBE",
    "UCRL",
    "Agent",
    "Greedy",
    "Oracle",
    "Plan",
    "PosteriorAgent",
    "QLearning",
    "Random",
]
