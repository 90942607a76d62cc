"""Checkpoints: the arrays of a tree on disk, by names.

A checkpoint is an .npz that NumPy reads as well: a zip of uncompressed .npy members, after a member `meta.json` that
lists every array with its shape, dtype and SHA-256. Nothing is unpickled on the way back, nothing is allocated before
its size is checked against the bytes that are there, and nothing is returned before all of it is verified.
"""

import hashlib
import io
import json
import math
import os
import struct
import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cdpo.errors import UserError, shown
from cdpo.files import damaged, open_saved, write_atomic
from cdpo.version import __version__, checked_format

_FORMAT = "cdpo checkpoint"
VERSION = 3  # of the layout of the file, and of the arrays in it (see `schema`)
_META = "meta.json"
_META_BYTES = 1 << 24  # more than any manifest needs, and little enough to parse: lists take 25 times their text
_DIMENSIONS = 32
_LONGEST = 500  # letters of a name
# Little-endian, of the same size on every machine. Neither pickles nor bfloat16, which .npy cannot name.
_DTYPES = {"|b1", "|i1", "|u1", "<i2", "<u2", "<f2", "<i4", "<u4", "<f4", "<i8", "<u8", "<f8"}


def save_arrays(
    path: str | Path, arrays: Mapping[str, np.ndarray], meta: dict[str, Any], *, before: Path | None = None
) -> None:
    """Writes `arrays` and `meta`, which is plain JSON, as `write_atomic` does.

    A TypeError or ValueError names the array that cannot be kept; nothing is converted silently. The same contents give
    the same bytes.
    """
    for name, array in arrays.items():
        _check_keepable(name, array)
    blocks = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    text = json.dumps(
        {
            "format": _FORMAT,
            "version": VERSION,
            "library": __version__,
            "arrays": {
                name: {"shape": block.shape, "dtype": block.dtype.str, "sha256": _sha256(block)}
                for name, block in blocks.items()
            },
            "meta": meta,
        },
        allow_nan=False,
    ).encode()
    if json.loads(text)["meta"] != meta:
        raise ValueError("meta does not survive JSON: it may hold only lists, dicts with str keys, and plain values")
    if len(text) > _META_BYTES:
        raise ValueError(f"meta and the list of arrays take {len(text)} bytes; at most {_META_BYTES} can be kept")
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        # A ZipInfo made by hand has a fixed date, whereas a name alone would get the clock's.
        archive.writestr(zipfile.ZipInfo(_META), text)
        for name, block in blocks.items():
            header = _npy_header(block.dtype.str, block.shape)
            member = zipfile.ZipInfo(f"{name}.npy")
            member.file_size = len(header) + block.nbytes  # tells zipfile when it needs the format for large files
            with archive.open(member, "w") as file:
                file.write(header)
                file.write(_bytes(block).data)
    write_atomic(path, buffer.getvalue(), before=before)


def load_arrays(
    path: str | Path, upgraded: Callable[[Mapping[str, np.ndarray], int], Mapping[str, np.ndarray]] | None = None
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The arrays and the meta of `save_arrays`; a UserError if the file is anything but what that wrote.

    `upgraded` gives the arrays of today for those in a file of an earlier version; without it there may be none.
    """
    with open_saved(path) as file:
        start = file.read(30 + len(_META))  # a zip's first member: 30 bytes of header, then its name
        if not start:
            raise damaged(path, "it is empty")
        if not (start.startswith(b"PK\x03\x04") and start.endswith(_META.encode())):
            raise UserError(
                f"{str(path)!r} is not a checkpoint of cdpo, or its beginning is damaged; name a file that cdpo saved"
            )
        try:
            with zipfile.ZipFile(file) as archive:
                version, arrays, meta = _read_archive(path, archive, os.fstat(file.fileno()).st_size)
        except (UserError, MemoryError):
            raise
        except Exception as error:  # on bytes made up to confuse it, zipfile raises a dozen kinds
            raise damaged(path, "its contents do not fit together") from error
    if upgraded is None:
        if version < VERSION:
            raise ValueError(f"{str(path)!r} has format {version}, and nothing to upgrade its arrays by")
        return arrays, meta
    try:
        return dict(upgraded(arrays, version)), meta
    except ValueError as error:
        raise damaged(path, str(error)) from error


def flatten(tree: Any, names: Callable[[Any], Sequence[str]]) -> dict[str, np.ndarray]:
    """The arrays of `tree` for `save_arrays`: views where possible, so write them before going on.

    `names` gives a name for each leaf of a tree. A typed key becomes its data, under its name and that of its
    generator: `key#threefry2x32`. What is no array (None, functions, Python's own numbers) is not kept: `restore`
    takes it from its template.
    """
    arrays: dict[str, np.ndarray] = {}
    for told, leaf in zip(names(tree), jax.tree.leaves(tree), strict=True):
        if not _is_array(leaf):
            continue
        name = _name(told, leaf)
        if name in arrays:
            raise ValueError(f"two leaves of the tree have the name {name!r}")
        arrays[name] = np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)
    return arrays


def restore(like: Any, arrays: Mapping[str, np.ndarray], names: Callable[[Any], Sequence[str]]) -> Any:
    """The tree `like` with the values of `arrays` (from `flatten` by the same `names`) in place of its own.

    JAX's arrays stay JAX's and NumPy's stay NumPy's, each a copy. A leaf that is missing, left over, or of another
    shape, dtype or generator is a UserError that names it.
    """
    own, structure = jax.tree.flatten(like)
    leaves, used = [], set()
    for told, leaf in zip(names(like), own, strict=True):
        if _is_array(leaf):
            name = _name(told, leaf)
            used.add(name)
            leaf = _restored(told, name, leaf, arrays)
        leaves.append(leaf)
    for name in arrays:
        if name not in used:
            raise _misfit(f"it also holds {shown(name)}, which has no place here")
    return jax.tree_util.tree_unflatten(structure, leaves)


def _read_archive(path: str | Path, archive: zipfile.ZipFile, size: int) -> tuple[int, dict[str, np.ndarray], dict]:
    """The version and all that is in the archive, verified. `size` is the file's: members may claim no more."""
    members = {info.filename: info for info in archive.infolist()}
    if len(members) != len(archive.infolist()):
        raise damaged(path, "two of its members have one name")
    version, manifest, meta = _read_meta(path, archive, members[_META])
    unmatched = members.keys() ^ {_META, *(f"{name}.npy" for name in manifest)}
    if unmatched:
        raise damaged(path, f"{shown(min(unmatched))} is either missing or not listed in {_META}")
    if sum(info.file_size for info in members.values()) > size:
        raise damaged(path, "it declares more bytes than it has")
    # Every declaration before any array, so that a file with one lie in it costs nothing.
    for name, entry in manifest.items():
        if not _is_plain(name):
            raise damaged(path, f"it has an array named {shown(name)}")
        if set(entry) != {"shape", "dtype", "sha256"} or entry["dtype"] not in _DTYPES:
            raise damaged(path, f"array {name!r} is declared with a dtype or fields that no checkpoint has")
        info = members[f"{name}.npy"]
        _check_stored(path, info)
        if info.file_size != _member_bytes(entry["dtype"], entry["shape"]):
            raise damaged(path, f"array {name!r} has another size than it declares")
    return version, {name: _read_array(path, archive, name, **entry) for name, entry in manifest.items()}, meta


def _read_meta(path: str | Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> tuple[int, dict, dict]:
    """The version, the list of arrays and the caller's meta."""
    _check_stored(path, info)
    if info.file_size > _META_BYTES:
        raise damaged(path, f"its {_META} is too large")
    content = json.loads(archive.read(info), parse_constant=_refuse_constant, parse_float=_finite)
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise UserError(f"{str(path)!r} is not a checkpoint of cdpo; name a file that cdpo saved")
    manifest, meta = content.get("arrays"), content.get("meta")
    version = checked_format(path, content["version"], VERSION)
    if not isinstance(manifest, dict) or not isinstance(meta, dict):
        raise damaged(path, f"its {_META} is not what cdpo writes")
    return version, manifest, meta


def _check_stored(path: str | Path, info: zipfile.ZipInfo) -> None:
    if info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size:
        raise damaged(path, f"{shown(info.filename)} is compressed, as no member of a checkpoint is")


def _read_array(
    path: str | Path, archive: zipfile.ZipFile, name: str, shape: list[int], dtype: str, sha256: str
) -> np.ndarray:
    member = archive.read(f"{name}.npy")
    header = _npy_header(dtype, tuple(shape))
    if not member.startswith(header):
        raise damaged(path, f"the header of array {name!r} does not match {_META}")
    array = np.frombuffer(memoryview(member)[len(header) :], dtype).reshape(shape).copy()
    if _sha256(array) != sha256:
        raise damaged(path, f"the checksum of array {name!r} does not match")
    if array.dtype == np.bool_ and (_bytes(array) > 1).any():
        raise damaged(path, f"array {name!r} has truth values that are neither true nor false")
    return array


def _check_keepable(name: str, array: np.ndarray) -> None:
    if not _is_plain(name):
        raise ValueError(
            f"the array name {name!r} cannot be kept: it is too long, or holds a slash or an unprintable sign"
        )
    if not isinstance(array, np.ndarray | np.generic):
        raise TypeError(f"{name!r} is a {type(array).__name__}, not a NumPy array")
    if array.ndim > _DIMENSIONS:
        raise ValueError(f"the array {name!r} has {array.ndim} dimensions; at most {_DIMENSIONS} can be kept")
    if array.dtype.str not in _DTYPES:
        raise TypeError(
            f"the array {name!r} has dtype {array.dtype}, which a checkpoint cannot keep; convert it to "
            "a little-endian bool, integer or float of at most 64 bits"
        )


def _is_plain(name: str) -> bool:
    """Whether `name` and a suffix are no more than a file's name, wherever somebody unpacks the archive."""
    return name.isprintable() and not {"/", "\\"} & set(name) and len(name) < _LONGEST


def _npy_header(dtype: str, shape: tuple[int, ...]) -> bytes:
    """The start of an .npy member, by version 1.0 of the format.

    Ours rather than NumPy's, so that a reader can demand these very bytes instead of parsing what it is given.
    """
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".encode("latin1")
    length = len(text) + 1
    length += -(10 + length) % 64
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", length) + text.ljust(length - 1) + b"\n"


def _member_bytes(dtype: str, shape: Any) -> int | None:
    """The size of an array's member; None if there can be no such array."""
    if not isinstance(shape, list) or len(shape) > _DIMENSIONS:
        return None
    if not all(type(length) is int and 0 <= length <= sys.maxsize for length in shape):
        return None
    itemsize = np.dtype(dtype).itemsize
    # NumPy bounds the product of the other lengths also where one of them is zero.
    if math.prod(max(length, 1) for length in shape) * itemsize > sys.maxsize:
        return None
    return len(_npy_header(dtype, tuple(shape))) + math.prod(shape) * itemsize


def _bytes(array: np.ndarray) -> np.ndarray:
    """The bytes of a contiguous array, not copied."""
    return array.reshape(-1).view(np.uint8)


def _sha256(array: np.ndarray) -> str:
    return hashlib.sha256(_bytes(array).data).hexdigest()


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


def _finite(text: str) -> float:
    """A number of JSON that is one: 1e999 is not."""
    value = float(text)
    return value if math.isfinite(value) else _refuse_constant(text)


# --- Leaves of a tree ------------------------------------------------------------------------------------------------


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray | np.generic)


def _is_key(leaf: Any) -> bool:
    return jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _name(told: str, leaf: Any) -> str:
    """The name under which a leaf is kept, with the generator of a typed key."""
    return f"{told}#{jax.random.key_impl(leaf)}" if _is_key(leaf) else told


def _restored(told: str, name: str, leaf: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    """The stored value of one leaf, in the kind of array that `leaf` is."""
    if name not in arrays:
        for other in arrays:
            if other == told or other.startswith(f"{told}#"):
                raise _misfit(
                    f"leaf {told!r} is needed as {name!r} (name#generator of a key) and stored as {shown(other)}"
                )
        raise _misfit(f"leaf {name!r} is missing")
    value = arrays[name]
    expected = jax.random.key_data(leaf) if _is_key(leaf) else leaf
    if value.shape != expected.shape:
        raise _misfit(f"leaf {name!r} has shape {value.shape} instead of {expected.shape}")
    if value.dtype != expected.dtype:
        raise _misfit(f"leaf {name!r} has dtype {value.dtype} instead of {expected.dtype}")
    # Copies: on a CPU JAX would else borrow NumPy's memory, and write to it where a compiled call donates its inputs.
    if not isinstance(leaf, jax.Array):
        return np.array(value) if isinstance(leaf, np.ndarray) else value[()]
    if _is_key(leaf):
        return jax.random.wrap_key_data(jnp.array(value), impl=jax.random.key_impl(leaf))
    # A weakly typed leaf stays so: else the dtypes that it is promoted to could change, and all would compile again.
    return leaf.at[...].set(value) if leaf.weak_type else jnp.array(value)


def _misfit(what: str) -> UserError:
    return UserError(f"the checkpoint does not fit: {what}; load it with the task and settings that it was saved with")
