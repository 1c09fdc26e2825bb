"""Show how to update this program, and ask its source for something newer when told to."""

from __future__ import annotations

import sys

from packaging.version import InvalidVersion, Version

from p2prl import __version__
from p2prl.cli.commands.clone_remote import has_moved_on
from p2prl.cli.commands.package_index import newest_release
from p2prl.cli.views.console import emit, say
from p2prl.installation import DISTRIBUTION, Installation, this_installation
from p2prl.protocol import wire_version


def show_update(*, check: bool, as_json: bool) -> None:
    """Print it. Says first who is asked."""
    installed = this_installation()
    newest: str | None = None
    newer: bool | None = None
    if check:
        newest, newer = _ask(installed)
    if as_json:
        emit(
            {
                "version": __version__,
                "wire_version": wire_version.WIRE_VERSION,
                "source": "clone" if installed.clone is not None else "index",
                "checked": check,
                "newest": newest,
                "newer": newer,
                "command": installed.update_command,
            }
        )
        return
    verdict = f": {_verdict(newest, newer)}" if check else ""
    sys.stdout.write(f"p2prl {__version__}, wire version {wire_version.WIRE_VERSION}{verdict}\n")
    if newer is not False:
        sys.stdout.write(f"To update: {installed.update_command}\n")
    if not check:
        sys.stdout.write("p2prl update --check asks whether there is something newer.\n")


def _ask(installed: Installation) -> tuple[str | None, bool | None]:
    """The newest release, where there are releases, and whether it is newer; None where nothing is known of one."""
    if installed.clone is not None:
        say("Asking the remote of your clone …")
        return None, has_moved_on(installed.clone)
    say("Asking the package index that pip uses …")
    newest = newest_release(DISTRIBUTION)
    return newest, None if newest is None else _is_newer(newest)


def _is_newer(newest: str) -> bool:
    try:
        return Version(newest) > Version(__version__)
    except InvalidVersion:
        return False


def _verdict(newest: str | None, newer: bool | None) -> str:
    if newer is None:
        return "the package index has no release for this machine"
    if newer:
        return f"{newest} is out" if newest else "your clone's branch has moved on"
    return "nothing newer is out"
