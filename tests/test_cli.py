"""The command line's promises. Every run is tiny; a process is started only where a process is the promise."""

import contextlib
import dataclasses
import io
import json
import os
import pickle
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from cdpo import __version__
from cdpo.cli import _flags, _run, parse
from cdpo.commands import COMMANDS
from cdpo.commands.tabular import Tabular
from cdpo.errors import UserError
from cdpo.runs import RunFolder
from cdpo.tabular import CDPO, PSRL, UCRL, Chain, Oracle, Prior, Random, regret, simulate

AGENTS = ["oracle", "random", "psrl"]
TINY = "tabular --env chain --size 2 --seeds 2 --steps 40"
COMMAND = f"{TINY} --agents {' '.join(AGENTS)}"


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    """Compiled programs are kept by all processes of these tests, and not in the user's own cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


def call(line):
    """The exit code, standard output and standard error of a command in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = _run(shlex.split(line))
        except SystemExit as ended:  # tyro's help
            code = ended.code
    return code, out.getvalue(), err.getvalue()


def start(line, **options):
    """A command in a process of its own."""
    command = [sys.executable, "-m", "cdpo", *shlex.split(line)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, **options)


def results(folder):
    """The records of a run's summary, as they stand there."""
    return json.dumps(json.loads((Path(folder) / "summary.json").read_text())["results"])


def tree(folder):
    return sorted(str(path) for path in Path(folder).rglob("*"))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run, and what it said."""
    folder = tmp_path_factory.mktemp("run") / "parent" / "run"
    code, out, err = call(f"{COMMAND} --out {folder}")
    assert code == 0, err
    return folder, out, err


# Mistakes


@pytest.fixture(scope="module")
def playground(tmp_path_factory):
    """A folder with everything that a mistake may point at."""
    folder = tmp_path_factory.mktemp("playground")
    tables = {"transition": np.full((2, 1, 2), 0.5), "reward_mean": np.zeros((2, 1, 2))}
    np.savez(folder / "good.npz", **tables)
    np.savez(folder / "rows.npz", **{**tables, "transition": tables["transition"] * 0.9})
    np.savez(folder / "nan.npz", **{**tables, "reward_mean": np.full((2, 1, 2), np.nan)})
    np.savez(folder / "lacking.npz", transition=tables["transition"])
    np.savez(folder / "objects.npz", **{**tables, "reward_mean": np.array([{}])})
    (folder / "text.npz").write_text("transition")
    (folder / "pickle.npz").write_bytes(pickle.dumps(tables))
    (folder / "nothing.npz").touch()
    (folder / "cut.npz").write_bytes((folder / "good.npz").read_bytes()[:200])
    (folder / "file").write_text("mine")
    (folder / "empty").mkdir()
    RunFolder.create(folder / "unfinished", {"kind": "tabular"})
    told = {"env": "chain", "sizes": [2], "agents": ["psrl"], "seeds": 1, "seed": 0, "steps": 1}
    RunFolder.create(folder / "foreign", {"kind": "tabular", **told, "settings": {"ledgr": True}})
    RunFolder.create(folder / "strange", {"kind": "strange"})
    RunFolder.create(folder / "newer", {"kind": "train", "format": 99})
    RunFolder.create(folder / "other", {"kind": "reproduction", "figure": "chain", "scale": "quick"})
    finished = RunFolder.create(folder / "finished", {"kind": "tabular", "command": "cdpo tabular"})
    finished.write_summary({"results": []})
    return folder


MISTAKES = {
    # What does not exist, with the nearest that does.
    "tabulr": "did you mean 'tabular'?",
    "--foo": "unknown command '--foo'",
    "tabular --env chian": "did you mean 'chain'?",
    "tabular --env FrozenLake-v99": "unknown environment 'FrozenLake-v99'",
    "tabular --agents cdpo pslr": "did you mean 'psrl'?",
    "tabular --agnts cdpo": "unknown option --agnts; did you mean --agents?",
    "tabular --cdpo.etaa .1": "did you mean --cdpo.eta?",
    "tabular --chain.size 3": "unknown option --chain.size; did you mean --chain.pays?",
    "tabular --xyzzy=3": "unknown option --xyzzy (cdpo tabular --help lists them)",
    "tabular chain": "unexpected word 'chain'",
    "reproduce chian": "did you mean 'chain'?",
    "reproduce baselines --agents ppo": "unknown agent of baselines at this scale 'ppo'",
    "train inverted-pendulum --agent psrl --cdpo.kl 0.2": "--cdpo says nothing to --agent psrl with --solver dyna",
    "train inverted-pendulum --agent sac --dyna.horizon 3": "--dyna says nothing to --agent sac",
    "train inverted-pendulum --replay.batch 3": "--replay says nothing to --agent cdpo",
    "train inverted-pendulum --agent sac --replay.batch 0": "replay.batch must be at least 1",
    "train pusher --agent mbpo --solver mpc": "--solver says nothing to --agent mbpo",
    "train pusher --agent mbpo --learner ppo": "--learner says nothing to --agent mbpo",
    "train pusher --agent mbpo --mbpo.grown 3": "mbpo.grown must be above mbpo.growing, 20, not 3",
    "train pusher --agent me-trpo --sac.polyak 0.5": "--sac says nothing to --agent me-trpo",
    "train pusher --agent me-trpo --dyna.real 0.5": "--dyna.real says nothing to --agent me-trpo, as its other",
    "train pusher --agent me-trpo --me-trpo.share 2": "me_trpo.share must be in (0, 1], not 2",
    "train pusher --agent dpi --dpi.kl 0": "dpi.kl must be above 0, not 0",
    "train pusher --agent dpi --solver bptt": "--solver says nothing to --agent dpi",
    "train pusher --agent dpi --solver dyna": "--solver says nothing to --agent dpi",
    "train pusher --agent mpo --cdpo.kl 0.1": "--cdpo says nothing to --agent mpo",
    "train pusher --agent mbpo --sac.deviation 0.3": "--sac.deviation says nothing to --agent mbpo, as its other",
    "train pusher --sac.negentropy 0.3": "--sac.negentropy says nothing to --agent cdpo",
    "train pusher --agent ppo --ppo.deviation 0.3": "--ppo.deviation says nothing to --agent ppo, as its other",
    "train pusher --agent psrl --sac.multiplier-rate 0.3": "--sac.multiplier-rate says nothing to --agent psrl",
    "train pusher --agent sac --sac.critic per-model": "--sac.critic says nothing to --agent sac, as its other",
    "train pusher --agent slbo --slbo.turns 0": "slbo.turns must be at least 1, not 0",
    "train pusher --agent slbo --ensemble.likelihood gaussian": "ensemble.unrolled must be 0 for gaussian heads, not 2",
    "train inverted-pendulum --agent sacc": "did you mean 'sac'?",
    "train pusher --loop.stretch -1": "loop.stretch must be between 0 and 1000000, not -1",
    "train pusher --loop.random 0": "loop.random must be between 1 and 1000000, not 0",
    "train pusher --loop.random 6 --episodes 5": "episodes must be at least loop.random, 6, not 5",
    "train pusher --sac.learning-rate inf": "sac.learning_rate must be a finite number, not inf",
    "train pusher --actor-critic.trace 0.5": "--actor-critic says nothing to --agent cdpo",
    "train inverted-pendulum --agent ppo --newest.steps 0": "newest.steps must be at least 1",
    "train inverted-pendulum --agent ppo --replay.batch 3": "--replay says nothing to --agent ppo",
    "train inverted-pendulum --agent mpo --newest.steps 3": "--newest says nothing to --agent mpo",
    "train inverted-pendulum --agent mpo --sac.polyak 0.1": "--sac says nothing to --agent mpo",
    "reproduce exploration --tasks pushr --scale paper": "did you mean 'pusher'?",
    "reproduce exploration --tasks pusher --scale smoke": "unknown task of exploration at this scale 'pusher'",
    "reproduce exploration --agents sarsa": "unknown agent of exploration at this scale 'sarsa'",
    "reproduce regret --agents cdpo": "regret is made whole",
    "reproduce ablation --variants boundless": "unknown variant of ablation at this scale 'boundless'",
    # Numbers out of range.
    "tabular --size 1": "at least 2, not 1",
    "tabular --env deep-sea --size 0": "at least 2, not 0",
    "tabular --steps 0": "--steps must be between 1 and",
    "tabular --steps -5": "not -5",
    "tabular --steps 3000000000": "--steps must be between 1 and 1000000000",
    "tabular --seeds 0": "--seeds must be between 1 and",
    "tabular --seeds -1": "not -1",
    "tabular --seed -1": "--seed must be between 0 and",
    "tabular --period 0": "--period must be between 1 and",
    "tabular --cdpo.eta 1.01": "must be in [0, 1], not 1.01",
    "tabular --cdpo.eta -.1": "must be in [0, 1], not -0.1",
    "tabular --cdpo.eta nan": "must be in [0, 1], not nan",
    "tabular --prior.mean nan": "--prior.mean must be a finite number, not nan",
    "tabular --prior.strength inf": "--prior.strength must be a finite number, not inf",
    "tabular --prior.rate 0": "must be positive",
    "tabular --size 3 3": "a size is named twice",
    "tabular --agents psrl psrl": "an agent is named twice",
    "tabular --agents": "no agents are named",
    "reproduce ablation --variants": "no variants are named",
    "reproduce baselines --tasks": "no tasks are named",
    "reproduce --tasks pusher": "--tasks needs the name of a figure before it",
    "train pusher --agent mbpo --mbpo.grown 3000000": "mbpo.grown must be at most 1000000, not 3000000",
    "train pusher --loop.evaluation-episodes 10000000000": "loop.evaluation_episodes must be between 1 and 1000000",
    "train pusher --agent sac --sac.hidden 9999999999": "sac.hidden must hold sizes of at least 1 and at most 1000000",
    "train pusher --agent sac --replay.ratio 1e30": "replay.ratio must be at most 1000, not 1e+30",
    "train pusher --seeds 100000000": "seeds must be at least 1 and at most 10000, not 100000000",
    "train pusher --dyna.horizon 0": "dyna.horizon must be at least 1, not 0",
    "train pusher --dyna.particles 0": "dyna.particles must be at least 1, not 0",
    "train pusher --solver bptt --bptt.particles 0": "bptt.particles must be at least 1, not 0",
    "train CartPole-v1": "CartPole-v1 acts in a Discrete",
    "train CartPole-v1 --solver bptt": "CartPole-v1 acts in a Discrete",
    "train CartPole-v1 --solver mpc": "CartPole-v1 acts in a Discrete",
    "train pusher --bptt.horizon 3": "--bptt says nothing to --agent cdpo with --solver dyna",
    "train pusher --agent sac --solver bptt": "--solver says nothing to --agent sac",
    "train pusher --learner moo": "unknown learner 'moo'; did you mean 'mpo'?",
    "train pusher --learner actor": "unknown learner 'actor'",
    "train pusher --learner ppo --sac.polyak 0.5": "--sac says nothing to --agent cdpo with --solver dyna",
    "train pusher --learner ppo --dyna.real 0.5": "--dyna.real says nothing to --agent cdpo with --solver dyna",
    "train pusher --learner actor-critic --dyna.expansion mve": "--dyna.expansion says nothing to --agent cdpo",
    "train pusher --mpo.samples 4": "--mpo says nothing to --agent cdpo with --solver dyna and --learner sac",
    "train pusher --learner mpo --mpo.samples 0": "mpo.samples must be at least 1, not 0",
    "train pusher --solver bptt --learner mpo": "--learner says nothing to --agent cdpo with --solver bptt",
    "train pusher --agent sac --learner mpo": "--learner says nothing to --agent sac; leave it out",
    "tabular --env bandit --chain.pays attempt": "--chain says nothing to --env bandit; leave its options out",
    "tabular --agents psrl --cdpo.eta 0.05": "--cdpo says nothing to --agents psrl; leave its options out",
    "train pusher --dyna.expanded 0": "dyna.expanded must be at least 1, not 0",
    "train pusher --bptt.horizon 0": "bptt.horizon must be at least 1, not 0",
    "train pusher --bptt.updates 0": "bptt.updates must be at least 1, not 0",
    "train pusher --mpc.horizon 3": "--mpc says nothing to --agent cdpo with --solver dyna",
    "train pusher --solver mpc --mpc.horizon 0": "mpc.horizon must be at least 1, not 0",
    "train pusher --solver mpc --mpc.particles 0": "mpc.particles must be at least 1, not 0",
    "train pusher --solver mpc --mpc.candidates 0": "mpc.candidates must be at least 1, not 0",
    "train pusher --solver mpc --mpc.elites 0": "mpc.elites must be at least 1, not 0",
    "train pusher --solver mpc --mpc.elites 99": "mpc.elites must be at most the 16 candidates, not 99",
    "train pusher --solver mpc --mpc.moves actions --mpc.distils averaging": "mpc.distils averaging is of parameters",
    # Values that are no such thing.
    "tabular --steps abc": "--steps",
    "tabular --steps": "Missing value for argument '--steps'",
    "tabular --size a": "--size",
    "tabular --cdpo.eta much": "--cdpo.eta",
    "tabular --cdpo.constraint foo": "invalid choice 'foo' for argument '--cdpo.constraint'",
    "reproduce chain --scale tiny": "invalid choice 'tiny' for argument '--scale'",
    "train pusher --solver btpt": "for argument '--solver'. Expected one of ('dyna', 'bptt', 'mpc')",
    "train pusher --dyna.expansion stev": "invalid choice 'stev' for argument '--dyna.expansion'",
    "train pusher --bptt.kind svgg": "invalid choice 'svgg' for argument '--bptt.kind'",
    # Files and environments that cannot become an MDP.
    "tabular --env rows.npz": "transition[0, 0] sums to 0.9, not to 1",
    "tabular --env nan.npz": "reward_mean[0, 0, 0] is nan",
    "tabular --env lacking.npz": "lacks the array 'reward_mean'",
    "tabular --env objects.npz": "objects.npz is not a readable .npz file of arrays",
    "tabular --env text.npz": "text.npz is not a readable .npz file of arrays",
    "tabular --env pickle.npz": "pickle.npz is not a readable .npz file of arrays",
    "tabular --env nowhere.npz": "nowhere.npz is not a readable .npz file of arrays",
    "tabular --env nothing.npz": "nothing.npz is not a readable .npz file of arrays",
    "tabular --env cut.npz": "cut.npz is not a readable .npz file of arrays",
    "tabular --env good.npz --size 3": "has no sizes",
    "tabular --env CartPole-v1": "has no transition table",
    "tabular --env Humanoid-v2": "Gymnasium cannot make Humanoid-v2",
    # Models that cannot serve a task.
    "train Pendulum-v1 --ensemble.kind linear --out made/run": "linear models cannot learn the reward of Pendulum-v1",
    # Folders.
    "tabular --out empty": "'empty' already exists; choose another",
    "tabular --out file": "'file' already exists; choose another",
    "tabular --out file/run": "Not a directory",
    "tabular --out /proc/run": "cannot create '/proc/run'",
    "reproduce chain --out empty": "it has no config.json",
    "reproduce chain --out file/run": "Not a directory",
    "reproduce chain --scale smoke --out other": "holds another run",
    "reproduce chain --scale quick --out finished": "holds another run",
    "report": "no run folder is named",
    "report nowhere": "there is no such folder",
    "report empty": "it has no config.json",
    "report file": "is not a run",
    "report unfinished": "has not finished",
    "report strange": "unknown kind of run 'strange'",
    "resume": "cdpo resume --help",
    "resume nowhere": "there is no such folder",
    "resume empty": "it has no config.json",
    "resume finished": "has finished; there is nothing to go on with",
    "resume unfinished": "the settings of the run cannot be read; run it again elsewhere",
    "resume foreign": "unknown setting of tabular 'ledgr'; did you mean 'ledger'?",
    "resume other": "is a reproduction; go on with: cdpo reproduce",
    "resume strange": "of kind 'strange', which cannot be resumed",
    "resume newer": "has format 99, and this cdpo reads up to 2; install a newer cdpo",
    "evaluate newer": "install a newer cdpo",
    "report newer": "install a newer cdpo",
    "report other": "has no figures yet; go on with: cdpo reproduce",
}


@pytest.mark.parametrize("line", MISTAKES)
def test_a_mistake_is_one_line_and_leaves_nothing(playground, monkeypatch, line):
    monkeypatch.chdir(playground)
    before = tree(playground)
    code, out, err = call(line if " --out " in line or not line.startswith("tabular") else f"{line} --out made/run")
    assert (code, out) == (2, "")
    assert err.startswith("cdpo: ") and err.count("\n") == 1 and err.endswith("\n")
    assert MISTAKES[line] in err
    assert tree(playground) == before


def test_too_little_memory_is_told_in_one_line(monkeypatch):
    def run(self, words):
        raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 400000000000 bytes.\nAnd more lines.")

    monkeypatch.setattr(COMMANDS["train"], "run", run)
    code, out, err = call("train pusher --agent mpo --mpo.samples 1000000")
    assert (code, out) == (2, "") and err.startswith("cdpo: there is not enough memory") and err.count("\n") == 1


def test_a_mistake_in_a_process_has_no_traceback_and_no_colours(tmp_path):
    ended = start("tabular --env chian --out run", cwd=tmp_path)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert re.fullmatch(r"cdpo: unknown environment 'chian'; did you mean 'chain'\?[^\n\x1b]*\n", ended.stderr)
    assert tree(tmp_path) == []


# Help


@pytest.mark.parametrize("line", ["", "--help", "-h"])
def test_the_overview_names_every_command(line):
    code, out, err = call(line)
    assert (code, err) == (0, "")
    assert out.startswith("usage: cdpo COMMAND")
    for name, command in COMMANDS.items():
        assert f"  {name} " in out and command.__doc__.splitlines()[0] in out


def options(out):
    """What a help text says of every option.

    "│ --prior.mean FLOAT   Normal-Gamma mu0: ... (default: 0.0) │", continued on lines without an option.
    """
    text = " ".join(line.strip("│ ") for line in out.splitlines())
    parts = re.split(r"(?:^| )(--[a-z][\w.-]*)(?:, --[\w.-]+)?(?= )", text)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.parametrize("name", COMMANDS)
def test_help_explains_every_option(name, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    code, out, err = call(f"{name} --help")
    assert (code, err) == (0, "")
    assert "\x1b" not in out
    explained = options(out)
    for flag in _flags(COMMANDS[name]):
        if flag in ("--folder", "--folders", "--figure", "--task"):
            assert "positional arguments" in out
            continue
        words = re.sub(r"^\s*(\{[^}]*\}(\|\S+)?|\[[^\]]*\]+|[A-Z]+)|\(default:.*", "", explained[flag])
        assert len(words.split()) >= 2, (flag, explained[flag])


def test_help_without_a_task_says_where_settings_come_from(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    code, out, _ = call("train --help")
    assert code == 0 and out.startswith("usage: cdpo train [-h] [OPTIONS] TASK")
    assert "What is not given comes from the preset of the task (--preset)" in out and "config.json" in out
    assert "(default: 10)" in options(out)["--dyna.rounds"]
    for mistake in ("half-cheeta", "half-cheetah --seeds x", "half-cheetah --agent none"):  # help comes all the same
        assert call(f"train {mistake} --help") == (0, out, "")


@pytest.mark.slow(besides="pusher --learner actor-critic")
@pytest.mark.parametrize(
    "words",
    [
        "half-cheetah",
        "pusher --preset paper --agent psrl --psrl.models 7",
        "pendulum-swingup --dyna.horizon 3",
        "pusher --solver bptt",
        "pusher --learner actor-critic",
        "inverted-pendulum --solver mpc",
        "half-cheetah --agent mbpo",
    ],
)
def test_help_beside_a_task_shows_what_would_be_run(monkeypatch, words):
    monkeypatch.setenv("COLUMNS", "100")
    command = parse(["train", *shlex.split(words)])
    for line in (f"train {words} --help", f"train -h {words}"):
        code, out, err = call(line)
        assert (code, err) == (0, "")
        assert f"--preset {command.preset} for {command.task}, --agent {command.agent}" in out
        shown = options(out)
        learner = command.learner.replace("-", "_")
        solving = {"dyna": ("dyna", learner), "bptt": ("bptt",), "mpc": ("mpc",)}[command.solver]
        for part in (*solving, command.agent):
            for name, value in dataclasses.asdict(getattr(command, part)).items():
                told = " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
                assert f"(default: {told})" in shown[f"--{part}.{name}".replace("_", "-")]


def test_version_says_what_a_bug_report_needs():
    code, out, err = call("--version")
    assert (code, err) == (0, "")
    assert out.startswith(f"cdpo {__version__}\n")
    for words in (f"jax: {jax.__version__}", f"numpy: {np.__version__}", f"backend: {jax.default_backend()}"):
        assert f"  {words}\n" in out
    assert f"  device: {jax.devices()[0].device_kind}\n" in out


@pytest.mark.slow
def test_a_reader_that_has_had_enough_gets_no_traceback():
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "cdpo", "--help"]
    with os.fdopen(write, "wb") as pipe:
        ended = subprocess.run(command, stdout=pipe, stderr=subprocess.PIPE, text=True, timeout=300)
    assert (ended.returncode, ended.stderr) == (0, "")


# Runs


def test_a_run_folder_holds_what_the_contract_says(run):
    folder, out, _ = run
    names = {"config.json", "metrics.jsonl", "summary.json", "figures", ".lock"}
    assert {path.name for path in folder.iterdir()} == names
    assert {path.name for path in (folder / "figures").iterdir()} == {"regret.png", "regret.svg", "regret.csv"}
    config = json.loads((folder / "config.json").read_text())
    assert config["kind"] == "tabular" and config["command"] == f"cdpo {COMMAND} --out {folder}"
    assert (config["env"], config["sizes"], config["agents"]) == ("chain", [2], AGENTS)
    assert (config["seeds"], config["seed"], config["steps"]) == (2, 0, 40)
    assert config["settings"]["cdpo"]["eta"] == 0.2 and config["settings"]["prior"]["strength"] == 4.0

    summary = json.loads((folder / "summary.json").read_text())
    assert {"results", "versions"} <= summary.keys()
    assert {"cdpo", "python", "jax", "numpy"} <= summary["versions"].keys()
    assert [each["agent"] for each in summary["results"]] == AGENTS
    for each in summary["results"]:
        assert (each["env"], each["size"], each["steps"]) == ("chain", 2, 40)
        assert each["settings"]["environment"] == {"pays": "success"}
        for name in ("regret", "expected_regret", "normalised_regret", "value_regret"):
            assert len(each[name]) == 2 and all(isinstance(value, float) for value in each[name]), name
        assert 0 <= each["stuck_fraction"] <= 1
        curve = each["curve"]
        assert curve.keys() == {"steps", "mean", "low", "high"}
        assert curve["steps"] == [*range(3, 40, 3), 40]
        assert all(
            low <= mean <= high for low, mean, high in zip(curve["low"], curve["mean"], curve["high"], strict=True)
        )
        assert curve["mean"][-1] == pytest.approx(np.mean(each["regret"]), rel=1e-5)
    lines = RunFolder.open(folder).records()
    assert sorted(lines, key=lambda each: AGENTS.index(each["agent"])) == summary["results"]

    table = [row.split() for row in out.splitlines()]
    assert [row[2] for row in table[1:4]] == AGENTS
    for row, each in zip(table[1:4], summary["results"], strict=True):
        assert row[3] == f"{np.mean(each['normalised_regret']):.3f}"
        assert row[-3:-1] == [f"{np.mean(each[name]):.1f}" for name in ("expected_regret", "value_regret")]
    assert out.splitlines()[-1] == f"run folder: {folder}   page: cdpo report {folder}"


@pytest.fixture
def trap(tmp_path):
    """An MDP of which half of the seeds begin where a reward is soon beyond all numbers."""
    rewards = {"reward_mean": np.ones((2, 1, 2)), "reward_sd": [[[0.0] * 2], [[3e38] * 2]]}
    np.savez(tmp_path / "trap.npz", transition=np.eye(2)[:, None], start=[0.5, 0.5], **rewards)
    return f"tabular --env {tmp_path / 'trap.npz'} --agents random --seeds 4 --steps 40"


def test_a_seed_that_bad_numbers_stop_is_told_and_the_others_count(trap, tmp_path):
    code, out, err = call(f"{trap} --out {tmp_path / 'run'}")
    (record,) = json.loads(results(tmp_path / "run"))
    stopped = [int(seed) for seed in record["stopped"]]
    assert code == 3 and 0 < len(stopped) < 4
    for name in ("regret", "expected_regret", "normalised_regret", "value_regret"):
        assert [seed for seed, value in enumerate(record[name]) if value is None] == stopped
    told = [line for line in err.splitlines() if "was stopped by" in line]
    assert len(told) == len(stopped)
    for seed, line in zip(stopped, told, strict=True):
        where = rf"cdpo: seed {seed} of .*trap\.npz, random was stopped by"
        assert re.fullmatch(rf"{where} the reward in block \d+, after \d+ steps: not a finite number", line)
    assert out.splitlines()[1].split()[-1] == "0%"  # the others earn what the oracle earns
    assert call(f"report {tmp_path / 'run'}")[0] == 0
    assert "Stopped by bad numbers: seed" in (tmp_path / "run" / "report.html").read_text()


def test_a_run_whose_every_seed_is_stopped_has_a_table_and_a_page_of_no_numbers(trap, tmp_path):
    call(f"{trap} --out {tmp_path / 'some'}")
    (record,) = json.loads(results(tmp_path / "some"))
    seed = next(iter(record["stopped"]))
    code, out, _ = call(f"{trap} --seed {seed} --seeds 1 --out {tmp_path / 'run'}")
    assert code == 3
    assert out.splitlines()[1].split()[-5:] == ["-"] * 5
    assert call(f"report {tmp_path / 'run'}")[0] == 0


def test_python_gives_the_numbers_of_the_command_line(run):
    records = {each["agent"]: each for each in json.loads(results(run[0]))}
    oracle = simulate(Chain(2), Oracle(), seeds=2, steps=40)
    for agent in (Random(), PSRL()):
        lost = regret(simulate(Chain(2), agent, seeds=2, steps=40), oracle)
        assert lost.realised[:, -1].tolist() == records[agent.name]["regret"]
        assert lost.expected[:, -1].tolist() == records[agent.name]["expected_regret"]
        assert lost.normalised.tolist() == records[agent.name]["normalised_regret"]
        assert lost.value[:, -1].tolist() == records[agent.name]["value_regret"]


def test_the_configuration_is_enough_to_repeat_a_run(run, tmp_path):
    words = shlex.split(RunFolder.open(run[0]).config["command"])
    assert words[0] == "cdpo"
    words[words.index("--out") + 1] = str(tmp_path / "again")
    assert call(shlex.join(words[1:]))[0] == 0
    assert results(tmp_path / "again") == results(run[0])


@pytest.mark.slow
def test_fresh_processes_agree_to_the_byte_and_write_plain_text(tmp_path):
    ended = [start(f"{TINY} --agents psrl --out {name}", cwd=tmp_path) for name in ("a", "b")]
    for each in ended:
        assert each.returncode == 0, each.stderr
        assert "\x1b" not in each.stdout + each.stderr and "\r" not in each.stdout + each.stderr
    assert results(tmp_path / "a") == results(tmp_path / "b")


def test_settings_reach_the_agent(tmp_path):
    settings = "--cdpo.models 3 --cdpo.eta .3 --cdpo.constraint none --prior.mean .1"
    assert call(f"{TINY} --agents cdpo {settings} --out {tmp_path / 'run'}")[0] == 0
    (record,) = json.loads(results(tmp_path / "run"))
    assert [record["settings"][name] for name in ("models", "eta", "constraint")] == [3, 0.3, "none"]
    assert record["settings"]["prior"]["mean"] == 0.1
    told = CDPO(models=3, eta=0.3, constraint="none")
    ran = simulate(Chain(2), told, seeds=2, steps=40, prior=Prior(mean=0.1))
    assert np.cumsum(ran.value_gap, axis=1, dtype=float)[:, -1].tolist() == record["value_regret"]


def test_every_kind_of_setting_reaches_the_cells():
    line = "tabular --size 2 3 --agents cdpo ucrl --seeds 3 --seed 7 --steps 9 --period 4 --ledger"
    line += " --chain.pays attempt --cdpo.aggregation quantile --prior.rate 2"
    cells = parse(shlex.split(line)).cells()
    assert [(cell.size, cell.agent) for cell in cells] == [
        (size, agent) for size in (2, 3) for agent in (CDPO(aggregation="quantile"), UCRL())
    ]
    for cell in cells:
        assert cell.environment == Chain(cell.size, pays="attempt") and cell.prior == Prior(rate=2.0)
        assert (cell.seeds, cell.seed, cell.steps, cell.period, cell.ledger) == (3, 7, 9, 4, True)


def test_a_report_of_a_run_is_one_page_that_loads_nothing(run):
    code, out, err = call(f"report {run[0]}")
    assert (code, err) == (0, "")
    path = Path(out.splitlines()[-1])
    assert path == run[0] / "report.html"
    page = path.read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>") and "PSRL" in page and "chain, size 2" in page
    assert not re.search(r"https?:|@import|<(script|link|img|iframe|object|embed)\b|\bsrc=|href=\"[^#]", page)
    path.unlink()


# Interruptions


# A command that gets a signal as soon as its first cell is on the disk, while others are under way.
STRUCK = """
import os, signal, sys
from cdpo.cli import main
from cdpo.runs import RunFolder
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a background shell takes away
keep, left = RunFolder.append, [sys.argv[1]]
def append(folder, record):
    keep(folder, record)
    if left:
        os.kill(os.getpid(), getattr(signal, left.pop()))
RunFolder.append = append
sys.argv[1:] = sys.argv[2:]
main()
"""


@pytest.mark.slow(besides="SIGKILL")
@pytest.mark.parametrize("name", ["SIGINT", "SIGKILL"])
def test_an_interrupted_run_goes_on_and_ends_as_if_nothing_had_happened(run, tmp_path, name):
    folder = tmp_path / "my run"
    words = [*shlex.split(COMMAND), "--out", str(folder)]
    command = [sys.executable, "-c", STRUCK, name, *words]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
    kept = RunFolder.open(folder).records()
    assert 1 <= len(kept) < len(AGENTS)
    assert not (folder / "summary.json").exists()
    if name == "SIGINT":
        assert ended.returncode == 130
        hint = ended.stderr.splitlines()[-1]
        assert hint.endswith(f"go on with: cdpo resume '{folder}'") and "Traceback" not in ended.stderr
    else:
        assert ended.returncode == -signal.SIGKILL

    code, out, err = call(f"resume '{folder}'")
    assert code == 0, err
    assert out.splitlines()[:-1] == run[1].splitlines()[:-1]
    assert results(folder) == results(run[0])
    assert RunFolder.open(folder).records()[: len(kept)] == kept
    code, out, err = call(f"resume '{folder}'")
    assert (code, out) == (2, "") and "has finished" in err


def test_a_torn_record_is_run_again(run, tmp_path):
    folder = RunFolder.create(tmp_path / "run", RunFolder.open(run[0]).config)
    whole = (run[0] / "metrics.jsonl").read_bytes()
    (folder.path / "metrics.jsonl").write_bytes(whole[: -len(whole.splitlines()[-1]) // 2])
    assert call(f"resume {folder.path}")[0] == 0
    assert results(folder.path) == results(run[0])


def test_what_a_killed_process_left_half_written_goes_with_the_next_resume(run, tmp_path):
    folder = RunFolder.create(tmp_path / "run", RunFolder.open(run[0]).config)
    (folder.path / "metrics.jsonl").write_bytes((run[0] / "metrics.jsonl").read_bytes())
    left = folder.path / f".cdpo-{'0' * 32}.tmp"
    left.touch()
    assert call(f"resume {folder.path}")[0] == 0
    assert not left.exists()
    assert results(folder.path) == results(run[0])


@pytest.mark.parametrize(
    "words",
    [
        "",
        "--env good.npz --agents oracle --period 3",
        "--env deep-sea --size 3 4 --deep-sea.no-shuffle --agents mm q-learning --mm.zeta 2 --q-learning.epsilon 0",
        "--agents cdpo ucrl --cdpo.constraint none --cdpo.quantile .5 --ledger --steps 7 --seed 4 --prior.mean -1",
    ],
)
def test_what_config_json_holds_is_the_command_again(playground, monkeypatch, words):
    monkeypatch.chdir(playground)
    command = parse(shlex.split(f"tabular {words}"))
    cells = command.cells()
    told = json.loads(json.dumps(command.to_json(cells)))
    assert repr(Tabular.from_json(told).cells()) == repr(cells)  # some hold arrays
    assert Tabular.from_json(told).to_json(cells) == command.to_json(cells)


@pytest.mark.parametrize("wrong", [{"seeds": "2"}, {"agents": "psrl"}, {"settings": {"cdpo": 1}}, {"sizes": None}])
def test_a_config_json_that_holds_something_else_is_one_line(playground, wrong):
    told = parse(["tabular"])
    with pytest.raises(UserError) as caught:
        Tabular.from_json(told.to_json(told.cells()) | wrong)
    assert "\n" not in str(caught.value)
