"""Imports that no linter contract covers: nothing imports tests, and no product module the testing tools."""

from __future__ import annotations

from tests.unit.house.source_tree import LABORATORY, PRODUCT_FOLDERS, imports_of, name_of, python_files


def importers_of(package: str, *folders: str) -> list[str]:
    return [
        f"{name_of(path)} imports {name}"
        for path in python_files(*folders)
        for name in imports_of(path)
        if name == package or name.startswith(f"{package}.")
    ]


def test_nothing_imports_tests() -> None:
    assert importers_of("tests", *PRODUCT_FOLDERS, LABORATORY, "scripts") == []


def test_product_does_not_import_testing_tools() -> None:
    found = importers_of("p2prl.testing", *PRODUCT_FOLDERS)
    assert [line for line in found if not line.startswith("p2prl/testing/")] == []


def test_programs_of_the_laboratory_need_no_scripts() -> None:
    """Scripts are in a clone only; the laboratory can be installed without one."""
    assert importers_of("scripts", *PRODUCT_FOLDERS, LABORATORY) == []
