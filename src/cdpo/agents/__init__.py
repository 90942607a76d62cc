"""Who decides: greedy, PSRL, HUCRL and CDPO, each only its differences."""

from cdpo.agents.base import Agent, Kit, Mind, Rule
from cdpo.agents.cdpo import CDPO
from cdpo.agents.greedy import Greedy
from cdpo.agents.hucrl import HUCRL
from cdpo.agents.psrl import PSRL

RULES: dict[str, type[Rule]] = {rule.name: rule for rule in (CDPO, Greedy, PSRL, HUCRL)}

__all__ = ["CDPO", "HUCRL", "PSRL", "RULES", "Agent", "Greedy", "Kit", "Mind", "Rule"]
