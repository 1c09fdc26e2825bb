"""Draw the floor plan from the code: `python -m scripts.floor_plan` writes docs/floor_plan.md and its picture.

Floors come from the import-linter contract in pyproject.toml, packages from the folders, arrows from the imports, and
each package's line from its docstring. `--check` writes nothing and exits 1 when the committed plan differs.
"""

from __future__ import annotations

import argparse
import ast
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path

ROOT = Path(__file__).parents[1]
GRAFTED = ("client", "validator", "protocol")
PAGE, PICTURE = ROOT / "docs/floor_plan.md", ROOT / "docs/images/floor_plan.svg"

WIDTH, MARGIN, BOX_HEIGHT, GAP, LINE = 1200, 24, 54, 40, 15
INNER_CHARS = 36
"""Sub-packages of the narrowest package written on one line, characters."""


@dataclass(frozen=True)
class Package:
    """A package below `p2prl`, or a single top-level module."""

    name: str
    path: Path
    files: tuple[Path, ...]

    @property
    def inner(self) -> tuple[str, ...]:
        """Sub-packages, by name."""
        inner = [file.parent for file in self.files if self.path.is_dir() and file.parent != self.path]
        return tuple(sorted({folder.relative_to(self.path).parts[0] for folder in inner}))


def floors() -> list[list[Package]]:
    """Packages by floor, the highest first, as the layers contract lists them."""
    linter = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = next(contract["layers"] for contract in linter["contracts"] if contract["type"] == "layers")
    return [[_package(name.strip()) for name in layer.split("|")] for layer in layers]


def _package(name: str) -> Package:
    path = ROOT / name if name in GRAFTED else ROOT / "p2prl" / name
    if not path.is_dir():
        return Package(name, path.with_suffix(".py"), (path.with_suffix(".py"),))
    return Package(name, path, tuple(sorted(path.rglob("*.py"))))


def first_line(path: Path) -> str:
    """The first line of a module's docstring."""
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    return (docstring or "").partition("\n")[0]


def imported_packages(package: Package) -> set[str]:
    """Names of the other packages that a package's files import."""
    found = set()
    for file in package.files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            for module in _modules(node):
                if module.startswith("p2prl."):
                    found.add(module.split(".")[1])
    return found - {package.name}


def _modules(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module is not None:
        if node.module == "p2prl":
            yield from (f"p2prl.{alias.name}" for alias in node.names)
        else:
            yield node.module


def picture(plan: list[list[Package]]) -> str:
    """The plan as SVG: one row per floor, one box per package with its sub-packages, one line per import."""
    boxes: dict[str, tuple[float, float, float, float]] = {}
    top = float(MARGIN)
    for floor in plan:
        height = BOX_HEIGHT + LINE * max(len(_inner_lines(package)) - 1 for package in floor)
        width = (WIDTH - 2 * MARGIN - 16 * (len(floor) - 1)) / len(floor)
        for column, package in enumerate(floor):
            boxes[package.name] = (MARGIN + column * (width + 16), top, width, height)
        top += height + GAP
    packages = [package for floor in plan for package in floor]
    arrows = [
        _arrow(boxes[package.name], boxes[other])
        for package in packages
        for other in sorted(imported_packages(package) & boxes.keys())
    ]
    frame = f'viewBox="0 0 {WIDTH} {top - GAP + MARGIN:.0f}" font-family="ui-sans-serif, system-ui, sans-serif"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {frame} role="img" aria-label="Floor plan: packages and imports">',
        '<rect width="100%" height="100%" fill="#fbfaf7"/>',
        *arrows,
        *(_box(package, boxes[package.name]) for package in packages),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _arrow(start: tuple[float, float, float, float], end: tuple[float, float, float, float]) -> str:
    x1, y1 = start[0] + start[2] / 2, start[1] + start[3]
    x2, y2 = end[0] + end[2] / 2, end[1]
    bend = (y2 - y1) / 2
    curve = f"M{x1:.0f},{y1:.0f} C{x1:.0f},{y1 + bend:.0f} {x2:.0f},{y2 - bend:.0f} {x2:.0f},{y2:.0f}"
    return f'<path d="{curve}" fill="none" stroke="#8a8577" stroke-opacity=".35" stroke-width="1.2"/>'


def _box(package: Package, box: tuple[float, float, float, float]) -> str:
    x, y, width, height = box
    place = f'x="{x:.0f}" y="{y:.0f}" width="{width:.0f}" height="{height:.0f}"'
    count = f"{len(package.files)} file{'s' if len(package.files) > 1 else ''}"
    size = f'<tspan font-weight="400" fill="#77736a" font-size="11">  {count}</tspan>'
    title = f'x="{x + 12:.0f}" y="{y + 22:.0f}" font-size="14" font-weight="600" fill="#1d1c1a"'
    lines = [
        f'<rect {place} rx="6" fill="#fff" stroke="#3b3a36"/>',
        f"<text {title}>{escape(package.name)}{size}</text>",
    ]
    for row, name in enumerate(_inner_lines(package)):
        lines.append(
            f'<text x="{x + 12:.0f}" y="{y + 40 + row * LINE:.0f}" font-size="12" fill="#4d4a43">{escape(name)}</text>'
        )
    return "\n".join(lines)


def _inner_lines(package: Package) -> list[str]:
    """Names of the sub-packages, wrapped to the width of a narrow box; at least one line."""
    return textwrap.wrap(" · ".join(package.inner), INNER_CHARS) or [""]


def page(plan: list[list[Package]]) -> str:
    """The plan as Markdown: the picture, then a line for every package and for each room in it, floor by floor."""
    parts = [
        "# Floor plan",
        "",
        "Drawn from the code by `make floor-plan`; a test keeps it equal. A package imports the floors below it, never",
        "above, never its neighbors on the same floor. Every file opens with a line on what it does.",
        "",
        "![Packages by floor, with a line for every import between two packages](images/floor_plan.svg)",
        "",
        "| floor | package | |",
        "|--:|---|---|",
    ]
    for number, floor in zip(range(len(plan), 0, -1), plan, strict=True):
        for package in floor:
            parts += [f"| {number} | {_link(package.path)} | {_summary(package.path)} |"]
            parts += [f"| | {_link(package.path / room)} | {_summary(package.path / room)} |" for room in package.inner]
    return "\n".join([*parts, *_laboratory()]) + "\n"


def _link(path: Path) -> str:
    return f"[`{path.relative_to(ROOT)}`](../{path.relative_to(ROOT)})"


def _laboratory() -> list[str]:
    """The parts of the laboratory, one line each: its README names their readers."""
    folder = ROOT / "lab" / "p2prl_lab"
    parts = sorted(path for path in folder.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists())
    return [
        "",
        "## Laboratory",
        "",
        "Above all floors, a distribution of its own: [its README](../lab/README.md) names readers and commands.",
        "",
        "| part | |",
        "|---|---|",
        *(f"| {_link(path)} | {_summary(path)} |" for path in parts if path.name != "__init__.py"),
    ]


def _summary(path: Path) -> str:
    return first_line(path / "__init__.py" if path.is_dir() else path).replace("|", "¦")


def main() -> int:
    """Write the plan, or compare it."""
    parser = argparse.ArgumentParser(description="Draw the floor plan from the code.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when the committed plan differs")
    check = parser.parse_args().check
    plan = floors()
    texts = {PAGE: page(plan), PICTURE: picture(plan)}
    different = [path.relative_to(ROOT) for path, text in texts.items() if not _is_current(path, text, write=not check)]
    if check and different:
        print("out of date:", *different, "- run: make floor-plan", file=sys.stderr)
        return 1
    return 0


def _is_current(path: Path, text: str, *, write: bool) -> bool:
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return True
    if write:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return False


if __name__ == "__main__":
    sys.exit(main())
