"""A join link as a QR code, for a terminal that has room for one. Needs the extra `qr` (segno)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from rich.text import Text

from p2prl.cli.views.console import console
from p2prl.protocol.join_link import JoinLink, parse_link

Modules = Sequence[Sequence[int]]
"""Rows of a code; 1 is dark."""

QUIET = 2
"""Modules of margin. The standard has four; two are enough on a screen, and cameras read it."""

_LINES_KEPT = 4
"""Lines of the terminal that stay free for what is said below the code."""

_BLOCKS = {(0, 0): " ", (1, 0): "▀", (0, 1): "▄", (1, 1): "█"}


def show_qr(link: str) -> None:
    """Print the link's code if this is a terminal with colors and room, and the extra is installed."""
    if not console.is_terminal or console.no_color:
        return
    try:
        import segno
    except ImportError:
        return

    def encode(text: str) -> Modules:
        modules: Modules = segno.make(text, error="l", micro=False).matrix
        return modules

    lines = code_lines(parse_link(link), encode, width=console.width, height=console.height)
    for line in lines:
        console.print(Text(line, style="black on white"), soft_wrap=True)


def code_lines(link: JoinLink, encode: Callable[[str], Modules], *, width: int, height: int) -> list[str]:
    """The lines of the code for a link: with all its addresses, or as many as there is room for; none without room.

    Half blocks, two rows of modules a line, dark on light.
    """
    for count in range(len(link.bootstrap), 0, -1):
        modules = encode(str(replace(link, bootstrap=link.bootstrap[:count])))
        side = len(modules) + 2 * QUIET
        if side <= width and (side + 1) // 2 + _LINES_KEPT <= height:
            return half_blocks(modules)
    return []


def half_blocks(modules: Modules) -> list[str]:
    """Text of a code with its margin, two rows of modules in each line."""
    width = len(modules[0]) + 2 * QUIET
    empty = (0,) * width
    side = (0,) * QUIET
    rows = [empty] * QUIET + [(*side, *(int(bool(module)) for module in row), *side) for row in modules]
    rows += [empty] * (QUIET + len(rows) % 2)
    return [
        "".join(_BLOCKS[pair] for pair in zip(rows[index], rows[index + 1], strict=True))
        for index in range(0, len(rows), 2)
    ]
