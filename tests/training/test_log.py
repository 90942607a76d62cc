import os
import pickle
import random
import struct
import zlib
from contextlib import closing

import numpy as np
import pytest

from cdpo.training.log import Log, cut_file

ROWS = np.random.default_rng(0).normal(size=(50, 7)).astype(np.float32)


@pytest.fixture
def log(tmp_path):
    """The path of a log that holds `ROWS`, appended in parts."""
    path = tmp_path / "replay.bin"
    with closing(Log(path, 7)) as log:
        for part in np.split(ROWS, [1, 1, 20]):
            log.append(part)
        log.sync()
    return path


def test_a_log_gives_back_its_first_rows(log):
    for rows in (0, 1, 20, 33, 50):
        read = Log.read(log, rows, 7)
        assert read.dtype == np.float32
        assert read.shape == (rows, 7)
        np.testing.assert_array_equal(read, ROWS[:rows])


def test_a_log_keeps_every_bit(tmp_path):
    bits = np.random.default_rng(0).integers(0, 2**32, (100, 3), np.uint32)
    bits[0] = 0x7F800001, 0xFFC12345, 0x80000000
    with closing(Log(tmp_path / "log", 3)) as log:
        log.append(bits.view(np.float32))
    assert (Log.read(tmp_path / "log", 100, 3).view(np.uint32) == bits).all()


def test_synced_rows_can_be_read_while_the_log_is_open(tmp_path):
    with closing(Log(tmp_path / "log", 7)) as log:
        log.append(ROWS)
        log.sync()
        np.testing.assert_array_equal(Log.read(tmp_path / "log", 50, 7), ROWS)


def test_a_log_goes_on_after_a_cut_as_if_never_interrupted(log):
    whole = log.read_bytes()
    Log.cut(log, 33)
    with closing(Log(log, 7)) as reopened:
        assert reopened.rows == 33
        reopened.append(ROWS[33:])
        assert reopened.rows == 50
    assert log.read_bytes() == whole


def test_a_torn_row_is_cut_away(log, complaint):
    with open(log, "ab") as file:
        file.write(b"torn")
    assert "middle of a row" in complaint(Log, log, 7)
    Log.cut(log, 50)
    np.testing.assert_array_equal(Log.read(log, 50, 7), ROWS)
    Log.cut(log, 0)
    assert Log.read(log, 0, 7).shape == (0, 7)
    with closing(Log(log, 7)) as reopened:
        assert reopened.rows == 0


def test_a_log_that_holds_fewer_rows_is_damaged(log, complaint):
    for call in (lambda rows: Log.read(log, rows, 7), lambda rows: Log.cut(log, rows)):
        assert "50 of 51 rows" in complaint(call, 51)
        assert "50 of" in complaint(call, 2**62)
    log.write_bytes(log.read_bytes()[:-1])
    assert "49 of 50 rows" in complaint(Log.read, log, 50, 7)


def test_every_flipped_bit_of_a_log_is_found(log, complaint):
    whole, draws = log.read_bytes(), random.Random(0)
    for position in {*range(60), *(draws.randrange(len(whole)) for _ in range(300)), len(whole) - 1}:
        damaged = bytearray(whole)
        damaged[position] ^= 1 << draws.randrange(8)
        log.write_bytes(damaged)
        assert "damaged" in complaint(Log.read, log, 50, 7)


def test_damage_behind_the_rows_that_are_read_does_no_harm(log, complaint):
    log.write_bytes(log.read_bytes()[:-1] + b"?")
    np.testing.assert_array_equal(Log.read(log, 49, 7), ROWS[:49])
    assert "row 49" in complaint(Log.read, log, 50, 7)


def test_rows_that_changed_places_are_found(log, complaint):
    data = log.read_bytes()
    size = 4 * 7 + 4
    start = len(data) - 50 * size
    first, second = data[start : start + size], data[start + size : start + 2 * size]
    log.write_bytes(data[:start] + second + first + data[start + 2 * size :])
    assert "row 0" in complaint(Log.read, log, 50, 7)


def test_what_is_no_log_is_said_to_be_none(tmp_path, log, complaint):
    np.save(tmp_path / "rows.npy", ROWS)
    for data in (b"", b"hello\n" * 100, pickle.dumps([1, 2]), (tmp_path / "rows.npy").read_bytes()):
        (tmp_path / "other").write_bytes(data)
        assert "not a log" in complaint(Log.read, tmp_path / "other", 0, 7)
        assert "not a log" in complaint(Log.cut, tmp_path / "other", 0)
        assert "not a log" in complaint(Log, tmp_path / "other", 7)
        assert (tmp_path / "other").read_bytes() == data
    assert "does not exist" in complaint(Log.read, tmp_path / "absent", 0, 7)
    assert "is a folder" in complaint(Log.read, tmp_path, 0, 7)
    assert "rows of 7 numbers" in complaint(Log.read, log, 1, 8)
    assert "rows of 7 numbers" in complaint(Log, log, 6)


def test_a_newer_or_impossible_log_is_refused(log, complaint):
    for version, width, words in (
        (3, 7, "newer cdpo"),
        (0, 7, "damaged"),
        (1, 0, "damaged"),
        (1, 2**32 - 1, "damaged"),
    ):
        header = struct.pack("<8sII", b"cdpo-log", version, width)
        log.write_bytes(header + struct.pack("<I", zlib.crc32(header)) + bytes(1000))
        assert words in complaint(Log.cut, log, 0)


@pytest.mark.parametrize(
    "rows", [ROWS.astype(np.float64), ROWS[:, :6], ROWS[0], ROWS.astype(">f4")], ids=["f8", "6", "1d", "be"]
)
def test_rows_of_another_kind_are_not_appended(log, rows):
    with closing(Log(log, 7)) as opened, pytest.raises(TypeError, match=r"float32 \[n, 7\]"):
        opened.append(rows)
    assert len(Log.read(log, 50, 7)) == 50


def test_impossible_counts_are_mistakes_of_the_program(log):
    for call, arguments in ((Log, (log, 0)), (Log.cut, (log, -1)), (Log.read, (log, -1, 7)), (cut_file, (log, -1))):
        with pytest.raises(ValueError, match=r"not 0|-1"):
            call(*arguments)


def test_cut_file_cuts_to_the_byte(tmp_path, complaint):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b"one\ntwo\nthr")
    cut_file(path, 8)
    assert path.read_bytes() == b"one\ntwo\n"
    cut_file(path, 8)
    assert path.read_bytes() == b"one\ntwo\n"
    assert "8 bytes, and the checkpoint counted 9" in complaint(cut_file, path, 9)
    assert path.read_bytes() == b"one\ntwo\n"
    cut_file(path, 0)
    assert path.read_bytes() == b""


def test_cut_file_of_a_file_that_is_not_there(tmp_path, complaint):
    cut_file(tmp_path / "metrics.jsonl", 0)
    assert not os.listdir(tmp_path)
    assert "does not exist" in complaint(cut_file, tmp_path / "metrics.jsonl", 1)
    assert "is a folder" in complaint(cut_file, tmp_path, 0)
