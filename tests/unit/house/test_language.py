"""Docstrings open with what a thing is, in the field's own words."""

from __future__ import annotations

import re

import pytest

from tests.unit.house.source_tree import ALL_FOLDERS, LABORATORY, PRODUCT_FOLDERS, docstring_of, name_of, python_files

OPENING = re.compile(r"(What|Who|Whoever|Whatever|Whom|How|Which|Where|When|So many)\b")

DIALECT = re.compile(
    r"\b(for ever|nought|by lot|of no use|whoever|whomsoever|thereby|hereby|in life|let go of|tak(es?|en|ing) up"
    r"|took up|com(es?|ing) to nothing|came to nothing|said to be|the weather|once and for|so many|rehears\w+|appetite"
    r"|farewell|docket|shelf|pursuits?|last words|founding|neighbour\w*|behaviour\w*|colour\w*|honour\w*|favour\w*"
    r"|such a one|so that whoever|what there is of|com(es|ing) of it|hears|said again|sentences? (for )?a person"
    r"|going on (with|without|alone)|stands? still|into force|as it runs|and no more|is to be saved|in the hands of"
    r"|initialis\w+|no other than|the very (model|same|file)|whatever the (bytes|size|loss|sender|cause))\b",
    re.IGNORECASE,
)
"""Phrases of an earlier style that a newcomer had to learn; docs/glossary.md has the words to use."""

FIXED_NAMES = ("neighbours: ", "neighbours=", '"rehearsal"')
"""A key of the scoreboard's API and a run name that seeds depend on: both must stay."""


def test_module_docstrings_name_the_thing() -> None:
    opening = {
        name_of(path): docstring.partition("\n")[0]
        for path in python_files(*ALL_FOLDERS)
        if OPENING.match(docstring := docstring_of(path))
    }
    assert opening == {}


@pytest.mark.parametrize("folder", [*PRODUCT_FOLDERS, LABORATORY])
def test_no_dialect(folder: str) -> None:
    found = {
        f"{name_of(path)}:{number}": line.strip()
        for path in python_files(folder)
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if DIALECT.search(line) and not any(name in line for name in FIXED_NAMES)
    }
    assert found == {}
