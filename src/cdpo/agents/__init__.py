"""Who decides: CDPO, greedy, PSRL and HUCRL on learned models, SAC without one; each only its differences."""

from cdpo.agents.base import Agent, Mind, Rule
from cdpo.agents.cdpo import CDPO
from cdpo.agents.deciding import Planner
from cdpo.agents.greedy import Greedy
from cdpo.agents.hucrl import HUCRL
from cdpo.agents.planning import Exploration, Kit, ModelBased, ModelMind
from cdpo.agents.psrl import PSRL
from cdpo.agents.replaying import ModelFree, OffPolicy
from cdpo.agents.sac import SAC

RULES: dict[str, type[Rule]] = {rule.name: rule for rule in (CDPO, Greedy, PSRL, HUCRL, SAC)}

__all__ = [
    "CDPO",
    "HUCRL",
    "PSRL",
    "RULES",
    "SAC",
    "Agent",
    "Exploration",
    "Greedy",
    "Kit",
    "Mind",
    "ModelBased",
    "ModelFree",
    "ModelMind",
    "OffPolicy",
    "Planner",
    "Rule",
]
