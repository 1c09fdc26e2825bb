"""Replay of one of this machine's own groups with the product's own judge, from the files that its workers keep.

It asks nobody: the group comes from the spool, the run's files and the policy version from the blobs of a worker
folder or a run folder. It is the check of a validator, on this machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from p2prl.client.refusal_judgement import Replayed
from p2prl.client.refused_work import ReplayRefused
from p2prl.config.own_runs import OwnRun, read_run
from p2prl.errors import IntegrityError, MachineError, P2PRLError, RemoteProtocolError
from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import body_of, envelope_digest, open_envelope
from p2prl.protocol.kinds import Role
from p2prl.protocol.ledger_messages import ReceiptState, Verdict
from p2prl.protocol.manifests import PolicyManifest
from p2prl.protocol.rejection_reasons import RejectionReason
from p2prl.protocol.run_blobs import blobs_for
from p2prl.protocol.signed_group import SignedGroup, read_group

if TYPE_CHECKING:
    from p2prl.models.groups.group_work import ReplayTools

MakeTools = Callable[[OwnRun, dict[str, Path]], "ReplayTools"]
"""Makes the replay tools of a run from its files."""

_NOT_ABOUT_TOKENS = frozenset(
    {
        RejectionReason.TOO_STALE,
        RejectionReason.DUPLICATE_SLOT,
        RejectionReason.WITHHELD_SLOTS,
        RejectionReason.EXCLUDED,
        RejectionReason.ENGINE_MISMATCH,
        "",
    }
)
"""Reasons that a replay of the group on this machine can neither confirm nor refute."""


@dataclass(frozen=True, slots=True)
class HeldPolicy:
    """A policy version whose weights are on this machine."""

    manifest: PolicyManifest
    weights: Path
    """For `read_weights`."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """Whether a replay and the learner's receipt say the same."""

    code: str
    """`agrees`, `disagrees`, `undecided`, or `no_receipt`."""
    sentence: str


def read_own_group(raw: bytes, body: bytes) -> SignedGroup:
    """A group from the spool. Raises `MachineError` when its bytes have changed on the disk."""
    try:
        return read_group(raw, body)
    except RemoteProtocolError as error:
        raise MachineError(
            f"the group's bytes on this disk are damaged: {error}",
            remedy="Check the disk. A group that was delivered before is safe at the learner.",
        ) from error


def find_policy(folders: Iterable[Path], run: OwnRun, policy: bytes, version: int) -> HeldPolicy:
    """The policy with this manifest digest, from blob folders of the run.

    Raises `MachineError` when none of them holds it any more.
    """
    from p2prl.net.storage.held_weights import has_weights  # it loads numpy

    newest = -1
    for folder in folders:
        for path in sorted(folder.glob("*.policy")):
            held = _read_policy(path, run)
            if held is None:
                continue
            name, manifest = held
            newest = max(newest, manifest.version)
            if name == policy and has_weights(path.with_suffix("")):
                return HeldPolicy(manifest, path.with_suffix(""))
    holds = f"; the newest here is version {newest}" if newest >= 0 else ""
    raise MachineError(
        f"version {version} of the policy is not on this machine any more, so the group cannot be replayed{holds}",
        remedy="Replay a newer group, or run p2prl validate LINK beside the volunteer: it keeps 64 versions.",
    )


def files_of(run: OwnRun, folders: Iterable[Path]) -> dict[str, Path]:
    """The run's files and prompts by name. Raises `MachineError` when one is missing."""
    places = list(folders)
    found = {}
    for file in blobs_for(run.manifest, Role.VOLUNTEER):
        name = file.blob.root.hex()
        path = next((folder / name for folder in places if (folder / name).is_file()), None)
        if path is None:
            raise MachineError(
                f"the run's file {file.name} is not on this machine",
                remedy="Start p2prl join LINK once more: it downloads the run's files again.",
            )
        found[file.name] = path
    return found


def replay_group(run: OwnRun, group: SignedGroup, folders: Iterable[Path], make_tools: MakeTools) -> Verdict:
    """The verdict of a validator on this machine about a group.

    Raises `MachineError` when the policy version or a file is gone, and `IntegrityError` when one is damaged.
    """
    from p2prl.models.weights.layout import weights_digest
    from p2prl.net.storage.held_weights import read_weights
    from p2prl.validator.verdicts import judge

    places = list(folders)
    policy = find_policy(places, run, group.group.policy, group.group.version)
    tools = make_tools(run, files_of(run, places))
    try:
        weights = read_weights(policy.weights)
        if weights_digest(weights) != policy.manifest.weights_digest:
            raise IntegrityError(
                f"the weights of version {policy.manifest.version} are damaged on this disk",
                remedy="Delete the worker's blobs/ folder while no worker runs, and start p2prl join LINK again.",
            )
        tools.scorer.load_weights(weights)
        ((verdict, _),) = judge(tools, policy.manifest, [group], validator=group.author)
    finally:
        tools.work.close()
    return verdict


def refused_group_replay(directory: Path, make_tools: MakeTools) -> ReplayRefused:
    """Replays groups that the learner refused, for a volunteer that works in this folder of its run."""
    found = {"disagrees": Replayed.RIGHT, "agrees": Replayed.WRONG}

    def replay(raw: bytes, body: bytes, reason: str) -> Replayed:
        from p2prl.models.hardware.failures import is_out_of_memory, release_memory

        try:
            run = read_run(directory)
            verdict = replay_group(run, read_own_group(raw, body), [run.blobs], make_tools)
        except P2PRLError:
            return Replayed.IMPOSSIBLE
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            return Replayed.IMPOSSIBLE
        finally:
            release_memory()
        return found.get(agreement(verdict, ReceiptState.REJECTED, reason).code, Replayed.UNDECIDED)

    return replay


def agreement(verdict: Verdict, state: int | None, reason: str) -> Agreement:
    """Compare a replay on this machine with the learner's receipt; `state` is None without one."""
    here = "right" if verdict.passed else "not what the slot's seeds give"
    if state is None:
        return Agreement("no_receipt", f"The tokens are {here}; the learner's receipt has not arrived here.")
    credited = state in (ReceiptState.VERIFIED, ReceiptState.CREDITED_BY_SAMPLING)
    if credited and verdict.passed:
        return Agreement("agrees", "The learner's receipt agrees: both found every token right.")
    if credited:
        return Agreement(
            "disagrees",
            "The learner credited the group, and this machine finds it wrong: the engine that replayed it here "
            "computes other numbers than the learner's.",
        )
    if not verdict.passed and verdict.reason == reason:
        return Agreement("agrees", "The learner's receipt agrees: both rejected it for the same reason.")
    if reason in _NOT_ABOUT_TOKENS:
        return Agreement("undecided", f"The tokens are {here}; the learner's reason is not about them.")
    if not verdict.passed:
        return Agreement("agrees", "Both rejected it, for different reasons: the learner stops at the first it meets.")
    return Agreement(
        "disagrees",
        "This machine finds the group right, and the learner rejected it. Show this output to the run's operator.",
    )


def _read_policy(path: Path, run: OwnRun) -> tuple[Digest, PolicyManifest] | None:
    """The manifest in a file and its name, if the run's learner signed it for this run."""
    try:
        raw = path.read_bytes()
        opened = open_envelope(raw, now=None)
        manifest = body_of(opened, PolicyManifest)
    except (OSError, RemoteProtocolError):
        return None
    ours = opened.run == run.run and opened.author == run.manifest.learner
    return (envelope_digest(raw), manifest) if ours and path.stem == manifest.weights.root.hex() else None
