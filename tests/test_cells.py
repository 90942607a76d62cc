"""Cells of any kind are run once, and their records come back in the order of the cells."""

from dataclasses import dataclass
from typing import ClassVar

import pytest

from cdpo.cells import complete, record_of
from cdpo.runs import RunFolder


@dataclass(frozen=True)
class Plain:
    """A cell that is run at once; one of a negative number cannot be."""

    number: int
    shape: tuple[int, ...] = (1, 2)
    ran: ClassVar[list] = []

    @property
    def identity(self):
        return {"kind": type(self).__name__, "number": self.number, "shape": self.shape}

    @property
    def later(self):
        return {"width": 1}

    @classmethod
    def run_all(cls, cells, folder, progress):
        for cell in cells:
            if cell.number < 0:
                raise ZeroDivisionError
            cls.ran.append(cell)
            folder.append({**cell.identity, "square": cell.number**2})


class Other(Plain):
    """Another kind."""


@pytest.fixture
def folder(tmp_path):
    Plain.ran.clear()
    return RunFolder.create(tmp_path / "run", {})


def test_kinds_may_be_mixed_and_keep_their_order(folder):
    cells = [Plain(1), Other(1), Plain(2), Other(3)]
    records = complete(folder, cells, None)
    assert [(record["kind"], record["square"]) for record in records] == [
        ("Plain", 1),
        ("Other", 1),
        ("Plain", 4),
        ("Other", 9),
    ]
    assert complete(folder, [*cells, Plain(4)], None)[:4] == records
    assert Plain.ran == [Plain(1), Plain(2), Other(1), Other(3), Plain(4)]


def test_what_has_finished_before_a_failure_is_not_run_again(folder):
    with pytest.raises(ZeroDivisionError):
        complete(folder, [Plain(1), Plain(-1)], None)
    assert [record["square"] for record in complete(folder, [Plain(2), Plain(1)], None)] == [4, 1]
    assert Plain.ran == [Plain(1), Plain(2)]


def test_a_record_of_other_settings_does_not_count(folder):
    complete(folder, [Plain(1)], None)
    complete(folder, [Plain(1, shape=(1, 3))], None)
    assert len(Plain.ran) == 2


def test_a_setting_that_came_later_is_in_older_records_what_it_was_then():
    @dataclass(frozen=True)
    class Wide(Plain):
        width: int = 1

        @property
        def identity(self):
            return {"number": self.number, "settings": {"width": self.width, "depth": 3}}

    older = {"number": 1, "settings": {"depth": 3}}
    assert record_of(Wide(1), [older]) is older
    assert record_of(Wide(1, width=2), [older]) is None
