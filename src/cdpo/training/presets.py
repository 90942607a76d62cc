"""Presets: the settings that agents begin with on each task, and where they come from."""

from typing import Any

from cdpo.agents import RULES
from cdpo.errors import UserError, shown, unknown
from cdpo.tasks import Task
from cdpo.training.settings import PARTS, Settings, idle_options, part_of, parts_of

PRESETS = ("default", "paper")

_WHITE = {"noise": "white", "random_noise": "white"}

# Janner et al. 2019 (arXiv:1906.08253), appendix C, for half-cheetah, as far as it is the same whatever the budget:
# seven networks and five elites, rollouts of one step from visited states, 5% real transitions, one SAC for all that
# holds its entropy: the deviation before squashing says nothing of a policy that is at the bounds of actions. The
# entropy is that of their code: minus half a nat for each part of an action on half-cheetah, here on other tasks too,
# and minus 0.05 on inverted-pendulum.
_MBPO: dict[str, dict[str, Any]] = {
    "rule": {"models": 5, "length": 1},
    "ensemble": {"heads": 7, "likelihood": "gaussian"},
    "dyna": {"horizon": 1, "returns": 1, "initial": 0.0, "visited": 1.0, "broad": 0.0, "batch": 60, "real": 0.05},
    "sac": {"critic": "pooled", "holds": "entropy"},
}
_NEGENTROPY = {"inverted-pendulum": 0.05}
# How long fits are with CDPO's budget: what happens seldom, as hitting the end of a rail, Gaussian heads took for noise
# at first.
_FITTED, _PATIENT = 1500, 6
# Their budget: for each real step 40 updates, and 400 rollouts; models are fitted every 250 steps, and here policies
# change as often, on rollouts that are made for 25 steps at a time. Theirs are kept for 1,000: here those of the three
# policies before are made anew. Their heads have bootstrap samples that are drawn anew at each fit, here all rows, as
# samples are fixed. Theirs hold out a fifth, and 5,000 rows at most, and are fitted until five passes over the data
# bring no progress, here as many steps as with 50,000 rows. Their decay is part of the loss, with 2.5e-5 to 1e-4 by
# layer; here it is Adam's own, and next to nothing. Their code begins with 5,000 random steps, five episodes of
# half-cheetah.
_MBPO_FITS, _MBPO_ROLLS, _MBPO_KEPT = 250, 25, 1000
_MBPO_PAPER: dict[str, dict[str, Any]] = {
    "loop": {**_WHITE, "random": 5},
    "ensemble": {
        "hidden": (200,) * 4,
        "data": "all",
        "steps": 3000,
        "patience": 20,
        "weight_decay": 5e-5,
        "held_out": 0.1,
        "test": 0.01,
    },
    "dyna": {
        "kept": _MBPO_FITS // _MBPO_ROLLS,
        "earlier": _MBPO_KEPT // _MBPO_FITS - 1,
        "updates": 40 * _MBPO_ROLLS,
        "particles": 400 * _MBPO_ROLLS // 5,
    },
    "sac": {"hidden": (256, 256), "learning_rate": 3e-4, "polyak": 0.005, "temperature": 1.0},
}
# By default it has that with half as many updates on these two, for the first of which CDPO's budget was seen to be too
# little, with heads as they were fitted then.
_MBPO_CHEETAH: dict[str, dict[str, Any]] = {"dyna": {"updates": 20 * _MBPO_ROLLS}}
# Pink random episodes turn it on its back, from where not every seed gets up.
_CHEETAHS = ("half-cheetah", "HalfCheetah-v5")

# Kurutach et al. 2018 (arXiv:1802.10592), section 5 and appendix: five networks on all data, a step's model drawn at
# random, rollouts from initial states, TRPO validated after every five steps, 70% of the models.
_METRPO: dict[str, dict[str, Any]] = {
    "rule": {"models": 5, "share": 0.7},
    "ensemble": {"heads": 5, "likelihood": "deterministic", "data": "all"},
    "dyna": {"rounds": 5, "horizon": 100, "initial": 1.0, "visited": 0.0, "broad": 0.0},
    "trpo": {"critic": "pooled", "kl": 0.01},
}
# Their sizes: 50,000 imagined steps for a step of TRPO, of which they take 400 at most.
_METRPO_PAPER: dict[str, dict[str, Any]] = {
    "rule": {"laps": 80},
    "ensemble": {"hidden": (1024, 1024), "steps": 2000, "batch": 1000, "learning_rate": 1e-3, "weight_decay": 0.0},
    "dyna": {"particles": 100},
    "trpo": {"hidden": (32, 32)},
}

# Luo et al. 2018 (arXiv:1807.03858), section 6 and appendix F: the norm of errors along two steps, rollouts from
# initial states, model and policy in turns.
_SLBO: dict[str, dict[str, Any]] = {
    "rule": {"turns": 5},
    "ensemble": {"likelihood": "deterministic", "unrolled": 2, "steps": 300},
    "dyna": {"rounds": 10, "horizon": 100, "initial": 1.0, "visited": 0.0, "broad": 0.0},
    "trpo": {"critic": "pooled", "kl": 0.01},
}
# Their budget, as their code has it: 20 turns, each of 100 gradient steps of the model and 40 steps of TRPO on eight
# rollouts of 500 steps.
_SLBO_PAPER: dict[str, dict[str, Any]] = {
    "rule": {"turns": 20, "models": 4},
    "ensemble": {"hidden": (500, 500), "steps": 100, "batch": 128, "weight_decay": 1e-5},
    "dyna": {"rounds": 40, "particles": 2, "horizon": 500},
    "trpo": {"hidden": (32, 32)},
}

# The paper's table, and where the paper is silent the code that it was built on: 20 gradient steps of each procedure
# for 20 environment steps, on three simulated batches of 100 and a real one; rollouts from initial states. Each head
# has transitions of its own: "different ensembles are learned with independent transition data".
_PAPER: dict[str, dict[str, Any]] = {
    "rule": {"models": 4},
    "ensemble": {
        "heads": 4,
        "data": "disjoint",
        "hidden": (200,) * 5,
        "learning_rate": 1e-3,
        "weight_decay": 0.0,
    },
    "dyna": {"kept": 1, "particles": 8, "batch": 100, "real": 0.25, "initial": 1.0, "visited": 0.0, "broad": 0.0},
    "sac": {"hidden": (200, 200), "learning_rate": 5e-4, "polyak": 0.005},
}
_GRADIENT_STEPS = 20

# The authors' own settings for agents without a model, whatever the preset.
_MODEL_FREE: dict[str, dict[str, dict[str, Any]]] = {
    # Haarnoja et al. 2018 (arXiv:1812.05905), table 1, with their adjusted temperature.
    "sac": {
        "loop": _WHITE,
        "rule": {"batch": 256, "ratio": 1.0},
        "sac": {
            "hidden": (256, 256),
            "critic": "pooled",
            "learning_rate": 3e-4,
            "temperature_rate": 3e-4,
            "temperature": 1.0,
            "holds": "entropy",
            "polyak": 0.005,
        },
    },
    # Abdolmaleki et al. 2018 (arXiv:1806.06920) for bounds, samples, learning rate and the critics' layers, which are
    # still to be held against their table; batch and period as in Acme (arXiv:2006.00979), targets as for SAC.
    "mpo": {
        "loop": _WHITE,
        "rule": {"batch": 256, "ratio": 1.0},
        "mpo": {
            "hidden": (200, 200),
            "critic": "pooled",
            "learning_rate": 5e-4,
            "polyak": 0.005,
            "samples": 20,
            "period": 100,
            "kl": 0.1,
            "mean_kl": 0.1,
            "deviation_kl": 1e-4,
            "deviation": 0.1,
        },
    },
    # Schulman et al. 2017 (arXiv:1707.06347), table 3, for MuJoCo; gradients and annealing as in OpenAI's baselines.
    "ppo": {
        "loop": _WHITE,
        "rule": {"steps": 2048, "annealed": 1e6},
        "ppo": {
            "hidden": (64, 64),
            "critic": "pooled",
            "learning_rate": 3e-4,
            "epochs": 10,
            "minibatches": 32,
            "clip": 0.2,
            "trace": 0.95,
            "gradient": 0.5,
            "noise": "learned",
        },
    },
}

# What differs from the defaults of the parts, found in trials.
_SPARSE: dict[str, dict[str, Any]] = {"dyna": {"returns": 15}}
_CHEETAH: dict[str, dict[str, Any]] = {
    "loop": {"evaluate": 5},
    "ensemble": {"hidden": (200,) * 4, "steps": 2000, "patience": 6},
    "dyna": {"rounds": 20, "updates": 125, "particles": 512, "horizon": 5, "returns": 1, "batch": 64, "initial": 0.05},
    "sac": {
        "hidden": (256, 256),
        "critic": "pooled",
        "critic_steps": 4,
        "layer_norm": True,
        "learning_rate": 3e-4,
        "deviation": 0.4,
    },
    # For a GPU. With a critic for each model and layers as they are, values of BPTT were seen to diverge here; and what
    # is planned with a reach of 1 a policy does not learn.
    "bptt": {
        "horizon": 5,
        "particles": 64,
        "updates": 1000,
        "hidden": (256, 256),
        "critic": "pooled",
        "layer_norm": True,
        "learning_rate": 3e-4,
        "deviation": 0.4,
        "initial": 0.05,
    },
    "mpc": {
        "horizon": 10,
        "imitated": 5,
        "plans": 256,
        "reach": 0.2,
        "kept": 4,
        "rounds": 20,
        "updates": 125,
        "batch": 512,
        "particles": 64,
        "hidden": (256, 256),
        "critic": "pooled",
        "layer_norm": True,
        "learning_rate": 3e-4,
        "deviation": 0.4,
        "initial": 0.05,
    },
}
_PUSHER: dict[str, dict[str, Any]] = {
    "ensemble": {"hidden": (200,) * 3, "steps": 500, "patience": 4},
    "dyna": {"updates": 50, "particles": 64, "horizon": 15, "visited": 0.75},
    "sac": {"hidden": (128, 128), "critic_steps": 4, "layer_norm": True, "learning_rate": 5e-4, "deviation": 0.4},
    # BPTT was not tried there yet. DPI did not learn with a reach of 1 and rollouts that began anew; it does now.
    "bptt": {"hidden": (128, 128), "updates": 500, "learning_rate": 5e-4, "deviation": 0.4, "visited": 0.75},
    "mpc": {
        "reach": 0.2,
        "hidden": (128, 128),
        "updates": 50,
        "learning_rate": 5e-4,
        "deviation": 0.4,
        "visited": 0.75,
    },
}
# Random actions lead so far out that the costs there would be all that critics learn: no rollout begins there.
_LQR: dict[str, dict[str, Any]] = {
    "loop": {"discount": 0.95},
    "ensemble": {"kind": "linear", "likelihood": "gaussian"},
    "dyna": {"real": 0.0, "initial": 0.5, "visited": 0.0},
    "mpc": {"initial": 0.5, "visited": 0.0, "reach": 0.3, "candidates": 64, "elites": 8},
    "sac": {"learning_rate": 5e-4, "deviation": 0.4, "temperature": 0.03, "temperature_rate": 1e-3},
}
# How far optimism reaches, where one calibrated deviation a step is further than any action: found in trials, of
# half-cheetah for both of its kind.
_BETA = {"inverted-pendulum": 0.1, "half-cheetah": 0.1, "HalfCheetah-v5": 0.1}
# With one update of 40 rounds after each episode, each of 84 updates of DPI left its trust region and was cut back into
# it. So it updates every quarter of an episode, in half of the rounds in all. Plans of actions are much cheaper than
# those of parameters, and were no worse in trials.
_DPI_CHEETAH: dict[str, dict[str, Any]] = {
    "loop": {"stretch": 250},
    "mpc": {"moves": "actions", "reach": 0.6, "rounds": 5},
}
# Learners on the newest rollouts need new ones more often.
_ROUNDS = {"ppo": 2, "trpo": 4, "actor-critic": 2}
# Agents that learn by TRPO from long rollouts: what is theirs whatever the budget, and their budget.
_ROLLED = {"me-trpo": (_METRPO, _METRPO_PAPER), "slbo": (_SLBO, _SLBO_PAPER)}
_TASKS: dict[str, dict[str, dict[str, Any]]] = {
    "pendulum-swingup": _SPARSE,
    "pendulum-swingup-0.1": _SPARSE,
    "pendulum-swingup-0.2": _SPARSE,
    "pusher": _PUSHER,
    "half-cheetah": _CHEETAH,
    "HalfCheetah-v5": _CHEETAH,
    "lqr": _LQR,
}


def preset(name: str, task: Task, rule: str = "cdpo", learner: str = "sac") -> Settings:
    """Settings for an agent by the name of its rule on a task, and of its learner if it has one."""
    if rule not in RULES:
        raise unknown("agent", rule, RULES)
    if name not in PRESETS:
        raise unknown("preset", name, PRESETS)
    part_of(learner)
    start = Settings(rule=RULES[rule](), learner=learner)  # type: ignore[arg-type]
    if rule in _MODEL_FREE:
        return start.changed(loop=_TASKS.get(task.name, {}).get("loop", {})).changed(**_MODEL_FREE[rule])
    if task.name in _CHEETAHS:
        start = start.changed(loop={"random_noise": "white"})
    if task.broad is None:  # nothing is known of the range: rollouts begin where the world was seen
        start = start.changed(dyna={"broad": 0.0}, bptt={"broad": 0.0}, mpc={"broad": 0.0})
    if name == "default":
        if task.reward is None:  # episodes of unknown tasks teach less, and are to be learned from more
            start = start.changed(dyna={"returns": 5, "updates": 200})
        start = start.changed(**_TASKS.get(task.name, {}))
        if rule == "hucrl" and task.name in _BETA:
            start = start.changed(rule={"beta": _BETA[task.name]})
        rounds, particles = start.dyna.rounds, start.dyna.particles
        if rule == "mbpo" and task.name in _CHEETAHS:
            return preset("paper", task, rule).changed(loop=_TASKS[task.name]["loop"], **_MBPO_CHEETAH)
        if rule == "mbpo":  # as many updates as the two of CDPO, on as many imagined transitions
            spent = {"rounds": 2 * rounds, "kept": 2 * rounds, "particles": particles * start.dyna.horizon}
            fitted = {"steps": max(_FITTED, start.ensemble.steps), "patience": _PATIENT}
            return _mbpo(start, task).changed(dyna=spent, ensemble=fitted)
        if rule in _ROLLED:
            longer = start.changed(**_ROLLED[rule][0])
            return longer.changed(dyna={"particles": max(1, particles * start.dyna.horizon // longer.dyna.horizon)})
        if rule == "dpi":  # as many rounds as CDPO has in two updates; on one model, where CDPO has several
            mpc = start.mpc
            twice = {"rounds": 2 * mpc.rounds, "plans": 2 * mpc.plans, "particles": 2 * mpc.particles}
            return start.changed(mpc=twice).changed(**(_DPI_CHEETAH if task.name in _CHEETAHS else {}))
        return start.changed(dyna={"rounds": _ROUNDS.get(learner, 1) * rounds})
    if rule == "mbpo":
        stretch = -(-task.horizon // -(-task.horizon // _MBPO_FITS))  # equal parts of an episode
        whole = _mbpo(start, task).changed(**_MBPO_PAPER)
        return whole.changed(loop={"stretch": stretch}, dyna={"rounds": max(1, stretch // _MBPO_ROLLS)})
    if rule in _ROLLED:
        ours, theirs = _ROLLED[rule]
        return start.changed(**ours).changed(**theirs)
    # One gradient step of each procedure for every environment step, 20 at a time with rollouts of their own.
    rounds = max(1, task.horizon // _GRADIENT_STEPS)
    told = _PAPER | {"rule": {}} if rule == "dpi" else _PAPER  # its one model is not repeated
    return start.changed(**told).changed(dyna={"rounds": rounds, "updates": _GRADIENT_STEPS})


def build_settings(task: Task, rule: str, name: str, changes: dict[str, Any]) -> Settings:
    """A preset's settings with changes by part, and to the rule by name."""
    for part in ("solver", "learner"):
        if not isinstance(changes.get(part, ""), str):
            raise UserError(f"{part} must be a word, not {shown(changes[part])}")
    learner = changes.get("learner", "sac")
    start = preset(name, task, rule, learner)
    used = parts_of(type(start.rule), changes.get("solver", start.solver), learner)
    for part in set(changes) & set(PARTS) - set(used):
        raise UserError(f"{rule} makes no use of the settings of {part} here (it has: {', '.join(used)})")
    by_part = {part: value for part, value in changes.items() if part in used}
    own = {option: value for option, value in changes.items() if option not in used}
    settings = start.changed(rule=own, **by_part)
    for part, option in idle_options(settings):
        if getattr(getattr(settings, part), option) != getattr(getattr(start, part), option):
            raise UserError(f"{rule} makes no use of {part}.{option} with its other settings; leave it out")
    return settings


def _mbpo(start: Settings, task: Task) -> Settings:
    return start.changed(**_MBPO).changed(sac={"negentropy": _NEGENTROPY.get(task.name, 0.5)})
