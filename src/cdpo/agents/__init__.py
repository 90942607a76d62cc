"""Who decides: rules and baselines on learned models; SAC, MPO and PPO without. Each only its differences."""

from cdpo.agents.base import Agent, Mind, Rule
from cdpo.agents.cdpo import CDPO
from cdpo.agents.deciding import Planner
from cdpo.agents.dpi import DPI
from cdpo.agents.greedy import Greedy
from cdpo.agents.hucrl import HUCRL
from cdpo.agents.mbpo import MBPO
from cdpo.agents.me_trpo import METRPO
from cdpo.agents.model_based import Exploration, Kit, ModelBased, ModelMind
from cdpo.agents.mpo import MPO
from cdpo.agents.newest import Newest, OnPolicy
from cdpo.agents.ppo import PPO
from cdpo.agents.psrl import PSRL
from cdpo.agents.replaying import OffPolicy, Replaying
from cdpo.agents.sac import SAC
from cdpo.agents.slbo import SLBO

RULES: dict[str, type[Rule]] = {
    rule.name: rule for rule in (CDPO, Greedy, PSRL, HUCRL, MBPO, METRPO, SLBO, DPI, SAC, MPO, PPO)
}

__all__ = [
    "CDPO",
    "DPI",
    "HUCRL",
    "MBPO",
    "METRPO",
    "MPO",
    "PPO",
    "PSRL",
    "RULES",
    "SAC",
    "SLBO",
    "Agent",
    "Exploration",
    "Greedy",
    "Kit",
    "Mind",
    "ModelBased",
    "ModelMind",
    "Newest",
    "OffPolicy",
    "OnPolicy",
    "Planner",
    "Replaying",
    "Rule",
]
