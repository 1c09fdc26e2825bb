"""Flips of a module: each changes the program, only where it says, and none is missed."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from p2prl_lab import mutation_sites
from p2prl_lab.mutation_sites import Site, sites

FLIPS = [
    ("x < 1 and y", ["x <= 1 and y", "x < 1 or y", "x < 2 and y"]),
    ("a <= b >= c", ["a < b >= c", "a <= b > c"]),
    ("(a) == (b) != c", ["(a) != (b) != c", "(a) == (b) == c"]),
    ("a is b is not c", ["a is not b is not c", "a is b is c"]),
    ("a in b not in c", ["a not in b not in c", "a in b in c"]),
    ("not a", ["a"]),
    ("not a or not b or c", ["a or not b or c", "not a and not b or c", "not a or b or c", "not a or not b and c"]),
    ("a + b - c", ["a - b - c", "a + b + c"]),
    ("a * b / c // d", ["a + b / c // d", "a * b * c // d", "a * b / c * d"]),
    ("0, 7, 2.5, -3", ["1, 7, 2.5, -3", "0, 14, 2.5, -3", "0, 7, 5.0, -3", "0, 7, 2.5, -6"]),
    ("True, False", ["False, False", "True, True"]),
    ("a if b else c", ["a if not b else c"]),
    ("if ü.b:\n    pass", ["if not ü.b:\n    pass"]),
    ("while f():\n    pass", ["while not f():\n    pass"]),
    ("x = (\n    a  # < b\n    < b\n)", ["x = (\n    a  # < b\n    <= b\n)"]),
]
LEFT_OUT = [
    "assert a < 1",
    "def f(a: Literal[1]) -> Literal[2]:\n    pass",
    "x: Literal[1]",
    "@frozen(True)\nclass A:\n    pass",
    "if TYPE_CHECKING:\n    x = 1",
    "if __name__ == '__main__':\n    f(1)",
    "f'{a < 1}'",
]


@pytest.mark.parametrize(("source", "mutants"), FLIPS)
def test_every_flip_of_a_text_is_found(source: str, mutants: list[str]) -> None:
    raw = source.encode()
    assert sorted(site.applied(raw).decode() for site in sites(raw)) == sorted(mutants)


@pytest.mark.parametrize("source", LEFT_OUT)
def test_nothing_is_flipped_where_no_program_is(source: str) -> None:
    assert sites(source.encode()) == []


def test_a_flip_says_where_it_is() -> None:
    source = b"a = 1\nb = a < c\n"
    assert [site.described(source) for site in sites(source)] == ["1:5: '1' becomes '2'", "2:7: '<' becomes '<='"]


def test_each_flip_of_a_module_is_another_program() -> None:
    source = Path(mutation_sites.__file__).read_bytes()
    program = ast.dump(ast.parse(source))
    found = sites(source)
    assert len(found) > 30
    assert program not in {ast.dump(ast.parse(site.applied(source))) for site in found}


def test_a_flip_is_applied_to_its_bytes_alone() -> None:
    assert Site(1, 1, 2, "yy").applied(b"axb") == b"ayyb"
