"""Checkpoints on disk: whole or refused, whatever became of the file."""

import hashlib
import io
import json
import math
import os
import pickle
import random
import signal
import struct
import subprocess
import sys
import zipfile

import jax
import ml_dtypes
import numpy as np
import pytest

from cdpo.errors import UserError
from cdpo.training.store import VERSION, load_arrays, save_arrays

ARRAYS = {
    ".weights": np.arange(12, dtype=np.float32).reshape(3, 4),
    "['a key'][0]": np.array([1, -2], np.int64),
    ".scalar": np.array(2.5),
    ".empty": np.zeros((0, 3), np.uint32),
    ".flags": np.array([True, False]),
    "é": np.array([1, 2], np.int8),
    "": np.array(7, np.uint8),  # the name of a tree that is a single leaf
}
META = {"iteration": 3, "offsets": [10, 20], "kind": "x", "rate": 0.1, "none": None, "ok": True}


class Executes:
    """Creates a file when unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def assert_equal(loaded, arrays=ARRAYS, meta=META):
    found, found_meta = loaded
    assert found_meta == meta
    assert list(found) == list(arrays)
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        assert found[name].shape == array.shape
        assert found[name].tobytes() == array.tobytes()


def npy(array, **keywords):
    file = io.BytesIO()
    np.save(file, array, **keywords)
    return file.getvalue()


def entry(array, **changes):
    digest = hashlib.sha256(array.tobytes()).hexdigest()
    return {"shape": list(array.shape), "dtype": array.dtype.str, "sha256": digest} | changes


def write_zip(path, members, manifest, compression=zipfile.ZIP_STORED, **fields):
    """A checkpoint made by another hand: `members` by their file names, `manifest` as meta.json lists it."""
    content = {"format": "cdpo checkpoint", "version": VERSION, "library": "0", "arrays": manifest, "meta": {}} | fields
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("meta.json", json.dumps(content))
        for name, data in members:
            archive.writestr(name, data, compression)


@pytest.fixture
def saved(path):
    save_arrays(path, ARRAYS, META)
    return path


def test_arrays_and_meta_come_back_as_they_were(saved):
    assert_equal(load_arrays(saved))


def test_loaded_arrays_can_be_written_to(saved):
    for array in load_arrays(saved)[0].values():
        array[...] = 0


def test_a_checkpoint_of_nothing(path):
    save_arrays(path, {}, {})
    assert load_arrays(path) == ({}, {})


def test_every_dtype_in_every_shape(path):
    draws = np.random.default_rng(0)
    arrays = {
        f"{dtype} {shape}": draws.integers(0, 2, shape).astype(dtype)
        for dtype in ("?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8")
        for shape in [(), (0,), (1,), (2, 3, 4), (4, 0, 2)]
    }
    save_arrays(path, arrays, {})
    assert_equal(load_arrays(path), arrays, {})


def test_every_bit_of_a_float_is_kept(path):
    bits = np.random.default_rng(0).integers(0, 2**32, 1000, np.uint32)
    bits[:6] = [0x7F800001, 0x7FC00000, 0xFFC12345, 0x80000000, 1, 0x7F800000]  # NaNs, -0, a subnormal, inf
    save_arrays(path, {"a": bits.view(np.float32)}, {})
    assert (load_arrays(path)[0]["a"].view(np.uint32) == bits).all()


def test_strided_arrays_are_kept_by_their_values(path):
    array = np.arange(24.0).reshape(4, 6)
    views = {
        "transposed": array.T,
        "fortran": np.asfortranarray(array),
        "steps": array[::2, ::-1],
        "wide": array[:, :1],
    }
    save_arrays(path, views, {})
    for name, loaded in load_arrays(path)[0].items():
        np.testing.assert_array_equal(loaded, views[name])


def test_numpy_reads_the_file_too(saved):
    with np.load(saved, allow_pickle=False) as archive:
        for name, array in ARRAYS.items():
            np.testing.assert_array_equal(archive[name], array, strict=True)


def test_headers_are_those_that_numpy_writes(path):
    for shape in [(), (5,), (0,), (2, 3), (1,) * 32]:
        array = np.ones(shape, np.float32)
        save_arrays(path, {"a": array}, {})
        with zipfile.ZipFile(path) as archive:
            assert np.load(io.BytesIO(archive.read("a.npy")), allow_pickle=False).shape == shape


def test_the_same_contents_give_the_same_bytes(tmp_path):
    for name in "ab":
        save_arrays(tmp_path / name, ARRAYS, META)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


# --- What cannot be kept ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "array",
    [
        np.zeros(2, ml_dtypes.bfloat16),
        np.zeros(2, jax.dtypes.float0),
        np.zeros(2, ml_dtypes.int4),
        np.zeros(2, ">f4"),
        np.zeros(2, complex),
        np.zeros(2, np.longdouble),
        np.array(["text"]),
        np.array([None]),
        np.zeros(2, [("a", "f4")]),
        [1.0, 2.0],
    ],
    ids=str,
)
def test_what_cannot_be_kept_is_named_when_saving(saved, array):
    with pytest.raises(TypeError, match="'bad'"):
        save_arrays(saved, {"good": np.zeros(2), "bad": array}, {})
    assert_equal(load_arrays(saved))


@pytest.mark.parametrize("name", ["a/b", "..\\b", "a\0", "a\nb", "\ud800", "a" * 10_000])
def test_names_that_are_more_than_a_name_are_refused(path, name):
    with pytest.raises(ValueError, match="cannot be kept"):
        save_arrays(path, {name: np.zeros(1)}, {})
    assert not path.exists()


def test_too_many_dimensions_are_refused(path):
    with pytest.raises(ValueError, match="'a' has 33 dimensions"):
        save_arrays(path, {"a": np.zeros((1,) * 33)}, {})


@pytest.mark.parametrize("meta", [{"a": math.nan}, {"a": (1, 2)}, {1: 2}, {"a": np.float32(1)}, {"a": {1}}])
def test_meta_that_json_would_change_is_refused(path, meta):
    with pytest.raises((ValueError, TypeError)):
        save_arrays(path, {}, meta)
    assert not path.exists()


# --- Damage ----------------------------------------------------------------------------------------------------------


def test_flipped_bytes_are_found_or_change_nothing(saved):
    """A zip has a few bytes, such as dates, that nobody reads."""
    whole, draws, found = saved.read_bytes(), random.Random(0), 0
    for _ in range(400):
        damaged = bytearray(whole)
        for _ in range(draws.choice([1, 1, 1, 2, 8])):
            damaged[draws.randrange(len(whole))] ^= draws.choice([draws.randrange(1, 256), 1 << draws.randrange(8)])
        saved.write_bytes(damaged)
        try:
            loaded = load_arrays(saved)
        except UserError as error:
            found += 1
            assert str(error).isprintable()
        else:
            assert_equal(loaded)
    assert found > 250


def test_every_flipped_bit_of_an_array_or_of_the_meta_is_found(saved, complaint):
    whole = saved.read_bytes()
    with zipfile.ZipFile(saved) as archive:
        parts = [(info.header_offset + 30 + len(info.filename.encode()), info.file_size) for info in archive.infolist()]
    for start, size in parts:
        for position in range(start, start + size, 7):
            damaged = bytearray(whole)
            damaged[position] ^= 1 << position % 8
            saved.write_bytes(damaged)
            assert "damaged" in complaint(load_arrays, saved)


def test_a_file_cut_short_is_found(saved, complaint):
    whole, draws = saved.read_bytes(), random.Random(1)
    for size in {*range(60), *(draws.randrange(len(whole)) for _ in range(200)), *range(len(whole) - 60, len(whole))}:
        saved.write_bytes(whole[:size])
        assert "damaged" in complaint(load_arrays, saved)


@pytest.mark.parametrize("fill", [b"\0", b"\xff"])
def test_lost_sectors_are_found(path, fill, complaint):
    arrays = {"a": np.random.default_rng(0).normal(size=2000), "b": np.ones(100)}
    save_arrays(path, arrays, META)
    whole = path.read_bytes()
    for start in range(0, len(whole), 512):
        path.write_bytes(whole[:start] + fill * len(whole[start : start + 512]) + whole[start + 512 :])
        assert "damaged" in complaint(load_arrays, path)


def test_exchanged_arrays_are_found(tmp_path, path, complaint):
    one, two = np.zeros(5), np.ones(5)
    write_zip(path, [("a.npy", npy(two)), ("b.npy", npy(one))], {"a": entry(one), "b": entry(two)})
    assert "checksum of array 'a'" in complaint(load_arrays, path)


def test_what_is_no_checkpoint_is_said_to_be_none(tmp_path, path, complaint):
    np.savez(path, a=np.zeros(3))
    assert "not a checkpoint" in complaint(load_arrays, path)
    path.write_text("hello\n" * 100)
    assert "not a checkpoint" in complaint(load_arrays, path)
    path.write_bytes(npy(np.zeros(3)))
    assert "not a checkpoint" in complaint(load_arrays, path)
    write_zip(path, [], {}, format="other")
    assert "not a checkpoint" in complaint(load_arrays, path)
    path.write_bytes(b"")
    assert "is empty" in complaint(load_arrays, path)
    assert "is a folder" in complaint(load_arrays, tmp_path)
    assert "does not exist" in complaint(load_arrays, tmp_path / "absent")
    assert "does not exist" in complaint(load_arrays, path / "below a file")
    os.mkfifo(tmp_path / "pipe")
    assert "not a regular file" in complaint(load_arrays, tmp_path / "pipe")
    complaint(load_arrays, "a\0b")


def test_a_newer_format_asks_for_a_newer_library(path, complaint):
    write_zip(path, [("other.bin", b"")], [], version=VERSION + 1)
    assert "install a newer cdpo" in complaint(load_arrays, path)


def test_arrays_of_an_earlier_version_have_the_names_of_now(path, complaint):
    arrays = [np.zeros(1), np.ones(2)]
    members = [(f"{name}.npy", npy(array)) for name, array in zip("ab", arrays, strict=True)]
    write_zip(path, members, {name: entry(array) for name, array in zip("ab", arrays, strict=True)}, version=1)
    found, _ = load_arrays(path, lambda arrays, version: {f"{name} of {version}": arrays[name] for name in arrays})
    assert list(found) == ["a of 1", "b of 1"]

    def none(arrays, version):
        raise ValueError("they make no sense")

    assert "damaged (they make no sense)" in complaint(load_arrays, path, none)


@pytest.mark.parametrize("version", [0, -1, "1", None, 1.5, [1], True])
def test_a_version_that_never_was_is_damage(path, version, complaint):
    write_zip(path, [], {}, version=version)
    assert "damaged" in complaint(load_arrays, path)


# --- Malice ----------------------------------------------------------------------------------------------------------


def test_pickles_are_never_executed(tmp_path, path, complaint):
    mark = tmp_path / "executed"
    payload = Executes(mark)
    objects = np.array([payload], dtype=object)
    member = npy(objects, allow_pickle=True)

    path.write_bytes(pickle.dumps(payload))
    complaint(load_arrays, path)
    np.savez(path, a=objects)
    complaint(load_arrays, path)
    path.write_bytes(member)
    complaint(load_arrays, path)
    write_zip(path, [("a.npy", member)], {"a": entry(np.zeros(1), dtype="|O")})
    assert "dtype" in complaint(load_arrays, path)
    honest = entry(np.zeros(1))
    write_zip(path, [("a.npy", member)], {"a": honest})
    complaint(load_arrays, path)
    write_zip(path, [("a.npy", pickle.dumps(payload))], {"a": honest})
    complaint(load_arrays, path)
    same_size = np.zeros((len(member) - 128) // 8)  # only the header can tell that these are no floats
    write_zip(path, [("a.npy", member[: 128 + same_size.nbytes])], {"a": entry(same_size)})
    assert "header" in complaint(load_arrays, path)
    assert not mark.exists()
    pickle.loads(pickle.dumps(payload))
    assert mark.exists()  # or the test has tested nothing


@pytest.mark.parametrize("dtype", [">f4", "|O", "<V2", "<U3", "<c8", "<f16", "|S1", "f4", [["a", "<f4"]], None, 1])
def test_dtypes_that_no_checkpoint_has_are_refused(path, dtype, complaint):
    array = np.zeros(2, np.float32)
    write_zip(path, [("a.npy", npy(array))], {"a": entry(array, dtype=dtype)})
    assert "damaged" in complaint(load_arrays, path)


HUGE = [[10**12], [2**40, 2**40], [2**62, 2**62], [2**63], [10**30], [0, 2**62, 2**62], [0, 10**30], [1] * 33]
ABSURD = [[-1], [-2, -1], [2.0], [True, 2], ["2"], [None], [[2]], "2", 2, None, {"2": 2}]


@pytest.mark.parametrize("shape", [*HUGE, *ABSURD], ids=str)
def test_a_shape_that_the_bytes_do_not_bear_out_is_refused_before_it_costs_memory(path, shape, complaint):
    array = np.zeros(2, np.float32)
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".encode()
    member = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + array.tobytes()
    for data in (member, npy(array)):
        write_zip(path, [("a.npy", data)], {"a": entry(array, shape=shape)})
        assert "damaged" in complaint(load_arrays, path)


def test_a_header_inside_that_declares_another_array_is_refused(path, complaint):
    array = np.zeros((2, 3), np.float32)
    for other in (array.T.copy(), np.asfortranarray(array), array.astype(np.int32), array.reshape(6)):
        write_zip(path, [("a.npy", npy(other))], {"a": entry(array)})
        assert "header" in complaint(load_arrays, path)


def test_compressed_members_are_refused_unexpanded(path, complaint):
    array = np.zeros(10**6)
    write_zip(path, [("a.npy", npy(array))], {"a": entry(array)}, zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < array.nbytes / 100
    assert "more bytes than it has" in complaint(load_arrays, path)
    write_zip(path, [("a.npy", npy(np.arange(9.0)))], {"a": entry(np.arange(9.0))}, zipfile.ZIP_BZIP2)
    assert "compressed" in complaint(load_arrays, path)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("meta.json", " " * 10**6)
    assert "compressed" in complaint(load_arrays, path)


def test_members_that_share_their_bytes_are_refused(path, complaint):
    """A small file could otherwise expand without end."""
    array = np.zeros(1000)
    write_zip(path, [(f"{name}.npy", npy(array)) for name in "ab"], {name: entry(array) for name in "ab"})
    data = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        first, second = (archive.getinfo(f"{name}.npy") for name in "ab")
    removed = second.header_offset - first.header_offset
    directory = data.rindex(b"PK\x01\x02")  # of the second, which is made to begin where the first one does
    struct.pack_into("<I", data, directory + 42, first.header_offset)
    end = data.rindex(b"PK\x05\x06")
    struct.pack_into("<I", data, end + 16, struct.unpack_from("<I", data, end + 16)[0] - removed)
    path.write_bytes(data[: second.header_offset] + data[second.header_offset + removed :])
    with zipfile.ZipFile(path) as archive:
        assert [info.header_offset for info in archive.infolist()][1:] == [first.header_offset] * 2
    assert "more bytes than it has" in complaint(load_arrays, path)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_two_members_of_one_name_are_refused(path, complaint):
    array = np.zeros(2)
    write_zip(path, [("a.npy", npy(array)), ("a.npy", npy(array))], {"a": entry(array)})
    assert "one name" in complaint(load_arrays, path)
    write_zip(path, [("meta.json", "{}")], {})
    assert "one name" in complaint(load_arrays, path)


@pytest.mark.parametrize("name", ["../a", "/a", "a/b", "..\\a", "a\x1bb"])
def test_names_that_would_lead_elsewhere_are_refused(path, name, complaint):
    array = np.zeros(2)
    write_zip(path, [(f"{name}.npy", npy(array))], {name: entry(array)})
    assert "named" in complaint(load_arrays, path)


def test_members_and_list_have_to_agree(path, complaint):
    array = np.zeros(2)
    write_zip(path, [("a.npy", npy(array)), ("b.npy", npy(array))], {"a": entry(array)})
    assert "'b.npy'" in complaint(load_arrays, path)
    write_zip(path, [("a.npy", npy(array))], {"a": entry(array), "b": entry(array)})
    assert "'b.npy'" in complaint(load_arrays, path)
    write_zip(path, [("folder/", b"")], {})
    assert "'folder/'" in complaint(load_arrays, path)


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 10**5, '{"format": NaN}', "1" * 5000, "\x00", '"\\ud800'])
def test_a_meta_that_is_no_meta_is_refused(path, text, complaint):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("meta.json", text)
    complaint(load_arrays, path)


@pytest.mark.parametrize(
    "manifest", [{"a": []}, {"a": None}, {"a": {}}, {"a": "shape"}, {"a": ["shape", "dtype", "sha256"]}]
)
def test_a_list_of_arrays_that_is_none_is_refused(path, manifest, complaint):
    write_zip(path, [("a.npy", npy(np.zeros(2)))], manifest)
    assert "damaged" in complaint(load_arrays, path)


def test_truth_values_are_true_or_false(path, complaint):
    odd = np.array([0, 2], np.uint8).view(bool)
    write_zip(path, [("a.npy", npy(odd))], {"a": entry(odd)})
    assert "truth values" in complaint(load_arrays, path)


# --- Crashes ---------------------------------------------------------------------------------------------------------

# A child that dies, as by a power switch, at the n-th call of one function of os.
KILLED = """
import os, signal, sys
import numpy as np
from cdpo.training.store import save_arrays
function, count = sys.argv[2], int(sys.argv[3])
real = getattr(os, function)
def deadly(*arguments, **keywords):
    global count
    count -= 1
    if count == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*arguments, **keywords)
setattr(os, function, deadly)
save_arrays(sys.argv[1], {"new": np.zeros(100_000)}, {})
"""


@pytest.mark.parametrize(("function", "count", "left"), [("replace", 1, "old"), ("fsync", 2, "new")])
def test_a_kill_while_saving_leaves_a_whole_file(saved, function, count, left):
    child = subprocess.run([sys.executable, "-c", KILLED, saved, function, str(count)], capture_output=True, text=True)
    assert child.returncode == -signal.SIGKILL, child.stderr
    if left == "old":
        assert_equal(load_arrays(saved))
    else:
        assert_equal(load_arrays(saved), {"new": np.zeros(100_000)}, {})


@pytest.mark.parametrize("function", ["fsync", "replace"])
def test_a_failure_while_saving_leaves_the_old_file_and_nothing_else(saved, monkeypatch, function):
    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, function, full)
        with pytest.raises(OSError, match="No space"):
            save_arrays(saved, {"new": np.zeros(10)}, {})
    assert_equal(load_arrays(saved))
    assert os.listdir(saved.parent) == [saved.name]
