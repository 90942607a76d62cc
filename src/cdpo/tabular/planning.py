"""Exact planning in finite MDPs: evaluation, policy iteration, visitation, average reward.

Every function is for one model and one policy; `jax.vmap` gives model sets and seeds. Policies are tables of
probabilities [S, A]. The small systems (I - gamma P) x = b are strictly diagonally dominant by rows, so they are
always solvable.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from cdpo.tabular.mdp import FiniteMDP

GAIN = 1e-6  # relative to the largest value: in float32 a smaller gain is noise, and switching on it could cycle
_SMALL = 32  # states up to which elimination over the batch beats a library call for each system
_MOST_SWEEPS = 100  # policy iteration ends in a handful; the cap makes termination unconditional


class Known(NamedTuple):
    """What an agent knows of its problem before it acts: everything but dynamics and rewards."""

    start: Array  # [S]
    terminal: Array  # [S] bool
    allowed: Array  # [S, A] bool
    discount: Array  # scalar

    @staticmethod
    def of(mdp: FiniteMDP) -> "Known":
        """The public part of an MDP."""
        return Known(mdp.start, mdp.terminal, mdp.allowed, mdp.discount)


class Model(NamedTuple):
    """Dynamics and expected rewards, true or hypothesised. A model set has a leading axis."""

    transition: Array  # [S, A, S], the mass that enters terminal states removed: no value flows back from there
    reward: Array  # [S, A]

    @staticmethod
    def build(transition: Array, reward_mean: Array, known: Known) -> "Model":
        """From full tables [..., S, A, S]."""
        reward = jnp.sum(transition * reward_mean, axis=-1)
        return Model(jnp.where(known.terminal, 0.0, transition), reward)

    @staticmethod
    def true(mdp: FiniteMDP) -> "Model":
        """The MDP itself."""
        return Model.build(mdp.transition, mdp.reward_mean, Known.of(mdp))


def action_values(model: Model, value: Array, discount: Array) -> Array:
    """Q(s, a) = r + gamma P V, [S, A]."""
    return model.reward + discount * jnp.einsum("sat,t->sa", model.transition, value)


def evaluate(model: Model, policy: Array, discount: Array) -> Array:
    """V of a policy [S, A], by solving V = r_pi + gamma P_pi V; [S]."""
    transition = jnp.einsum("sa,sat->st", policy, model.transition)
    return solve_discounted(transition, jnp.sum(policy * model.reward, axis=-1), discount)


def solve_discounted(transition: Array, right: Array, discount: Array) -> Array:
    """x = (I - discount P)^-1 right, [S] or several side by side [S, n], by elimination without pivoting.

    The matrix is diagonally dominant, so no pivots are needed, and a plain loop runs over a whole batch of small
    systems at once: twice as fast here as a library call for each. Large systems are the library's.
    """
    size = transition.shape[0]
    if size > _SMALL:
        return jnp.linalg.solve(jnp.eye(size) - discount * transition, right)
    rows = jnp.arange(size)
    columns = right[:, None] if right.ndim == 1 else right
    system = jnp.concatenate([jnp.eye(size) - discount * transition, columns], axis=1)

    def eliminate(system: Array, k: Array) -> tuple[Array, None]:
        pivot = system[k] / system[k, k]
        return jnp.where((rows == k)[:, None], pivot, system - system[:, k, None] * pivot), None

    return jax.lax.scan(eliminate, system, rows)[0][:, size:].reshape(right.shape)


def noise_floor(q: Array) -> Array:
    """The gain below which two of these values count as equal."""
    return GAIN * jnp.maximum(1.0, jnp.max(jnp.abs(q)))


def best_action(values: Array, allowed: Array) -> Array:
    """The allowed action of largest value, the first of equals; [S]."""
    return jnp.argmax(jnp.where(allowed, values, -jnp.inf), axis=-1)


def one_hot_policy(actions: Array, allowed: Array) -> Array:
    """Deterministic policy as a table."""
    return jax.nn.one_hot(actions, allowed.shape[-1])


def uniform_policy(allowed: Array) -> Array:
    """Equal weight on every allowed action."""
    return allowed / jnp.sum(allowed, axis=-1, keepdims=True)


def policy_iteration(model: Model, known: Known, initial: Array) -> tuple[Array, Array]:
    """Optimal policy [S, A] and Q* [S, A], starting from a policy (its most likely actions).

    An action is replaced only for a gain above the noise, so among equals the initial policy decides.
    """
    first = best_action(initial, known.allowed)

    def improve(carry: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        actions, _, _, sweep = carry
        value = evaluate(model, one_hot_policy(actions, known.allowed), known.discount)
        q = action_values(model, value, known.discount)
        better = best_action(q, known.allowed)
        gain = _take(q, better) - _take(q, actions)
        improved = jnp.where(gain > noise_floor(q), better, actions)
        return improved, q, jnp.any(improved != actions), sweep + 1

    def unsettled(carry: tuple[Array, Array, Array, Array]) -> Array:
        return carry[2] & (carry[3] < _MOST_SWEEPS)

    start = (first, jnp.zeros_like(model.reward), jnp.array(True), jnp.array(0))
    actions, q, _, _ = jax.lax.while_loop(unsettled, improve, start)
    return one_hot_policy(actions, known.allowed), q


def visitation(model: Model, policy: Array, start: Array, discount: Array) -> Array:
    """Discounted state visitation nu(s) = (1 - gamma) sum_h gamma^h P(s_h = s), [S].

    It sums to one where no terminal state is entered, and to less by the mass that has ended.
    """
    transition = jnp.einsum("sa,sat->st", policy, model.transition)
    # The adjoint system nu^T (I - gamma P) = (1 - gamma) start^T is dominant by columns: as safe to eliminate.
    return jnp.maximum((1 - discount) * solve_discounted(transition.T, start, discount), 0.0)


def restarted(mdp: FiniteMDP) -> tuple[Array, Array]:
    """Transition [S, A, S] and reward [S, A] of the unending process in which every end leads to a new start."""
    ended = jnp.sum(jnp.where(mdp.terminal, mdp.transition, 0.0), axis=-1, keepdims=True)
    return jnp.where(mdp.terminal, 0.0, mdp.transition) + ended * mdp.start, mdp.reward


def optimal_average_reward(mdp: FiniteMDP, sweeps: int = 20_000, tolerance: float = 1e-6) -> Array:
    """The largest long-run reward per step, by relative value iteration on the lazy chain.

    Half of the time the lazy chain stays where it is: its optimal policies are the same, its reward per step is
    half as large, and it converges also where the chain itself is periodic. For communicating MDPs.
    """
    transition, reward = restarted(mdp)
    live = ~mdp.terminal

    def sweep(carry: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        bias, _, _, count = carry
        q = reward + jnp.einsum("sat,t->sa", transition, bias)
        ahead = 0.5 * (jnp.max(jnp.where(mdp.allowed, q, -jnp.inf), axis=-1) + bias)
        change = ahead - bias
        low = jnp.min(jnp.where(live, change, jnp.inf))
        high = jnp.max(jnp.where(live, change, -jnp.inf))
        return ahead - ahead[jnp.argmax(mdp.start)], 2 * low, 2 * high, count + 1

    def open_gap(carry: tuple[Array, Array, Array, Array]) -> Array:
        return (carry[2] - carry[1] > tolerance) & (carry[3] < sweeps)

    begin = (jnp.zeros(mdp.states), jnp.array(-jnp.inf), jnp.array(jnp.inf), jnp.array(0))
    _, low, high, _ = jax.lax.while_loop(open_gap, sweep, begin)
    return 0.5 * (low + high)


def _take(q: Array, actions: Array) -> Array:
    return jnp.take_along_axis(q, actions[:, None], axis=-1)[:, 0]
