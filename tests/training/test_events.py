import math
import os
import struct
from contextlib import closing

import numpy as np
import pytest

from cdpo.training.events import EventWriter, crc32c
from cdpo.training.log import cut_file


def slow_crc32c(data):
    """By long division, bit by bit, from the polynomial's usual (not reversed) form."""
    bits = [byte >> place & 1 for byte in data for place in range(8)] + [0] * 32
    remainder = 0
    for index, bit in enumerate(bits):
        bit ^= index < 32  # the register begins with ones
        carry, remainder = remainder >> 31, (remainder << 1 | bit) & 0xFFFFFFFF
        if carry:
            remainder ^= 0x1EDC6F41
    return int(f"{remainder:032b}"[::-1], 2) ^ 0xFFFFFFFF


def unmasked(crc):
    turned = crc - 0xA282EAD8 & 0xFFFFFFFF
    return (turned >> 17 | turned << 15) & 0xFFFFFFFF


def records(data):
    """The data of each record of a TFRecord file, its framing and checksums verified."""
    found = []
    while data:
        length, length_crc = struct.unpack_from("<QI", data)
        assert unmasked(length_crc) == slow_crc32c(data[:8])
        found.append(data[12 : 12 + length])
        assert len(found[-1]) == length
        assert unmasked(struct.unpack_from("<I", data, 12 + length)[0]) == slow_crc32c(found[-1])
        data = data[16 + length :]
    return found


def fields(message):
    """The fields of a protocol buffer as pairs of number and value."""
    position = 0

    def varint():
        nonlocal position
        value = shift = 0
        while True:
            byte = message[position]
            position += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    found = []
    while position < len(message):
        number, kind = divmod(varint(), 8)
        if kind == 0:
            value = varint()
        else:
            size = {1: 8, 5: 4, 2: None}[kind] or varint()
            value = message[position : position + size]
            position += size
            if kind != 2:
                (value,) = struct.unpack("<d" if kind == 1 else "<f", value)
        found.append((number, value))
    return found


def events(folder):
    """Every event of the folder's file: its fields by name, the scalars by tag."""
    found = []
    for record in records((folder / EventWriter.NAME).read_bytes()):
        event = {{1: "wall_time", 2: "step", 3: "version", 5: "scalars"}[n]: value for n, value in fields(record)}
        if "scalars" in event:
            values = [dict(fields(value)) for _, value in fields(event["scalars"])]
            event["scalars"] = {value[1].decode(): value[2] for value in values}
        found.append(event)
    return found


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0),
        (b"a", 0xC1D04330),
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),  # this and the following ones are of RFC 3720, B.4
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(reversed(range(32))), 0x113FDB5C),
    ],
)
def test_crc32c_of_known_data(data, expected):
    assert crc32c(data) == expected


def test_crc32c_by_two_ways():
    draws = np.random.default_rng(0)
    for size in range(4, 100, 3):
        data = draws.bytes(size)
        assert crc32c(data) == slow_crc32c(data)


def test_a_file_begins_with_its_version(tmp_path):
    with closing(EventWriter(tmp_path, wall_time=lambda: 12.5)):
        pass
    assert events(tmp_path) == [{"wall_time": 12.5, "version": b"brain.Event:2"}]
    assert "tfevents" in EventWriter.NAME  # by which TensorBoard knows such a file


def test_a_folder_that_went_away_is_not_made_anew(tmp_path):
    with pytest.raises(FileNotFoundError):
        EventWriter(tmp_path / "gone")
    assert not (tmp_path / "gone").exists()


def test_scalars_are_written_with_their_step_and_time(tmp_path):
    times = iter([1.0, 2.5, 3.5])
    with closing(EventWriter(tmp_path, wall_time=lambda: next(times))) as writer:
        writer.scalars(0, {"seed 0/return": -1.5, "größe": 2})
        writer.scalars(2**40, {"a" * 300: np.float32(0.25)})
        writer.scalars(3, {})
    assert events(tmp_path)[1:] == [
        {"wall_time": 2.5, "step": 0, "scalars": {"seed 0/return": -1.5, "größe": 2.0}},
        {"wall_time": 3.5, "step": 2**40, "scalars": {"a" * 300: 0.25}},
    ]


def test_numbers_that_are_none_are_written_as_they_are(tmp_path):
    with closing(EventWriter(tmp_path)) as writer:
        writer.scalars(1, {"nan": math.nan, "inf": math.inf, "-inf": -math.inf, "large": 1e300, "small": -1e-300})
    scalars = events(tmp_path)[1]["scalars"]
    assert math.isnan(scalars.pop("nan"))
    assert scalars == {"inf": math.inf, "-inf": -math.inf, "large": math.inf, "small": 0.0}


def test_many_scalars_in_one_write(tmp_path):
    values = {f"diagnostics/{index}": index / 8 for index in range(500)}
    with closing(EventWriter(tmp_path)) as writer:
        writer.scalars(7, values)
    assert events(tmp_path)[1]["scalars"] == values


def test_sync_puts_the_events_on_the_disk_and_tells_the_size(tmp_path, monkeypatch):
    synced = []
    with closing(EventWriter(tmp_path)) as writer:
        writer.scalars(1, {"a": 1.0})
        monkeypatch.setattr(os, "fsync", synced.append)
        size = writer.sync()
        assert len(synced) == 1
        assert size == writer.path.stat().st_size
        assert len(events(tmp_path)) == 2


def test_a_run_that_goes_on_continues_its_file(tmp_path):
    def write(steps, cut=None):
        if cut is not None:
            cut_file(tmp_path / EventWriter.NAME, cut)
        with closing(EventWriter(tmp_path, wall_time=lambda: 1.0)) as writer:
            for step in steps:
                writer.scalars(step, {"a": step})
            return writer.sync()

    write(range(4))
    whole = (tmp_path / EventWriter.NAME).read_bytes()
    write(range(4), cut=0)
    assert (tmp_path / EventWriter.NAME).read_bytes() == whole
    offset = write(range(2), cut=0)
    write([7, 8, 9])
    write([2, 3], cut=offset)
    assert (tmp_path / EventWriter.NAME).read_bytes() == whole
    assert os.listdir(tmp_path) == [EventWriter.NAME]


@pytest.mark.extra
def test_tensorboard_reads_the_file(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    with closing(EventWriter(tmp_path, wall_time=lambda: 1.5)) as writer:
        for step in range(3):
            writer.scalars(step, {"return": step / 2, "loss": math.nan})
    reader = accumulator.EventAccumulator(str(tmp_path)).Reload()
    assert sorted(reader.Tags()["scalars"]) == ["loss", "return"]
    assert [(event.wall_time, event.step, event.value) for event in reader.Scalars("return")] == [
        (1.5, 0, 0.0),
        (1.5, 1, 0.5),
        (1.5, 2, 1.0),
    ]
