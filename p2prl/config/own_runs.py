"""Runs that this machine has worked for, as its worker folders hold them: found by join link, run folder or name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from p2prl.client.own_groups import OwnGroup, OwnGroups
from p2prl.errors import ConfigError, MachineError, RemoteProtocolError
from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import body_of, envelope_digest, open_envelope
from p2prl.protocol.join_link import is_link, parse_link
from p2prl.protocol.manifests import RunManifest

_MOST_FOLDERS = 1_024
"""Folders of runs read: a home holds far fewer, and a faulty script must not make a listing endless."""


@dataclass(frozen=True, slots=True)
class OwnRun:
    """A run in one worker folder."""

    directory: Path
    """HOME/seat-1/RUN."""
    manifest: RunManifest
    manifest_raw: bytes

    @property
    def run(self) -> Digest:
        """The run's identity."""
        return envelope_digest(self.manifest_raw)

    @property
    def seat(self) -> str:
        """Name of the worker folder."""
        return self.directory.parent.name

    @property
    def spool(self) -> Path:
        """Its groups; there only if it is a volunteer's."""
        return self.directory / "spool.db"

    @property
    def blobs(self) -> Path:
        """Run files and policy versions."""
        return self.directory / "blobs"


def read_run(directory: Path) -> OwnRun:
    """The run in a folder of a worker. `MachineError` when its manifest is not there, or damaged."""
    path = directory / "run.manifest"
    try:
        raw = path.read_bytes()
        return OwnRun(directory, body_of(open_envelope(raw, now=None), RunManifest), raw)
    except (OSError, RemoteProtocolError) as error:
        raise MachineError(
            f"the run's manifest {path} cannot be read: {error}", remedy="Start p2prl join LINK once more."
        ) from error


def runs_here(home: Path) -> list[OwnRun]:
    """All runs of all worker folders, without those whose manifest is damaged."""
    found = []
    for path in sorted(home.glob("*-*/*/run.manifest"))[:_MOST_FOLDERS]:
        with suppress(MachineError):
            found.append(read_run(path.parent))
    return found


def find_run(home: Path, source: str) -> list[OwnRun]:
    """The worker folders of one run, by a join link, a run folder, or the run's name as `p2prl status` shows it.

    Raises `ConfigError` when there is none, or when the name fits several runs.
    """
    here = runs_here(home)
    if is_link(source):
        wanted: Digest | None = parse_link(source).run
    elif (Path(source) / "run.manifest").is_file():
        wanted = envelope_digest((Path(source) / "run.manifest").read_bytes())
    else:
        wanted = None
    found = [each for each in here if (each.run == wanted if wanted else each.manifest.name == source)]
    if not found:
        raise ConfigError(
            f"no worker under {home} has taken part in {source}",
            remedy="Name a run that p2prl status lists, or the worker's folder with --home.",
        )
    if len({each.run for each in found}) > 1:
        raise ConfigError(
            f"this machine has worked for several runs named {source}", remedy="Give the run's join link instead."
        )
    return found


LEAST_DIGITS = 4
"""Digits of a group's name: fewer fit too many groups to mean one."""


@dataclass(frozen=True, slots=True)
class FoundGroup:
    """A group, and the worker folder that sampled it."""

    run: OwnRun
    groups: OwnGroups
    group: OwnGroup


@contextmanager
def spools_of(runs: list[OwnRun]) -> Iterator[list[tuple[OwnRun, OwnGroups]]]:
    """The spools of a run's volunteers, closed at the end. Raises `ConfigError` when there is none."""
    with ExitStack() as opened:
        spools = []
        for run in runs:
            if run.spool.is_file():
                groups = OwnGroups(run.spool)
                opened.callback(groups.close)
                spools.append((run, groups))
        if not spools:
            raise ConfigError(
                f"no volunteer of this machine has sampled for {runs[0].manifest.name}",
                remedy="Start one with p2prl join LINK; p2prl status shows what has run here.",
            )
        yield spools


def find_group(spools: list[tuple[OwnRun, OwnGroups]], digits: str) -> FoundGroup:
    """The one group whose name begins with these digits. Raises `ConfigError` when none or several do."""
    prefix = digits.strip().lower()
    if len(prefix) < LEAST_DIGITS or not set(prefix) <= set("0123456789abcdef"):
        raise ConfigError(
            f"{digits!r} is not the beginning of a group's name",
            remedy=f"Give at least {LEAST_DIGITS} digits of a name that p2prl receipts list shows.",
        )
    found = [FoundGroup(run, groups, group) for run, groups in spools for group in groups.named(prefix, 2)]
    if len(found) != 1:
        what = "several groups have names" if found else "no group of this machine has a name"
        remedy = "Give more of its digits." if found else "Take a name that p2prl receipts list shows."
        raise ConfigError(f"{what} that begin{'' if found else 's'} with {prefix}", remedy=remedy)
    return found[0]
