"""The line on what others see of a machine is true of its record."""

from __future__ import annotations

import pytest

from p2prl.cli.reach import visibility_line


@pytest.mark.parametrize(("is_seeder", "is_public"), [(False, True), (True, False), (True, True)])
def test_whoever_is_listed_is_told_that_links_name_it(is_seeder: bool, is_public: bool) -> None:
    line = visibility_line(is_seeder=is_seeder, is_public=is_public)
    assert "join links and the pages that show them name both" in line
    assert ("seeder" if is_seeder else "--public") in line


def test_others_are_told_who_sees_their_address_and_who_does_not() -> None:
    line = visibility_line()
    assert "learner and every other peer of the run can see" in line
    assert line.endswith("; no link, page or ledger joins the two.")


def test_whoever_was_listed_is_told_that_older_links_name_it_still() -> None:
    line = visibility_line(was_listed=True)
    assert "no new link, page or ledger joins the two" in line
    assert line.endswith("but those made while it was listed do.")
    assert visibility_line(is_public=True, was_listed=True) == visibility_line(is_public=True)


@pytest.mark.parametrize("is_public", [False, True])
def test_whoever_announces_itself_on_its_network_is_told_who_sees_it_there(is_public: bool) -> None:
    line = visibility_line(is_public=is_public, on_lan=True)
    assert "every other peer of the run and the machines on this local network (--lan) can see" in line
    assert "local network" not in visibility_line(is_public=is_public)
