import contextlib
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdpo.sealed import Unsealed, sealed, unsealed

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.text().filter(lambda key: key != "crc32"), VALUES, max_size=4)


@given(OBJECTS, st.sampled_from([None, 2]), st.integers(0, 10**6))
def test_what_is_sealed_comes_back(value, indent, place):
    text = sealed(value, indent, place=place)
    assert text.endswith("}\n") and (indent or text.count("\n") == 1)
    assert unsealed(text.encode(), required=True, place=place) == value


@given(OBJECTS, st.data())
def test_a_byte_that_changed_is_found_or_changes_nothing(value, data):
    text = bytearray(sealed(value).encode())
    place = data.draw(st.integers(0, len(text) - 1))
    text[place] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(Unsealed):
        assert unsealed(bytes(text), required=True) == value  # as white space at the end


def test_another_place_is_another_checksum():
    for place in range(1, 1000):
        with pytest.raises(Unsealed, match="does not match"):
            unsealed(sealed({"a": 1}).encode(), required=True, place=place)


@pytest.mark.parametrize("number", ["1e999", "-1E+400", "1e00999", "9" * 400 + ".5", "NaN", "-Infinity", "9" * 5000])
def test_what_no_float_holds_is_no_number(number):
    with pytest.raises(Unsealed, match="not JSON"):
        unsealed(f'{{"a": {number}}}'.encode(), required=False)


def test_numbers_that_are_large_and_small_are_as_written():
    found = unsealed(b'{"a": 1e300, "b": 1e-999, "c": 123e-400, "d": 4e2}', required=False)
    assert found == {"a": 1e300, "b": 0.0, "c": 0.0, "d": 400.0} and math.isfinite(found["a"])
