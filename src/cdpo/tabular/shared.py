"""One policy for several models: ascent of its mean value within the trust region.

    argmax_pi  mean_k V_pi^k(start)    subject to the trust region around q

No linear program has the answer, as occupancies of several models need not come from one policy. The ascent ends at a
policy that none of its moves betters, or after many of them; `certificate.py` bounds what is left to gain.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from cdpo.tabular.planning import Known, Model, action_values, evaluate, noise_floor, one_hot_policy, solve_discounted
from cdpo.tabular.trust import Trust, constrained_argmax

_MOST_SWEEPS = 50
_SURE = 1.645  # standard errors
FEWEST_JUDGES = 30  # fewer would need a wider bound
_PARTS = (1.0, 0.3, 0.1)  # of the way to a candidate


def judged(policy: Array, centre: Array, models: Model, known: Known) -> Array:
    """The part of the way from the centre to a policy that fresh models are surest of, or none if they are not sure.

    What is best on a few models is partly luck, which models that it was not chosen by do not share. Sure is a gain
    whose one-sided 95% bound is above zero: what the posterior holds to be no better than the centre passes about once
    in twenty times.
    """
    tried = centre + jnp.asarray(_PARTS)[:, None, None] * (policy - centre)
    gained = jax.vmap(lambda one: _values(one, models, known))(tried) - _values(centre, models, known)
    least = jnp.mean(gained, axis=1) - _SURE * jnp.std(gained, axis=1, ddof=1) / jnp.sqrt(gained.shape[1])
    best = jnp.argmax(least)
    return jnp.where(least[best] > 0, tried[best], centre)


def best_shared_policy(centre: Array, starts: Array, models: Model, known: Known, trust: Trust | None) -> Array:
    """The best of ascents from the centre [S, A] and from further policies [n, S, A] of the region.

    Its mean value over the models is never below the centre's.
    """

    def score(policy: Array) -> Array:
        return jnp.mean(_values(policy, models, known))

    def sweep(climb: _Climb) -> _Climb:
        tried = _moves(climb.policy, centre, models, known, trust)
        scores = jax.vmap(score)(tried)
        best = jnp.argmax(scores)
        better = scores[best] > climb.score + noise_floor(climb.score)
        policy = jnp.where(better, tried[best], climb.policy)
        return _Climb(policy, jnp.where(better, scores[best], climb.score), better, climb.sweeps + 1)

    def climb(start: Array) -> _Climb:
        begin = _Climb(start, score(start), jnp.array(True), jnp.array(0))
        return jax.lax.while_loop(lambda c: c.rising & (c.sweeps < _MOST_SWEEPS), sweep, begin)

    ends = jax.vmap(climb)(jnp.concatenate([centre[None], starts]))
    return ends.policy[jnp.argmax(ends.score)]


class _Climb(NamedTuple):
    """An ascent under way."""

    policy: Array
    score: Array
    rising: Array
    sweeps: Array


def _values(policy: Array, models: Model, known: Known) -> Array:
    """Of one policy under each model from the start, [K]."""
    return jax.vmap(evaluate, in_axes=(0, None, None))(models, policy, known.discount) @ known.start


def _moves(policy: Array, centre: Array, models: Model, known: Known, trust: Trust | None) -> Array:
    """Policies of the region to try next, [n, S, A].

    Two are linear programs: the mean of the policy's own Q decides in every state, as in policy iteration; or the
    gradient does, in which a state counts by how often the models come there. To both it goes the whole way or a part.
    A third changes one state: where such a change first costs before it pays, no gradient shows it.
    """
    states = len(known.start)
    transition = jnp.einsum("sa,ksat->kst", policy, models.transition)
    resolvent = jax.vmap(solve_discounted, in_axes=(0, None, None))(transition, jnp.eye(states), known.discount)
    value = jnp.einsum("kst,kt->ks", resolvent, jnp.einsum("sa,ksa->ks", policy, models.reward))
    q = jax.vmap(action_values, in_axes=(0, 0, None))(models, value, known.discount)
    visits = jnp.maximum(jnp.einsum("s,kst->kt", known.start, resolvent), 0.0)
    often = jnp.mean(visits, axis=0)
    share = jnp.where(often > 0, visits / jnp.where(often > 0, often, 1.0), 1.0)
    gradient = jnp.mean(share[:, :, None] * q, axis=0)
    weighted = None if trust is None else trust._replace(weight=often)
    ends = jnp.stack(
        [
            constrained_argmax(jnp.mean(q, axis=0), centre, known, trust),
            constrained_argmax(gradient, centre, known, weighted),
        ]
    )
    mixed = policy + jnp.asarray(_PARTS)[:, None, None, None] * (ends - policy)

    # A change d of the policy in one state s adds visits(s) d.Q(s) / (1 - gamma d.P(s) R[:, s]) to a model's value.
    again = known.discount * jnp.einsum("ksat,kts->ksa", models.transition, resolvent)
    targets = _single(policy, centre, known, trust)  # [A + 1, S, A]
    change = targets - policy
    gain = jnp.einsum("nsa,ksa->kns", change, q) * visits[:, None]
    gain = jnp.mean(gain / (1 - jnp.einsum("nsa,ksa->kns", change, again)), axis=0)
    which, state = jnp.unravel_index(jnp.argmax(gain), gain.shape)
    one = policy.at[state].set(targets[which, state])
    return jnp.concatenate([mixed.reshape(-1, *policy.shape), one[None]])


def _single(policy: Array, centre: Array, known: Known, trust: Trust | None) -> Array:
    """What each state alone could become: as far as the region lets it towards each action, or the centre again."""
    states, actions = policy.shape
    moved = 0.5 * jnp.sum(jnp.abs(policy - centre), axis=-1)
    if trust is None:
        room = jnp.ones(states)
    elif trust.cost is None:
        room = jnp.full(states, trust.bound)
    else:
        left = trust.bound - (jnp.sum(trust.cost * moved) - trust.cost * moved)  # by the other states
        room = jnp.where(trust.cost > 0, left / jnp.where(trust.cost > 0, trust.cost, 1.0), 1.0)
    towards = jax.vmap(lambda a: one_hot_policy(jnp.full(states, a), known.allowed))(jnp.arange(actions))
    distance = jnp.maximum(1 - centre, 1e-6).T[:, :, None]  # from the centre to each action, [A, S, 1]
    part = jnp.clip(room[None, :, None] / distance, 0.0, 1.0)
    targets = jnp.where(known.allowed.T[:, :, None], centre + part * (towards - centre), centre)
    return jnp.concatenate([targets, centre[None]])
