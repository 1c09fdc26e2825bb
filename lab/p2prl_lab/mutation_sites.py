"""Places in a module where one flipped operator, condition or number makes a mutant, and the text of that mutant.

Only the bytes of the flip change: a test that reads source text sees the file as it is written.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

_COMPARISONS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: (r"<", "<="),
    ast.LtE: (r"<=", "<"),
    ast.Gt: (r">", ">="),
    ast.GtE: (r">=", ">"),
    ast.Eq: (r"==", "!="),
    ast.NotEq: (r"!=", "=="),
    ast.Is: (r"\bis\b", "is not"),
    ast.IsNot: (r"\bis\s+not\b", "is"),
    ast.In: (r"\bin\b", "not in"),
    ast.NotIn: (r"\bnot\s+in\b", "in"),
}
_ARITHMETIC: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: (r"\+", "-"),
    ast.Sub: (r"-", "+"),
    ast.Mult: (r"\*", "+"),
    ast.Div: (r"/", "*"),
    ast.FloorDiv: (r"//", "*"),
}


@dataclass(frozen=True, slots=True)
class Site:
    """One flip: bytes `start` to `end` of a module become `mutant`."""

    line: int
    """From 1."""
    start: int
    end: int
    mutant: str

    def applied(self, source: bytes) -> bytes:
        """The module with this flip."""
        return source[: self.start] + self.mutant.encode() + source[self.end :]

    def described(self, source: bytes) -> str:
        """Such as `21:8: < becomes <=`: line, byte of the line, what is there, what takes its place."""
        column = self.start - source.rfind(b"\n", 0, self.start)
        return f"{self.line}:{column}: {source[self.start : self.end].decode()!r} becomes {self.mutant!r}"


def sites(source: bytes) -> list[Site]:
    """Every flip of a module, in the order of its text.

    None in annotations, decorators, assertions, formatted strings and what only a type checker or a shell runs.

    Comparisons get or lose their equal case or are negated; `and` and `or` change places; a `not` goes away; `+` and
    `-` change places, `*` and `/` become something else; a bare condition is negated; True and False change places; a
    number is doubled, 0 becomes 1.
    """
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found = (site for node in _code(ast.parse(source)) for site in _flips(node, source, starts))
    return sorted(set(found), key=lambda site: (site.start, site.end))


def _code(node: ast.AST) -> Iterator[ast.AST]:
    """`node` and what is in it, but for what `sites` leaves out.

    Python 3.11 does not know where the parts of a formatted string stand.
    """
    match node:
        case ast.Assert() | ast.JoinedStr():
            return
        case ast.If(test=ast.Name("TYPE_CHECKING") | ast.Compare(left=ast.Name("__name__"))):
            return
    yield node
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _code(child)


def _flips(node: ast.AST, source: bytes, starts: list[int]) -> Iterator[Site]:
    match node:
        case ast.Compare():
            sides = [node.left, *node.comparators]
            for (left, right), operator in zip(pairwise(sides), node.ops, strict=True):
                yield from _between(left, right, *_COMPARISONS[type(operator)], source, starts)
        case ast.BoolOp():
            word, other = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
            for left, right in pairwise(node.values):
                yield from _between(left, right, rf"\b{word}\b", other, source, starts)
        case ast.BinOp(op=operator) if type(operator) in _ARITHMETIC:
            yield from _between(node.left, node.right, *_ARITHMETIC[type(operator)], source, starts)
        case ast.UnaryOp(op=ast.Not()):
            start, end = _start(node, starts), _start(node.operand, starts)
            if source[start:end] == b"not ":
                yield Site(node.lineno, start, end, "")
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            if isinstance(test, ast.Name | ast.Attribute | ast.Call | ast.Subscript):
                start = _start(test, starts)
                yield Site(test.lineno, start, start, "not ")
        case ast.Constant(value=bool() as value):
            yield _instead(node, str(not value), starts)
        case ast.Constant(value=int() | float() as value):
            yield _instead(node, str(2 * value) if value else "1", starts)


def _between(
    left: ast.expr, right: ast.expr, pattern: str, mutant: str, source: bytes, starts: list[int]
) -> Iterator[Site]:
    """The operator between two operands: brackets and comments may stand there, too."""
    start = _end(left, starts)
    for match in re.finditer(pattern.encode(), source[start : _start(right, starts)]):
        before = source[start : start + match.start()]
        if b"#" not in before.rsplit(b"\n", 1)[-1]:
            line = left.end_lineno or left.lineno
            yield Site(line + before.count(b"\n"), start + match.start(), start + match.end(), mutant)
            return


def _instead(node: ast.Constant, mutant: str, starts: list[int]) -> Site:
    return Site(node.lineno, _start(node, starts), _end(node, starts), mutant)


def _start(node: ast.expr, starts: list[int]) -> int:
    return starts[node.lineno - 1] + node.col_offset


def _end(node: ast.expr, starts: list[int]) -> int:
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    return starts[node.end_lineno - 1] + node.end_col_offset
