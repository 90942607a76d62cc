"""Seeds side by side: a function of one seed, mapped over the seeds of a chunk.

On a CPU a chunk is one seed and chunks run on threads: one program serves every chunk, so a seed has the same bits in
whatever company. On an accelerator all seeds are one chunk.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp


def chunks_of(lanes: Sequence[Any]) -> list[list[Any]]:
    """What belongs to each chunk on this backend."""
    return [[lane] for lane in lanes] if jax.default_backend() == "cpu" else [list(lanes)]


def over_lanes(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` of one seed as a function of a chunk: arguments and results have a leading axis of its seeds."""

    def mapped(*arguments: Any) -> Any:
        width = jax.tree.leaves(arguments)[0].shape[0]
        if width > 1:
            return jax.vmap(function)(*arguments)
        # Without vmap: products of matrices stay what they are.
        result = function(*jax.tree.map(lambda leaf: leaf[0], arguments))
        return jax.tree.map(lambda leaf: leaf[None], result)

    return mapped


def stack(trees: Sequence[Any]) -> Any:
    """One tree with a leading axis from several."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def join(trees: Sequence[Any]) -> Any:
    """One tree from several that have the axis already."""
    return trees[0] if len(trees) == 1 else jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *trees)


def one_by_one(function: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
    """`function` of each item, in order."""
    return [function(item) for item in items]


def on_threads(function: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
    """`function` of each item, as many at a time as there are cores; results in order."""
    if len(items) <= 1:
        return one_by_one(function, items)
    pool = ThreadPoolExecutor(max_workers=min(len(items), os.cpu_count() or 1))
    try:
        return list(pool.map(function, items))
    finally:
        # Interrupted, what has begun is awaited and what has not is dropped.
        pool.shutdown(wait=True, cancel_futures=True)
