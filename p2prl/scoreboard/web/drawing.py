"""Pictures with text, drawn with Pillow: the one file that knows the library, which is imported when it is used."""

from __future__ import annotations

import importlib.util
import io
import struct
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.ImageFont import FreeTypeFont

INK, SOFT, ACCENT, GROUND, CARD, LINE = "#1d2421", "#5d6863", "#1f6b58", "#f6f5f1", "#ffffff", "#e2e0d8"
"""Colors of the page in light mode."""

Point = tuple[float, float]

_PNG = b"\x89PNG\r\n\x1a\n"

_DRAWN_CHUNKS = frozenset({b"IHDR", b"IDAT", b"iTXt", b"IEND"})
"""All that `Picture.png` writes. Others can show something else over the same pixels: frames, palettes, profiles."""


def can_draw() -> bool:
    """Whether the library is installed."""
    return importlib.util.find_spec("PIL") is not None


class Picture:
    """A picture in the making. Places and sizes are in pixels from the top left."""

    def __init__(self, width: int, height: int) -> None:
        from PIL import Image, ImageDraw

        self.width, self.height = width, height
        self._image = Image.new("RGB", (width, height), GROUND)
        self._draw = ImageDraw.Draw(self._image, "RGB")

    def box(self, left: float, top: float, right: float, bottom: float, *, fill: str, radius: int = 0) -> None:
        """A filled rectangle."""
        self._draw.rounded_rectangle((left, top, right, bottom), radius=radius, fill=fill)

    def frame(self, left: float, top: float, right: float, bottom: float, *, color: str, width: int) -> None:
        """An empty rectangle."""
        self._draw.rectangle((left, top, right, bottom), outline=color, width=width)

    def line(self, points: Sequence[Point], *, color: str, width: int) -> None:
        """A line through two or more points."""
        if len(points) > 1:
            self._draw.line(list(points), fill=color, width=width, joint="curve")

    def area(self, points: Sequence[Point], *, fill: str) -> None:
        """A filled polygon."""
        if len(points) > 2:
            self._draw.polygon(list(points), fill=fill)

    def text(self, place: Point, text: str, *, size: int, color: str = INK, bold: bool = False) -> None:
        """One line of text from its top left."""
        self._draw.text(place, text, font=_font(size, bold), fill=color)

    def text_width(self, text: str, *, size: int, bold: bool = False) -> float:
        """Width of a line of text."""
        return float(_font(size, bold).getlength(text))

    def wrapped(self, text: str, *, size: int, width: float, lines: int, bold: bool = False) -> list[str]:
        """The text in at most `lines` lines of this width; what does not fit ends in an ellipsis."""
        rows: list[str] = []
        rest = " ".join(text.split())
        while rest and len(rows) < lines:
            taken = self._fitting(rest, size, width, bold)
            rows.append(rest[:taken].strip())
            rest = rest[taken:].strip()
        if rest and rows:
            last = rows[-1] + "…"
            while len(last) > 1 and self.text_width(last, size=size, bold=bold) > width:
                last = last[:-2] + "…"
            rows[-1] = last
        return rows

    def _fitting(self, text: str, size: int, width: float, bold: bool) -> int:
        """Characters of the longest beginning that fits, up to the end of a word where there is one."""
        low, high = 1, len(text)
        while low < high:
            middle = (low + high + 1) // 2
            if self.text_width(text[:middle], size=size, bold=bold) <= width:
                low = middle
            else:
                high = middle - 1
        space = text.rfind(" ", 0, low + 1)
        return low if low == len(text) or space <= 0 else space

    def png(self, texts: dict[str, str] | None = None) -> bytes:
        """The picture as PNG, with `texts` in its text chunks."""
        from PIL.PngImagePlugin import PngInfo

        info, out = PngInfo(), io.BytesIO()
        for name, text in (texts or {}).items():
            info.add_itxt(name, text)
        self._image.save(out, "PNG", optimize=True, pnginfo=info)
        return out.getvalue()

    def is_shown_by(self, png: bytes) -> bool:
        """Whether a stranger's PNG shows these pixels and nothing else. Compressed data may differ."""
        from PIL import Image

        chunks = list(_png_chunks(png))
        if not _DRAWN_CHUNKS.issuperset(kind for kind, _ in chunks) or _size_of(chunks) != self._image.size:
            return False
        try:
            with Image.open(io.BytesIO(png), formats=("PNG",)) as image:
                return image.mode == self._image.mode and image.tobytes() == self._image.tobytes()
        except _LIBRARY_ERRORS:
            return False

    def pdf(self, *, title: str, subject: str, keywords: str, dpi: float, at_s: float) -> bytes:
        """The picture as a PDF of one page, with these properties, made at a Unix time: the same from every call."""
        out, at = io.BytesIO(), time.gmtime(at_s)
        self._image.save(
            out, "PDF", resolution=dpi, title=title, subject=subject, keywords=keywords, producer="p2prl",
            creationDate=at, modDate=at,
        )  # fmt: skip
        return out.getvalue()


_LIBRARY_ERRORS = (OSError, SyntaxError, ValueError)
"""What the library raises for bytes that are no picture."""

_MOST_PIXELS = 1 << 24
"""Of a stranger's PNG that is opened: eight certificates. The library warns of larger ones, and then raises."""


def png_text(data: bytes, name: str) -> str | None:
    """A text chunk of a PNG; None without it, or for anything else."""
    from PIL import Image

    width, height = _size_of(_png_chunks(data))
    if not 0 < width * height <= _MOST_PIXELS:
        return None
    try:
        with Image.open(io.BytesIO(data), formats=("PNG",)) as image:
            value = image.info.get(name)
    except _LIBRARY_ERRORS:
        return None
    return value if isinstance(value, str) else None


def _png_chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """(kind, content) of each whole chunk of a PNG, up to its end; none of anything else."""
    place = len(_PNG)
    while data.startswith(_PNG) and place + 12 <= len(data):
        size, kind = struct.unpack_from(">I4s", data, place)
        yield kind, data[place + 8 : place + 8 + size]
        place += 12 + size


def _size_of(chunks: Iterable[tuple[bytes, bytes]]) -> tuple[int, int]:
    """Width and height that the first chunk tells; zeros when it tells none."""
    kind, content = next(iter(chunks), (b"", b""))
    return struct.unpack_from(">II", content) if kind == b"IHDR" and len(content) >= 8 else (0, 0)


@lru_cache(maxsize=32)
def _font(size: int, bold: bool) -> FreeTypeFont:
    """DejaVu Sans, which has Latin, Greek and Cyrillic and comes with matplotlib; else the library's own font."""
    from PIL import ImageFont

    found = importlib.util.find_spec("matplotlib")
    if found is not None and found.origin is not None:
        name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
        path = Path(found.origin).parent / "mpl-data" / "fonts" / "ttf" / name
        if path.exists():
            # The other layout engine draws differently where fribidi is installed, and certificates are compared.
            return ImageFont.truetype(str(path), size, layout_engine=ImageFont.Layout.BASIC)
    default = ImageFont.load_default(size)
    assert isinstance(default, ImageFont.FreeTypeFont), "a wheel of Pillow has FreeType"
    return default
