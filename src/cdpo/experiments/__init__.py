"""One entry per figure of the paper, and the studies beside them; `reproduce` makes any of them."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from cdpo.cells import Cell, Progress, Records, Runner, complete, run_here
from cdpo.errors import UserError, unknown
from cdpo.experiments import ablation, baselines, chain, comparison, exploration, posterior, published, studies, trials
from cdpo.experiments.figure import Figure, Scale
from cdpo.experiments.training import TrainingCell
from cdpo.files import write_atomic
from cdpo.report.figures import csv_bytes
from cdpo.report.style import house
from cdpo.report.tables import seed_rows
from cdpo.runs import RunFolder, check_free, hardware, versions

_KINDS = {"task": "task", "agent": "agent", "label": "variant"}

FIGURES: dict[str, Figure] = {
    "posterior": Figure(
        "figure 1",
        "posterior of CDPO and PSRL at the furthest state of the 8- and the 15-chain",
        posterior.furthest_cells,
        posterior.draw_furthest,
    ),
    "regret": Figure(
        "figure 2", "cumulative regret of CDPO and PSRL at N = 8 and 15", chain.regret_pair, chain.draw_curves
    ),
    "exploration": Figure(
        "figure 3",
        "greedy, PSRL, HUCRL and CDPO on inverted-pendulum, cartpole-swingup, pusher and half-cheetah",
        exploration.cells,
        comparison.draw_comparison,
    ),
    "tuning": Figure(
        "beside figure 3",
        "three trials of each exploration rule on pendulum-swingup with penalty 0.1 and on half-cheetah",
        trials.tuning,
        trials.draw_trials,
    ),
    "settings": Figure(
        "beside figure 3",
        "what makes CDPO learn: its settings, one changed at a time",
        trials.settings,
        trials.draw_trials,
    ),
    "baselines": Figure(
        "figure 4",
        "CDPO against MBPO, SLBO, ME-TRPO and DPI, and SAC, PPO and MPO without a model",
        baselines.cells,
        baselines.draw,
    ),
    "published": Figure(
        "beside figure 4",
        "CDPO, MBPO and SAC on HalfCheetah-v5, next to returns that others published",
        published.cells,
        published.draw,
    ),
    "ablation": Figure(
        "figure 5",
        "CDPO without one of its updates, with other bounds, gradient steps, heads and solvers",
        ablation.cells,
        ablation.draw,
    ),
    "chain": Figure("appendix", "the N-Chain, drawn from its table", lambda scale: [], chain.draw_diagram),
    "posterior-evolution": Figure(
        "appendix",
        "posterior over all states and actions of the 8-chain, for CDPO and for PSRL",
        posterior.evolution_cells,
        posterior.draw_evolution,
    ),
    "cumulative-regret": Figure(
        "appendix", "cumulative regret of all agents at N = 5, 10, 15", chain.regret_all, chain.draw_curves
    ),
    "normalised-regret": Figure(
        "appendix", "regret to the oracle over the chain's length", chain.regret_sizes, chain.draw_sizes
    ),
    "readings": Figure(
        "beside the paper", "readings and ablations of CDPO on the chain", studies.readings, studies.draw_normalised
    ),
    "sampled-models": Figure(
        "beside the paper", "the number of sampled models", studies.sampled_models, studies.draw_normalised
    ),
    "priors": Figure("beside the paper", "the prior mean of rewards", studies.priors, studies.draw_normalised),
    "elsewhere": Figure(
        "beside the paper", "bandit, prior-mdp, wide-narrow, deep-sea", studies.elsewhere, studies.draw_expected
    ),
    "bayes-regret": Figure(
        "theorem 1", "value regret on MDPs drawn from the prior", studies.bayes_regret, studies.draw_value
    ),
    "ledger": Figure("theorem 2", "how often and how much updates lose value", studies.ledgers, studies.draw_ledger),
}


def reproduce(
    name: str,
    scale: Scale,
    out: Path,
    command: str,
    progress: Progress,
    tasks: Sequence[str] = (),
    agents: Sequence[str] = (),
    variants: Sequence[str] = (),
    run: Runner = run_here,
) -> tuple[list[Path], Records]:
    """Make a figure under `out`; cells that are finished there are not run again. The files, and the records.

    With `tasks`, `agents` or `variants` only cells of these are run, and the figure shows all that are finished.
    What is missing is run by `run`.
    """
    figure = FIGURES[name]
    cells = figure.cells(scale)
    wanted = _part(name, cells, {"task": tasks, "agent": agents, "label": variants})
    config = {"kind": "reproduction", "figure": name, "scale": scale, "command": command}
    if out.exists():
        folder = RunFolder.open(out)
        if any(folder.config.get(key) != config[key] for key in ("kind", "figure", "scale")):
            raise UserError(f"{str(out)!r} holds another run; choose another folder")
    else:
        check_free(out)
        folder = RunFolder.create(out, {**config, "versions": versions(), "hardware": hardware()})
    with folder.writing():
        records = complete(folder, cells, progress, wanted, run)
        with house():
            paths = figure.draw(records, folder.figures)
        if rows := seed_rows([record for record in records if "regret" in record]):
            paths.append(folder.inside("figures", "seeds.csv"))
            write_atomic(paths[-1], csv_bytes(rows))
        drawn = {"figures": [path.name for path in paths]}
        folder.write_summary({"results": records, **drawn, "versions": versions(), "hardware": hardware()})
    return paths, records


def _part(name: str, cells: Sequence[Cell], asked: Mapping[str, Sequence[str]]) -> Callable[[Cell], bool]:
    """Whether a cell is among those asked for, by what its identity tells; all are, if nothing was."""
    asked = {key: words for key, words in asked.items() if words}
    training = [cell.identity for cell in cells if isinstance(cell, TrainingCell)]
    if asked and not training:
        raise UserError(f"{name} is made whole: --tasks, --agents and --variants are for figures of training runs")
    for key, words in asked.items():
        known = list(dict.fromkeys(told[key] for told in training if told[key]))
        for word in words:
            if word not in known:
                raise unknown(f"{_KINDS[key]} of {name} at this scale", word, known)
    return lambda cell: all(cell.identity[key] in words for key, words in asked.items())
