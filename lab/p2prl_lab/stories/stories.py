"""The ten stories. Each plays on the stage and returns the screens a person saw."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import psutil

from p2prl.net.storage.key_file import create_identity
from p2prl.protocol.digests import digest
from p2prl.protocol.identity import Identity
from p2prl.protocol.join_link import JoinLink
from p2prl_lab.stories.stage import Screen, Stage
from p2prl_lab.testing.swarm_processes import go_on, stop_sending, wait_until

_STARTS_S = 120.0
_JOIN = 'p2prl join "$LINK" --threads 1'
_DISPLAY = ":93"
_SOCKETS = Path("/tmp/.X11-unix")  # noqa: S108  # where X11 servers have theirs
_ASLEEP_S = 75.0
"""Longer than any link lives without a word."""


class UnplayableError(Exception):
    """This machine lacks what a story needs."""


def first_join(stage: Stage) -> list[Screen]:
    """The first join: one command, no question."""
    with stage.terminal() as person:
        person.type(_JOIN)
        starting = person.wait("finding the run", _STARTS_S)
        began = person.wait(_credited, _STARTS_S)
        person.press("C-c")
        ended = person.wait("Stopped.", 60)
    return [
        stage.shown("A second after Enter", starting),
        stage.shown("The first verified group", began),
        stage.shown("Ctrl-C", ended),
    ]


def game_starts(stage: Stage) -> list[Screen]:
    """A game fills the screen, and ends."""
    with _desktop() as display, stage.terminal(display=display) as person:
        person.type("p2prl limits yield=games")
        limited = person.wait(_at_prompt, 30)
        person.clear()
        person.type(_JOIN)
        person.wait(_credited, _STARTS_S)
        game = subprocess.Popen(
            ["xterm", "-class", "Chess", "-fullscreen", "-e", "sleep", "300"], env={**os.environ, "DISPLAY": display}
        )
        try:
            yields = person.wait("RESTING", 30)
        finally:
            game.kill()
            game.wait()
        again = person.wait(lambda screen: "Working again." in screen and "● online" in screen, 120)
    return [
        stage.shown("The owner's one line, once", limited),
        stage.shown("Chess fills the screen", yields),
        stage.shown("The game has ended", again),
    ]


def laptop_closes(stage: Stage) -> list[Screen]:
    """The laptop sleeps for longer than any link lives, and wakes."""
    with stage.terminal() as person:
        person.type(_JOIN)
        person.wait(_credited, _STARTS_S)
        processes = [process for process in stage.swarm.survivors() if _is_under(process, stage.folder / "ada")]
        before = person.screen()
        stop_sending(processes)
        time.sleep(_ASLEEP_S)
        go_on(processes)
        woken = person.wait(lambda screen: screen != before, 30)
        verified = _verified(woken)
        well = person.wait(lambda screen: _verified(screen) > verified and "learner" in screen, 120)
    return [stage.shown("The lid opens", woken), stage.shown("Groups are verified again", well)]


def disk_fills(stage: Stage) -> list[Screen]:
    """Another program fills the disk, and the owner makes room again."""
    with _small_disk(stage.folder / "ada" / "p2prl", megabytes=80) as disk, stage.terminal() as person:
        person.type(_JOIN)
        person.wait(_credited, _STARTS_S)
        filler = disk / "film.mkv"
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(1 << 16))
        full = person.wait(_at_prompt, 120)
        person.type("echo exit code $?")
        full = person.wait(lambda screen: re.search(r"^exit code \d", screen, re.MULTILINE), 20)
        filler.unlink()
        person.clear()
        person.type(_JOIN)
        again = person.wait(_credited, _STARTS_S)
    return [stage.shown("The disk is full", full), stage.shown("After there is room: the same command", again)]


def learner_leaves(stage: Stage) -> list[Screen]:
    """The learner's machine loses power, and comes back."""
    with stage.terminal() as person:
        person.type(_JOIN)
        person.wait(_credited, _STARTS_S)
        stage.kill_learner()
        away = person.wait(lambda screen: "no learner" in screen, 120)
        stage.start_learner()
        verified = _verified(away)
        back = person.wait(lambda screen: _verified(screen) > verified, 180)
    return [stage.shown("The learner has gone", away), stage.shown("It is back", back)]


def second_machine(stage: Stage) -> list[Screen]:
    """A second machine of the same person."""
    with stage.terminal() as desk, stage.terminal("attic") as attic:
        desk.type("p2prl key owner")
        owner = desk.wait("key backup", 30)
        attic.type("p2prl key delegate")
        asked = attic.wait(_at_prompt, 30)
        found = re.search(r"^12D3KooW\w+$", attic.wait(_at_prompt, 30), re.MULTILINE)
        assert found is not None
        desk.clear()
        desk.type(f"p2prl key delegate {found[0]} --name attic")
        signed = desk.wait("p2prl-delegation:", 30)
        line = "".join(re.findall(r"p2prl-delegation:[\w-]+(?:\n[\w-]+)*", signed)[-1].split())
        attic.clear()
        attic.type(f"p2prl key delegate {line}")
        installed = attic.wait("until", 30)
    return [
        stage.shown("At the desk: an owner's key", owner),
        stage.shown("In the attic: which machine this is", asked),
        stage.shown("At the desk: the owner signs", signed),
        stage.shown("In the attic: it is installed", installed),
    ]


def driver_breaks(stage: Stage) -> list[Screen]:
    """The graphics driver resets."""
    with stage.terminal() as person:
        person.type('python -m p2prl_lab.testing.failing_card "$LINK" --threads 1 --after-tokens 3000')
        person.wait(_credited, _STARTS_S)
        person.wait(_at_prompt, _STARTS_S)
        person.type("echo exit code $?")
        failed = person.wait(lambda screen: re.search(r"^exit code \d", screen, re.MULTILINE), 20)
    return [stage.shown("The card has failed", failed)]


def wrong_link(stage: Stage) -> list[Screen]:
    """Links that were cut, mistyped, or are of nobody any more."""
    peer = stage.link.rpartition("/p2p/")[2]
    nobody = JoinLink("sums", digest("p2prl/test-run", b"nobody"), (f"/ip4/127.0.0.1/tcp/1/p2p/{peer}",))
    cases = {
        "Half of it was copied": stage.link[: len(stage.link) // 2],
        "A letter too many": stage.link.replace("@", "@a", 1),
        "A letter is wrong": re.sub("@.", "@0", stage.link),
        "A web address": "https://example.org/join",
        "Its peers are gone": str(nobody),
    }
    seen = []
    for moment, text in cases.items():
        with stage.terminal() as person:
            person.type(f"p2prl join '{text}'")
            person.wait("p2prl: ", _STARTS_S)
            seen.append(stage.shown(moment, person.wait(_at_prompt, _STARTS_S)))
    return seen


def update_required(stage: Stage) -> list[Screen]:
    """The run has moved on to a newer version of the program."""
    key, name = Identity(os.urandom(16)), digest("p2prl/test-run", b"newer")
    create_identity(stage.folder / "newer.json", key)
    peer = stage.swarm.start(
        "newer",
        str(stage.folder / "newer.json"),
        name.hex(),
        str(stage.folder / "newer"),
        module="p2prl_lab.testing.newer_peer",
    )
    address = wait_until(lambda: "/p2p/" in peer.log and peer.log.split()[-1], seconds=60, what="a newer peer")
    link = JoinLink("sums", name, (address,))
    with stage.terminal() as person:
        person.type(f"p2prl join '{link}'")
        person.wait("p2prl: ", _STARTS_S)
        return [stage.shown("The run speaks a newer version", person.wait(_at_prompt, 60))]


def run_ends(stage: Stage) -> list[Screen]:
    """The run ends."""
    with stage.terminal() as person:
        person.type(_JOIN)
        person.wait(_credited, _STARTS_S)
        stage.kill_learner()
        stage.start_learner(updates="1")  # fewer than are done: it has nothing left to train
        person.wait("has ended the run", _STARTS_S)
        ended = person.wait(_at_prompt, 60)
        person.clear()
        person.type("p2prl me")
        came_of_it = person.wait(lambda screen: "last 14 days" in screen and _at_prompt(screen), 60)
    return [stage.shown("The learner says goodbye", ended), stage.shown("What this machine has given", came_of_it)]


STORIES: Mapping[str, Callable[[Stage], list[Screen]]] = {
    story.__name__.replace("_", "-"): story
    for story in (
        *(first_join, game_starts, laptop_closes, disk_fills, learner_leaves, second_machine),
        *(driver_breaks, wrong_link, update_required, run_ends),
    )
}
"""In the order of the book; the last one ends the run."""


def _at_prompt(screen: str) -> bool:
    return screen.rstrip().rpartition("\n")[2] == "$"


def _credited(screen: str) -> bool:
    return _verified(screen) > 0


def _verified(screen: str) -> int:
    found = re.search(r"([\d,]+) groups? verified", screen)
    return int(found[1].replace(",", "")) if found else 0


def _is_under(process: psutil.Process, home: Path) -> bool:
    with contextlib.suppress(psutil.Error):
        return process.environ().get("HOME") == str(home)
    return False


@contextlib.contextmanager
def _desktop() -> Iterator[str]:
    """An X11 desktop without a screen."""
    if missing := [name for name in ("Xvfb", "openbox", "xterm") if shutil.which(name) is None]:
        raise UnplayableError(f"{', '.join(missing)} not installed")
    with subprocess.Popen(["Xvfb", _DISPLAY], stderr=subprocess.DEVNULL) as server:
        environment = {**os.environ, "DISPLAY": _DISPLAY}
        wait_until(lambda: _SOCKETS.joinpath(f"X{_DISPLAY[1:]}").exists(), seconds=20, what="a display")
        with subprocess.Popen(["openbox"], env=environment, stderr=subprocess.DEVNULL) as manager:
            try:
                yield _DISPLAY
            finally:
                manager.kill()
                server.kill()


@contextlib.contextmanager
def _small_disk(folder: Path, *, megabytes: int) -> Iterator[Path]:
    """A disk of this size at `folder`."""
    if os.geteuid() != 0 or sys.platform != "linux":
        raise UnplayableError("a small disk needs root on Linux")
    kept = folder.with_name("kept")
    if folder.exists():
        folder.rename(kept)
    folder.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "p2prl-story", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False)
        folder.rmdir()
        if kept.exists():
            kept.rename(folder)
