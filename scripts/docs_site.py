"""mkdocs hook: links from a page to source files, which are not part of the site, become plain code.

A link to a file that does not exist fails the build, so links stay valid when files move.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
_LINK = re.compile(r"\[(?P<text>[^\]]+)\]\((?P<target>\.\./[^)#\s]+)(?:#[^)]*)?\)")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Called by mkdocs for each page before it is rendered."""
    folder = (ROOT / "docs" / page.file.src_uri).parent

    def replace(match: re.Match[str]) -> str:
        target = (folder / match["target"]).resolve()
        if target.is_relative_to(ROOT / "docs"):
            return match[0]
        if not target.exists():
            raise ValueError(f"docs/{page.file.src_uri} links to {match['target']}, which does not exist")
        text = match["text"].strip("`")
        return f"`{text}`"

    return _LINK.sub(replace, markdown)
