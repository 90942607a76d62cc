"""The ensemble: a least-squares reference on all training rows, and heads on bootstrap samples of them."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from cdpo.dynamics.networks import MLP, Normaliser, rescale_inputs, rescale_outputs
from cdpo.dynamics.replay import Replay, Transition, draw_below
from cdpo.errors import UserError
from cdpo.tasks import Task
from cdpo.told import Told

_CHECKED = 512  # held-out rows at which the fit is judged
_FEWEST_HELD_OUT = 8  # with fewer, the training rows judge
_AVERAGED = 0.98  # of the average of the iterates, kept at each step
_WORTHWHILE = 0.99  # the error on held-out rows must fall below this share of the least to count as progress
# Of a state's deviation: smaller changes in a step are no changes. An object that lies still trembles by 1e-7 in a
# simulator; if that were the unit, the first push would be a million of them.
_FELT = 1e-3
_EXACT = 1e-12  # squared z-scores that are no error
_LOG_VARIANCE = (-12.0, 2.0)
_BLOCK = 10  # consecutive rows on one side
_EPISODES_IN_BLOCKS = 20  # as long as episodes are few
_BLOCK_TURN = np.uint32(round(2**32 * (5**0.5 - 1) / 2))
_EPISODE_TURN = np.uint32(round(2**32 * (2**0.5 - 1)))
# P(X <= k) of a Poisson variable of mean 1; beyond 6 lies 1e-5 of it
_POISSON = (0.36788, 0.73576, 0.91970, 0.98101, 0.99634, 0.99941)


@dataclass(frozen=True)
class EnsembleSettings(Told, zero=("weight_decay", "test", "unrolled")):
    """How the dynamics are modelled and fitted."""

    part: ClassVar[str] = "ensemble"

    kind: Literal["neural", "linear"] = "neural"
    """Networks, fitted by gradient steps; or linear models, whose reference is the mean of their exact posterior and
    whose heads are draws from it. For these only heads, likelihood and test count among what follows."""
    heads: int = 5
    """Members on bootstrap samples; the least-squares reference is one more."""
    hidden: tuple[int, ...] = (128, 128)
    """Sizes of the hidden layers."""
    likelihood: Literal["deterministic", "gaussian"] = "deterministic"
    """Predict the next state, or also its variance."""
    data: Literal["bootstrap", "disjoint", "all"] = "bootstrap"
    """What a head is fitted on: fixed Poisson weights per transition, a part of the data of its own, or all of them."""
    unrolled: int = 0
    """Steps of a loss by the norm of errors, not squared, along which a member goes on from its own predictions, for
    deterministic heads (Luo et al. 2018); 0: squared errors or likelihood of single steps."""
    steps: int = 300
    """Most gradient steps in an iteration."""
    patience: int = 3
    """Checks of the error on held-out rows without progress before the fit stops."""
    check: int = 50
    """Gradient steps between checks."""
    batch: int = 256
    """Rows in a minibatch, drawn for each member by itself."""
    learning_rate: float = 1e-3
    """Of Adam."""
    weight_decay: float = 1e-5
    """Decoupled, as in AdamW."""
    held_out: float = 0.1
    """Share of rows on which fits are stopped and calibrated."""
    test: float = 0.05
    """Share of rows used for nothing but to measure the calibration."""

    def __post_init__(self) -> None:
        """Some rows are fitted to, and the norm of errors has no variance."""
        super().__post_init__()
        if not self.held_out + self.test < 1:
            raise UserError("ensemble.held_out and ensemble.test must be less than 1 together")
        if self.unrolled and self.likelihood == "gaussian":
            raise UserError(f"ensemble.unrolled must be 0 for gaussian heads, not {self.unrolled}")

    @property
    def optimiser(self) -> optax.GradientTransformation:
        """Adam with decoupled weight decay; nothing, which remembers nothing, where the fit is exact."""
        if self.kind == "linear":
            return optax.identity()
        return optax.adamw(self.learning_rate, weight_decay=self.weight_decay)


class Prediction(NamedTuple):
    """What members say of a transition, in z-scores of the targets; o = d, or d + 1 where the reward is learned."""

    mean: Array  # [..., B, o]
    deviation: Array | None  # [..., B, o], noise; None for deterministic heads
    end: Array | None  # [..., B], log-odds of termination; None where the task's rule is known


class Ensemble(eqx.Module):
    """Stacked members; number 0 is the reference."""

    net: MLP  # leading axis: 1 + heads
    inputs: Normaliser  # of the task's features
    targets: Normaliser  # of the differences, and of the reward where it is learned
    fits: Array  # int32, how often it was fitted
    held_out: Array  # [members], squared error on held-out rows after the last fit; zeros where none was taken
    gaussian: bool = eqx.field(static=True)
    learns_reward: bool = eqx.field(static=True)
    learns_end: bool = eqx.field(static=True)

    @classmethod
    def create(cls, task: Task, settings: EnsembleSettings, key: Array) -> Self:
        """Untrained."""
        linear = settings.kind == "linear"
        if linear and (task.reward is None or task.terminates is None):
            what = "reward" if task.reward is None else "end"
            raise UserError(f"linear models cannot learn the {what} of {task.name}; give it, or ensemble.kind neural")
        features = feature_size(task)
        outputs = task.observations + (task.reward is None)
        width = outputs * (2 if settings.likelihood == "gaussian" else 1) + (task.terminates is None)
        sizes = (features + task.actions, *(() if linear else settings.hidden), width)
        net = MLP.create(key, sizes, (1 + settings.heads,))
        # Away from the data the reference should say as little as possible, the heads different things.
        net = eqx.tree_at(lambda n: n.weights[-1], net, net.weights[-1].at[0].multiply(0.1))
        return cls(
            net=net,
            inputs=_range_of(task) if task.broad is not None else Normaliser.identity(features),
            targets=Normaliser.identity(outputs),
            fits=jnp.zeros((), jnp.int32),
            held_out=jnp.zeros(1 + settings.heads),
            gaussian=settings.likelihood == "gaussian",
            learns_reward=task.reward is None,
            learns_end=task.terminates is None,
        )

    @property
    def members(self) -> int:
        """One reference and the heads."""
        return self.net.weights[0].shape[0]

    def encode(self, task: Task, observation: Array, action: Array) -> Array:
        """What the networks see."""
        return jnp.concatenate([self.inputs(task.features(observation)), action], axis=-1)

    def read(self, output: Array) -> Prediction:
        """The parts of a network's output."""
        size = self.targets.mean.shape[-1]
        deviation = None
        if self.gaussian:
            deviation = jnp.exp(0.5 * bounded(output[..., size : 2 * size]))
        return Prediction(output[..., :size], deviation, output[..., -1] if self.learns_end else None)

    def target(self, transition: Transition) -> Array:
        """What the networks should say, [..., o]."""
        raw = transition.next - transition.observation
        if self.learns_reward:
            raw = jnp.concatenate([raw, transition.reward[..., None]], axis=-1)
        return self.targets(raw)

    def renormalised(self, inputs: Normaliser, targets: Normaliser) -> Self:
        """The same functions with other normalisers, except that what begins to vary is said to lie still.

        Predicted noise is the same only as far as it is well inside its bounds.
        """
        net = rescale_outputs(rescale_inputs(self.net, self.inputs, inputs), self.targets, targets)
        if self.gaussian:
            size = targets.mean.shape[-1]
            shift = 2 * jnp.log(self.targets.deviation / targets.deviation)
            bias = net.biases[-1].at[..., size : 2 * size].add(shift)
            net = eqx.tree_at(lambda n: n.biases[-1], net, bias)
        return eqx.tree_at(lambda e: (e.net, e.inputs, e.targets), self, (net, inputs, targets))

    def loss(self, task: Task, transition: Transition) -> Array:
        """Of each member on each row, [members, B]: squared error or weighted negative log-likelihood, summed.

        The likelihood of a part is weighted by the variance that is expected of it (Seitzer et al. 2022, with a beta
        of 1), so that means follow squared errors, and variances them. Unweighted, the gradients of members that are
        sure and meet what they do not know are so large that by their errors they get worse, and fits stood still.
        """
        error, prediction = self._errors(task, transition)
        if prediction.deviation is None:
            return self._ended(jnp.sum(error**2, axis=-1), prediction, transition)
        variance = jax.lax.stop_gradient(prediction.deviation) ** 2
        surprise = 0.5 * (error / prediction.deviation) ** 2 + jnp.log(prediction.deviation)
        return self._ended(jnp.sum(variance * surprise, axis=-1), prediction, transition)

    def misses(self, task: Task, transition: Transition) -> Array:
        """Of each member on each row, [members, B]: squared error, whatever noise a member expects."""
        error, prediction = self._errors(task, transition)
        return self._ended(jnp.sum(error**2, axis=-1), prediction, transition)

    def _errors(self, task: Task, transition: Transition) -> tuple[Array, Prediction]:
        prediction = self.read(self.net(self.encode(task, transition.observation, transition.action)))
        return self.target(transition) - prediction.mean, prediction

    def _ended(self, lost: Array, prediction: Prediction, transition: Transition) -> Array:
        """With what a prediction of the end lost, where it is learned."""
        if prediction.end is None:
            return lost
        return lost + optax.sigmoid_binary_cross_entropy(prediction.end, transition.terminated)


def unrolled_loss(ensemble: Ensemble, task: Task, taken: Transition, counts: Array) -> Array:
    """Of each member on each run of transitions [H, ..., B], [members, B]: the mean over its steps of

        || (s^_i+1 - s^_i) - (s_i+1 - s_i) ||_2,    s^_0 = s_0,  s^_i+1 = f(s^_i, a_i)

    in z-scores, without the square (Luo et al. 2018, equation 6.1); over the steps of a run that count [H, ..., B].
    """
    state, total = taken.observation[0], jnp.zeros(())
    for number, count in enumerate(counts):
        now = Transition(*(leaf[number] for leaf in taken))
        prediction = ensemble.read(ensemble.net(ensemble.encode(task, state, now.action)))
        error = ensemble.target(now) - prediction.mean
        # The root's gradient at 0 is not a number.
        lost = jnp.sqrt(jnp.sum(error**2, axis=-1) + _EXACT)
        if prediction.end is not None:
            lost = lost + optax.sigmoid_binary_cross_entropy(prediction.end, now.terminated)
        total = total + count * lost
        state = state + ensemble.targets.undo(prediction.mean)[..., : task.observations]
    return total / jnp.sum(counts, axis=0)


def bounded(raw: Array) -> Array:
    """The log-variance that a network means: softly between bounds."""
    low, high = _LOG_VARIANCE
    return low + jax.nn.softplus(high - jax.nn.softplus(high - raw) - low)


def unbounded(log_variance: Array) -> Array:
    """What a network must say to mean a log-variance; the nearest inside the bounds."""
    low, high = _LOG_VARIANCE
    above = jnp.log(jnp.expm1(jnp.clip(log_variance, low + 0.01, high - 0.01) - low))
    return high - jnp.log(jnp.expm1(high - low - above))


def feature_size(task: Task) -> int:
    """Numbers that networks see of an observation."""
    return jax.eval_shape(task.features, jax.ShapeDtypeStruct((task.observations,), jnp.float32)).shape[-1]


def _range_of(task: Task) -> Normaliser:
    """Of the states that the task is known to range over.

    First data are narrow: a pendulum that hangs. By their z-scores the upright one would be hundreds away, and what
    networks say of it noise, where imagined rollouts that begin there should teach.
    """
    assert task.broad is not None
    low, high = task.broad
    states = low + (high - low) * jax.random.uniform(jax.random.key(0), (4096, task.observations))
    return Normaliser.of(task.features(states), jnp.ones(4096, bool))


class Split(NamedTuple):
    """Which rows serve for what: rows that follow each other are alike, and would tell of each other across sides.

    Of the first episodes blocks of consecutive rows are held out or tested on, later whole episodes. It depends on the
    episode's number and the row's place in it alone, so that a row never changes sides.
    """

    train: Array  # [capacity] row numbers, the training rows first
    held_out: Array
    test: Array
    counts: Array  # [3]: how many of each
    weights: Array  # [capacity, members]: of each row in each member's loss; all ones for the reference

    def spread(self, part: int, count: int) -> Array:
        """`count` row numbers, evenly over the train (0), held-out (1) or test (2) rows; repeated if there are few."""
        order = (self.train, self.held_out, self.test)[part]
        return order[(jnp.arange(count) * self.counts[part]) // count]

    @property
    def judges(self) -> Array:
        """How many held-out rows there are to judge by; 0 where they are so few that training rows have to serve."""
        return jnp.where(self.counts[1] < _FEWEST_HELD_OUT, 0, self.counts[1])

    def judged(self, count: int) -> Array:
        """`count` row numbers by which a fit is judged."""
        return jnp.where(self.judges == 0, self.spread(0, count), self.spread(1, count))

    def member_of(self, part: int) -> Array:
        """Which rows are train (0), held-out (1) or test (2) rows, [capacity]."""
        order = (self.train, self.held_out, self.test)[part]
        return jnp.zeros(len(order), bool).at[order].set(jnp.arange(len(order)) < self.counts[part])


def split_rows_of(replay: Replay, settings: EnsembleSettings, key: Array) -> Split:
    """The split of a replay."""
    numbers = jnp.arange(replay.capacity)
    by_row, by_block = jax.random.split(key)
    uniform = jax.vmap(lambda i: jax.random.uniform(jax.random.fold_in(by_row, i), (1 + settings.heads,)))(numbers)
    part, lots = uniform[:, 0], uniform[:, 1:]
    side = _sides_of(replay.episodes, settings.test + settings.held_out, by_block)
    is_test = side < settings.test
    is_held_out = ~is_test & (side < settings.test + settings.held_out)
    roles = (~is_test & ~is_held_out, is_held_out, is_test)
    orders = [jnp.argsort(~(role & replay.valid), stable=True) for role in roles]
    counts = jnp.stack([jnp.sum(role & replay.valid) for role in roles])
    if settings.data == "bootstrap":
        weights = jnp.sum(lots[:, :, None] > jnp.asarray(_POISSON), axis=-1).astype(jnp.float32)
    elif settings.data == "all":
        weights = jnp.ones_like(lots)
    else:
        own = (part[:, None] * settings.heads).astype(jnp.int32) == jnp.arange(settings.heads)
        weights = own * float(settings.heads)
    weights = jnp.concatenate([jnp.ones((replay.capacity, 1)), weights], axis=-1)
    return Split(orders[0], orders[1], orders[2], counts, weights)


def _sides_of(episodes: Array, apart: Array | float, key: Array) -> Array:
    """A number in [0, 1) for each row, the same in a block: the lowest, `apart` in all, are not trained on.

    Numbers are not drawn one by one: of few blocks by chance none might be held out. Steps of irrational length around
    a circle leave no gap for long (Kronecker). They begin so that the first block of episode 0 is trained on.
    """
    numbers = jnp.arange(len(episodes))
    begins = jnp.concatenate([jnp.ones(1, bool), episodes[1:] != episodes[:-1]])
    place = numbers - jax.lax.cummax(jnp.where(begins, numbers, 0))
    blocks = jnp.where(episodes < _EPISODES_IN_BLOCKS, place // _BLOCK, 0)
    # In whole numbers modulo 2^32: of large ones no digit is lost.
    turn = episodes.astype(jnp.uint32) * _EPISODE_TURN + blocks.astype(jnp.uint32) * _BLOCK_TURN
    share = (turn >> 8).astype(jnp.float32) / 2**24
    return (share + apart + (1 - apart) * jax.random.uniform(key)) % 1


def normalisers_of(ensemble: Ensemble, replay: Replay, task: Task, among: Array) -> tuple[Normaliser, Normaliser]:
    """Of what the members see and of what they should say, by the rows `among` [capacity], those of the test not there.

    Where the task's range is known, inputs are scaled by that.
    """
    everything = replay.transitions()
    inputs = ensemble.inputs
    if task.broad is None:
        inputs = Normaliser.of(task.features(everything.observation), among)
    raw = everything.next - everything.observation
    states = Normaliser.of(everything.observation, among)
    least = jnp.where(states.still, 0.0, _FELT * states.deviation)
    if ensemble.learns_reward:
        raw = jnp.concatenate([raw, everything.reward[:, None]], axis=-1)
        least = jnp.concatenate([least, jnp.zeros(1)])
    return inputs, Normaliser.of(raw, among, least)


def weighted(losses: Array, weights: Array) -> Array:
    """Mean over the rows of each member's batch [members, B], summed over members, which do not share parameters."""
    return jnp.sum(jnp.mean(weights * losses, axis=-1))


def fit(
    ensemble: Ensemble,
    optimiser_state: Any,
    replay: Replay,
    split: Split,
    *,
    task: Task,
    settings: EnsembleSettings,
    key: Array,
) -> tuple[Ensemble, Any, dict[str, Array]]:
    """Fit from where the last fit ended, and keep of each member what did best on held-out rows.

    What is judged and kept is an average of the last iterates. A single iterate is as good as its last minibatches: by
    chance it would be worse than where a warm start began, and the fit would stop before it had learned anything new.

    It is judged by its errors, not by its likelihood: of that a share is no measure of progress, and the more certain
    heads are of most transitions, the less it says of the rest.
    """
    optimiser = settings.optimiser
    train_rows = split.counts[0]
    judged = split.judged(_CHECKED)
    columns = jnp.arange(ensemble.members)[:, None]
    among = split.member_of(0)

    inputs, targets = normalisers_of(ensemble, replay, task, among)
    old = chosen(ensemble.fits == 0, (inputs, targets), (ensemble.inputs, ensemble.targets))
    ensemble = eqx.tree_at(lambda e: (e.inputs, e.targets), ensemble, old).renormalised(inputs, targets)

    def fitted(net: MLP) -> Ensemble:
        return eqx.tree_at(lambda e: e.net, ensemble, net)

    def lost(net: MLP, rows: Array) -> Array:
        if settings.unrolled:
            return unrolled_loss(fitted(net), task, *replay.runs(rows, settings.unrolled, among))
        return fitted(net).loss(task, replay.transitions(rows))

    def judge(net: MLP) -> Array:
        if settings.unrolled:  # blocks of held-out rows are short, so that single steps judge
            return jnp.mean(unrolled_loss(fitted(net), task, *replay.runs(judged, 1, among)), axis=-1)
        return jnp.mean(fitted(net).misses(task, replay.transitions(judged)), axis=-1)

    def step(carry: tuple[MLP, MLP, Any], key: Array) -> tuple[tuple[MLP, MLP, Any], Array]:
        net, average, state = carry
        rows = split.train[draw_below(key, (ensemble.members, settings.batch), train_rows)]
        weights = split.weights[rows, columns]

        def loss(net: MLP) -> Array:
            return weighted(lost(net, rows), weights)

        value, gradient = eqx.filter_value_and_grad(loss)(net)
        change, state = optimiser.update(gradient, state, net)
        net = eqx.apply_updates(net, change)
        average = jax.tree.map(lambda old, new: _AVERAGED * old + (1 - _AVERAGED) * new, average, net)
        return (net, average, state), value

    def going(fitting: _Fitting) -> Array:
        return (fitting.checks * settings.check < settings.steps) & jnp.any(fitting.stale < settings.patience)

    def lap(fitting: _Fitting) -> _Fitting:
        keys = jax.random.split(jax.random.fold_in(key, fitting.checks), settings.check)
        start = (fitting.net, fitting.average, fitting.optimiser)
        (net, average, state), losses = jax.lax.scan(step, start, keys)
        now = judge(average)
        better = now < fitting.best_loss
        progress = now < _WORTHWHILE * fitting.best_loss
        best = jax.tree.map(lambda new, old: jnp.where(_columns(better, new), new, old), average, fitting.best)
        return _Fitting(
            net,
            average,
            state,
            best,
            jnp.where(better, now, fitting.best_loss),
            jnp.where(progress, 0, fitting.stale + 1),
            fitting.checks + 1,
            jnp.mean(losses),
        )

    net = ensemble.net
    nothing = jnp.zeros((), jnp.int32)
    stale = jnp.zeros(ensemble.members, jnp.int32)
    start = _Fitting(net, net, optimiser_state, net, judge(net), stale, nothing, jnp.full((), jnp.nan))
    end = jax.lax.while_loop(going, lap, start)
    metrics = {
        "model_steps": end.checks * settings.check,
        "model_train_loss": end.train_loss / ensemble.members,
        "model_held_out_loss": end.best_loss[0],
        "model_held_out_loss_heads": jnp.mean(end.best_loss[1:]),
        "model_rows": train_rows,
    }
    told = (end.best, ensemble.fits + 1, end.best_loss)
    return eqx.tree_at(lambda e: (e.net, e.fits, e.held_out), ensemble, told), end.optimiser, metrics


class _Fitting(NamedTuple):
    """A fit under way; losses and counts are of each member."""

    net: MLP
    average: MLP
    optimiser: Any
    best: MLP
    best_loss: Array
    stale: Array  # checks without progress
    checks: Array
    train_loss: Array


def chosen(first: Array, new: Any, old: Any) -> Any:
    """`new` if `first`: untrained networks are made for z-scores, and there is nothing in raw units to preserve."""
    return jax.tree.map(lambda one, other: jnp.where(first, one, other), new, old)


def _columns(flags: Array, like: Array) -> Array:
    """[members] -> [members, 1, ...] of the rank of `like`."""
    return flags.reshape(flags.shape + (1,) * (like.ndim - 1))
