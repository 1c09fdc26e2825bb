"""`p2prl join --any`: a worker for the listed run that needs this machine most, and for the next one after it.

This process reads listings and starts `p2prl join LINK` for one run after another, each confined as ever. It never
imports torch. The groups of a run that it leaves stay in that run's folder, and are delivered when it comes back.
"""

from __future__ import annotations

import asyncio
import json
import random
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from p2prl.cli.commands.owner_controls import PlannedLimits
from p2prl.cli.commands.runs import machine_of, wishes_of
from p2prl.cli.commands.status import ANY_FILE
from p2prl.cli.views.console import emit, say
from p2prl.client.evidence import evidence_path, read_evidence
from p2prl.client.own_groups import OwnGroups
from p2prl.client.refusal_judgement import Replayed
from p2prl.config.run_lists import change_list, load_lists, owner_id
from p2prl.config.worker_folder import make_home, read_status, write_status
from p2prl.confinement.linux import die_with_parent
from p2prl.errors import ConfigError, MachineError, TransportError, UnreachableError
from p2prl.exit_codes import INTERRUPTED, UNREACHABLE, WORK_REFUSED
from p2prl.index.rotation import OWNERS_END, Rotation, Seen
from p2prl.index.run_choice import Machine, Offer, Wishes, dialed_link
from p2prl.index.run_finder import Listed, RunFinder
from p2prl.net.process.dial_resolution import resolved
from p2prl.plain_text import counted
from p2prl.protocol.envelope import envelope_digest
from p2prl.protocol.join_link import parse_link
from p2prl.protocol.listing import OpenedListing, run_id
from p2prl.swarm.peers.dial_rules import DialRules

POLL_S = 20.0
"""Time between two looks at the indexes, give or take a fifth: a run that ends is left within a minute."""

_LEAST_WAIT_S = 2.0
"""Between two looks in any case."""

_TICK_S = 0.5
_FINISH_S = (20.0, 10.0, 10.0)
"""Time that a worker gets after each Ctrl-C when its run is left: to complete its groups, to stop, to end."""

_MOST_CHANGES = 50
"""Changes of runs that the status remembers."""


@dataclass(frozen=True, kw_only=True)
class AnyRequest:
    """What `--any` was asked for."""

    home: Path
    urls: tuple[str, ...]
    limits: PlannedLimits
    arguments: Sequence[str]
    """Options of the start, for each worker."""
    prefer: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    first_link: str = ""
    """A run to begin with."""
    events: bool = False
    as_json: bool = False


@dataclass
class AnyRun:
    """The loop. It has many parts because it stands between indexes, workers, the owner and the disk."""

    request: AnyRequest
    rotation: Rotation = field(default_factory=lambda: Rotation(random.SystemRandom().random))
    process: subprocess.Popen[str] | None = None
    interrupts: int = 0
    changes: list[dict[str, object]] = field(default_factory=list)
    served: list[dict[str, object]] = field(default_factory=list)
    _offers: list[Offer] | None = None
    _wishes: Wishes = field(default_factory=Wishes)
    _machine: Machine = field(default_factory=Machine)
    _look_at: float = 0.0
    _told: str = ""
    _groups_before: int = 0
    _written: str = ""

    def run(self) -> int:
        """Serve until the owner ends it. Returns the exit code."""
        for each in self.request.only:
            owner_id(each)
        make_home(self.request.home)
        finder = RunFinder(self.request.urls)
        previous = {each: signal.signal(each, self._on_signal) for each in (signal.SIGINT, signal.SIGTERM)}
        try:
            if self.request.first_link:
                link = parse_link(self.request.first_link)
                self.rotation.begin(run_id(link.run), link.name, time.time())
                self._change(f"Serving {link.name} first, as you asked.")
                self._start(self.request.first_link)
            return self._loop(finder)
        finally:
            self._end_worker()
            for number, handler in previous.items():
                signal.signal(number, handler)
            self._write(state="stopped")
            if self.request.as_json:
                emit({"runs": self.served, "changes": self.changes})

    def _loop(self, finder: RunFinder) -> int:
        while True:
            code = None if self.process is None else self.process.poll()
            if code is not None and (ended := self._on_end(code)) is not None:
                return ended
            if self.interrupts and self.process is None:
                return INTERRUPTED
            if not self.interrupts and (time.monotonic() >= self._look_at or code is not None):
                self._look(finder)
                self._decide()
            self._write()
            self._wait()

    def _wait(self) -> None:
        if self.process is None:
            time.sleep(_TICK_S)
            return
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(_TICK_S)

    # --- indexes -----------------------------------------------------------------------------------------------------

    def _look(self, finder: RunFinder) -> None:
        self._look_at = time.monotonic() + POLL_S * random.uniform(0.8, 1.2)  # noqa: S311 - spreads requests
        request, now = self.request, time.time()
        try:
            listed: Listed | None = finder.look(now=now)
        except UnreachableError as error:
            listed = None
            self._tell(f"No index answers: {error}")
        self._wishes = wishes_of(load_lists(request.home), request.prefer, request.only)
        if listed is None:
            self._offers = None
            return
        self._machine = machine_of(request.home, request.limits, request.urls)
        self._offers = self.rotation.offers(listed.listings, self._machine, self._wishes, listed.faults, now)

    def _decide(self) -> None:
        now = time.time()
        waiting = waiting_groups(self.request.home)
        if self.rotation.serving is None:
            self._take(waiting, now, "")
            return
        serving = self.rotation.serving
        why = self.rotation.leaves(self._offers, self._wishes, self._seen(waiting), frozenset(waiting), now)
        if (soon := self.rotation.look_again_in(now)) is not None and self._offers is not None:
            self._look_at = min(self._look_at, time.monotonic() + max(_LEAST_WAIT_S, soon))
        if why:
            self._change(f"{serving.name} {why}.", run=serving.run)
            self._end_worker()
            self._note_served(serving.run, serving.name, why)
            self.rotation.left()
            self._take(waiting_groups(self.request.home), time.time(), serving.run)

    def _take(self, waiting: dict[str, int], now: float, left: str) -> None:
        offers = [offer for offer in self._offers or () if offer.run != left]
        chosen = self.rotation.next(offers, self._wishes, frozenset(waiting), now)
        if chosen is None:
            if self._offers is not None:
                reasons = "; ".join(f"{each.opened.listing.name}: {each.left_out}" for each in offers[:8])
                detail = f" ({reasons})" if reasons else ""
                self._tell(f"No listed run can use this machine now{detail}. Looking again.")
            return
        listing = chosen.opened.listing
        need = "no forecast yet" if listing.missing is None else f"misses {max(0, listing.missing):,}"
        text = f"Going on to {listing.name} ({counted(listing.volunteers, 'volunteer')}, {need})"
        serving = self.rotation.serving
        if serving is not None and serving.delivers_only:
            text += f", to deliver {counted(waiting[chosen.run], 'group')} that it has not received"
        self._change(f"{text}.", run=chosen.run)
        if link := listed_link(chosen.opened, self._machine):
            self._start(link)
            return
        self.rotation.ended(UNREACHABLE, excluded=False, now=time.time())
        self._change(f"{listing.name} could not be reached: its join link leads to no public address.", run=chosen.run)

    # --- the worker --------------------------------------------------------------------------------------------------

    def _start(self, link: str) -> None:
        request = self.request
        captured = request.events or request.as_json
        output = ["--events", "--json"] if captured else []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "p2prl", "join", link, *request.arguments, *output],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if captured else None,
            text=True,
            errors="replace",
            process_group=0,  # Ctrl-C reaches this process alone, which passes each one on once
            preexec_fn=die_with_parent if sys.platform == "linux" else None,
        )
        self._groups_before = sum(self._status().get("groups", {}).values())
        if captured:
            threading.Thread(target=_forward, args=(self.process, request.events), daemon=True).start()

    def _on_end(self, code: int) -> int | None:
        """The worker has ended: the exit code of this command, or None to go on."""
        serving = self.rotation.serving
        assert serving is not None
        status = self._status()
        self.process = None
        self._note_served(serving.run, serving.name, f"exit code {code}")
        if code in OWNERS_END or self.interrupts:
            return INTERRUPTED if self.interrupts else code
        excluded = bool(status.get("reasons", {}).get("excluded"))
        evidence, found_right = "", False
        if code == WORK_REFUSED and (spool := self._spool(serving.run)) is not None:
            path = evidence_path(spool)
            evidence = f" The signed proof: p2prl receipts evidence {shlex.quote(str(path))}"
            with suppress(ConfigError):
                found_right = any(refusal.replay == Replayed.RIGHT.value for refusal in read_evidence(path).refusals)
        ending = self.rotation.ended(code, excluded=excluded, found_right=found_right, now=time.time())
        if ending.blocks:
            change_list(self.request.home, "blocked", serving.run, why=f"{serving.name} {ending.why}")
        self._change(f"{serving.name} {ending.why}.{evidence}", run=serving.run)
        if self.rotation.is_hopeless:
            say("Three runs in a row could not use this machine: p2prl doctor says more.")
            return code
        return None

    def _end_worker(self) -> None:
        """End the worker as its owner would: its groups are completed or dropped, and what is finished is kept."""
        if self.process is None:
            return
        for seconds in _FINISH_S:
            if self.process.poll() is not None:
                break
            self.process.send_signal(signal.SIGTERM)  # as Ctrl-C, and silent while it starts
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(seconds)
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.process = None

    def _on_signal(self, number: int, frame: object) -> None:
        del number, frame
        self.interrupts += 1
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)  # as Ctrl-C, and silent while it starts
        elif self.interrupts > 1:
            raise KeyboardInterrupt

    # --- what is seen and said ---------------------------------------------------------------------------------------

    def _seen(self, waiting: dict[str, int]) -> Seen:
        status, serving = self._status(), self.rotation.serving
        assert serving is not None
        groups = sum(status.get("groups", {}).values()) - self._groups_before
        is_ours = self.process is not None and status.get("pid") == self.process.pid
        in_reach = bool(status.get("peers", {}).get("learner") or status.get("hears_learner") or status.get("resting"))
        return Seen(groups=groups if is_ours else 0, waiting=waiting.get(serving.run, 0), in_reach=in_reach)

    def _status(self) -> dict[str, Any]:
        """The newest state of a worker of the run that is served."""
        serving = self.rotation.serving
        if serving is None:
            return {}
        found = [read_status(path) for path in self.request.home.glob(f"seat-*/{folder_of(serving.run)}/status.json")]
        mine = [each for each in found if self.process is not None and each.get("pid") == self.process.pid]
        return (mine or sorted(found, key=lambda each: float(each.get("time", 0.0))) or [{}])[-1]

    def _spool(self, run: str) -> Path | None:
        return next(iter(sorted(self.request.home.glob(f"seat-*/{folder_of(run)}/spool.db"))), None)

    def _note_served(self, run: str, name: str, end: str) -> None:
        self.served.append({"run": run, "name": name, "ended": end})

    def _tell(self, text: str) -> None:
        if text != self._told:
            self._told = text
            say(text)

    def _change(self, text: str, run: str = "") -> None:
        self._told = ""
        say(text)
        self.changes.append({"time": time.time(), "text": text, "run": run})
        del self.changes[:-_MOST_CHANGES]

    def _write(self, state: str = "") -> None:
        serving = self.rotation.serving
        name = "" if serving is None else serving.name
        document = {
            "state": state or (f"serving {name}" if serving is not None else "looking for a run"),
            "run": "" if serving is None else serving.run,
            "name": name,
            "changes": self.changes,
        }
        if json.dumps(document) != self._written:
            self._written = json.dumps(document)
            write_status(self.request.home / ANY_FILE, {**document, "time": time.time()})


def listed_link(opened: OpenedListing, machine: Machine) -> str:
    """The join link of a listed run, as a worker may be given it: with addresses of which a name was looked up here, as
    workers trust the names of their links. Empty where none is left that a stranger may name."""
    link, found = dialed_link(opened, machine), []
    for address in link.bootstrap:
        with suppress(TransportError):
            found.append(asyncio.run(resolved(address, machine.dials or DialRules())))
    return str(replace(link, bootstrap=tuple(found))) if found else ""


def folder_of(run: str) -> str:
    """Name of a run's folder below a worker's."""
    return parse_link(f"p2prl://x@{run}", needs_peer=False).run.hex()[:16]


def waiting_groups(home: Path) -> dict[str, int]:
    """Groups that no learner has confirmed, by run, over the worker folders of volunteers."""
    found: dict[str, int] = {}
    for path in home.glob("seat-*/*/run.manifest"):
        spool = path.with_name("spool.db")
        if not spool.is_file():
            continue
        with suppress(MachineError, OSError):
            groups = OwnGroups(spool)
            try:
                count = sum(number for (state, _), number in groups.counts().items() if state == "generated")
            finally:
                groups.close()
            if count:
                run = run_id(envelope_digest(path.read_bytes()))
                found[run] = found.get(run, 0) + count
    return found


def _forward(process: subprocess.Popen[str], events: bool) -> None:
    """Pass on the worker's events, and drop the document at its end: this command prints one of its own."""
    assert process.stdout is not None
    with process.stdout:
        for line in process.stdout:
            if events and '"event"' in line:
                sys.stdout.write(line)
                sys.stdout.flush()
