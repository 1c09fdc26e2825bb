"""The line on what others see of a machine is true of its record."""

from __future__ import annotations

import pytest

from p2prl.cli.views.visibility import visibility_line


@pytest.mark.parametrize(("is_seeder", "is_public"), [(False, True), (True, False), (True, True)])
def test_whoever_is_listed_is_told_that_links_name_it(is_seeder: bool, is_public: bool) -> None:
    line = visibility_line(is_seeder=is_seeder, is_public=is_public)
    assert "join links and the pages that show them name both" in line
    assert ("seeder" if is_seeder else "--public") in line


def test_others_are_told_who_sees_their_address_and_who_does_not() -> None:
    line = visibility_line(is_seeder=False, is_public=False)
    assert "learner and every other peer of the run can see" in line
    assert line.endswith("no link, page or ledger joins the two.")
