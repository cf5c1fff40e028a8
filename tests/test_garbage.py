"""The garbage collector is away while a table is made, and as it was afterwards."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from bundler._garbage import relax, uncollected


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    was_on, threshold = gc.isenabled(), gc.get_threshold()
    yield
    gc.set_threshold(*threshold)
    (gc.enable if was_on else gc.disable)()


@pytest.mark.parametrize("was_on", [True, False])
@pytest.mark.parametrize("fails", [True, False])
def test_the_collector_is_off_inside_and_as_it_was_afterwards(was_on: bool, fails: bool) -> None:
    @uncollected
    def work(fails: bool) -> bool:
        if fails:
            raise ValueError("no table")
        return gc.isenabled()

    (gc.enable if was_on else gc.disable)()
    if fails:
        with pytest.raises(ValueError, match="no table"):
            work(fails)
    else:
        assert work(fails) is False
    assert gc.isenabled() is was_on


def test_a_process_of_ours_is_looked_through_less_often_and_not_never() -> None:
    before = gc.get_threshold()
    relax()
    assert all(now > then for now, then in zip(gc.get_threshold(), before)) and gc.isenabled()
