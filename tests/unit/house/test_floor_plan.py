"""The committed floor plan is the one the code draws."""

from __future__ import annotations

from scripts import floor_plan


def test_floor_plan_is_current() -> None:
    plan = floor_plan.floors()
    assert floor_plan.PAGE.read_text() == floor_plan.page(plan), "run: make floor-plan"
    assert floor_plan.PICTURE.read_text() == floor_plan.picture(plan), "run: make floor-plan"


def test_every_package_of_the_tree_is_on_a_floor() -> None:
    drawn = {package.name for floor in floor_plan.floors() for package in floor}
    folders = {path.name for path in (floor_plan.ROOT / "p2prl").iterdir() if (path / "__init__.py").exists()}
    assert folders <= drawn
