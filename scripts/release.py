"""Cut a release: one version in every file that states it, and the changelog's section under its number and date.

make release VERSION=0.2.0         # changes files and prints the commands that are left
make release VERSION=0.3.0.dev0    # begins the next version: the changelog stays as it is
"""

from __future__ import annotations

import datetime
import re
import sys
from pathlib import Path

from packaging.version import InvalidVersion, Version

ROOT = Path(__file__).parents[1]

STATED = ("p2prl/__init__.py", "pyproject.toml", "lab/pyproject.toml", "CITATION.cff")
"""Files that state the version. `packaging/` reads it from the first one."""

CHANGELOG = "CHANGELOG.md"
NOTES = "build/release-notes.md"

_UNRELEASED = "## [Unreleased]\n"
_STATEMENT = re.compile(r"""(?mx)
    ^ (?P<before> (?:__version__\ =\ |version\ =\ |version:\ ) "? | dependencies\ =\ .*"p2prl== ) (?P<version> [\w.]+ )
""")


class ReleaseError(Exception):
    """Nothing was changed; the message says why."""


def stated_versions(root: Path) -> dict[str, set[str]]:
    """The versions in each of the files."""
    return {name: {match["version"] for match in _STATEMENT.finditer((root / name).read_text())} for name in STATED}


def cut(root: Path, text: str, today: datetime.date) -> str:
    """Change the files to a version, and return its notes; empty ones for a version in development.

    `ReleaseError` for a version that is not newer, or that has nothing to say.
    """
    try:
        version = Version(text)
    except InvalidVersion as error:
        raise ReleaseError(f"{text!r} is no version; write it as 0.2.0, or as 0.3.0.dev0 to begin one") from error
    known = set[str]().union(*stated_versions(root).values())
    if len(known) != 1 or str(version) != text:
        raise ReleaseError(f"the files state {', '.join(sorted(known))}, and {text!r} is to follow")
    if version <= Version(*known):
        raise ReleaseError(f"{text} does not follow {known.pop()}")
    changelog = (root / CHANGELOG).read_text()
    notes = "" if version.is_devrelease else unreleased(changelog)
    if notes:
        dated = f"{_UNRELEASED}\n## [{text}] - {today.isoformat()}\n"
        (root / CHANGELOG).write_text(changelog.replace(_UNRELEASED, dated, 1))
    elif not version.is_devrelease:
        raise ReleaseError("the changelog has nothing under [Unreleased]")
    for name in STATED:
        path = root / name
        path.write_text(_STATEMENT.sub(lambda match: match["before"] + text, path.read_text()))
    return notes


def unreleased(changelog: str) -> str:
    """What the changelog says of the version to come."""
    _, _, rest = changelog.partition(_UNRELEASED)
    return re.split(r"(?m)^## \[", rest)[0].strip()


def main(version: str) -> int:
    """Cut the release in this checkout."""
    try:
        notes = cut(ROOT, version, datetime.date.today())
    except ReleaseError as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    print(f"The files state {version}. Look at `git diff`, then:\n\n  make test")
    if not notes:
        print(f'  git commit -am "Begin {version}"')
        return 0
    (ROOT / NOTES).parent.mkdir(exist_ok=True)
    (ROOT / NOTES).write_text(f"p2prl {version}\n\n{notes}\n")
    print(f"""\
  git commit -am "Version {version}"
  git tag --annotate --cleanup=verbatim v{version} --file {NOTES}
  git push --follow-tags
  make wheel WHEEL_ARGS="--try pipx"    # in dist/, with their sources""")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2] or [""]))
