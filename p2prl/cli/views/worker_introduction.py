"""Introduction of a run for the machine's owner: cost, data that leaves the machine, identity used."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from p2prl.config.owner_files import load_delegation
from p2prl.config.requirements import Requirements, size_text
from p2prl.config.worker_folder import platform_home
from p2prl.protocol.identity import Identity
from p2prl.protocol.manifests import RunManifest
from p2prl.protocol.run_blobs import is_third_party
from p2prl.scoreboard.display_names import display_name

if TYPE_CHECKING:
    from p2prl.models.engine_registry import ChosenEngine


def volunteer_introduction(
    manifest: RunManifest, needs: Requirements, identity: Identity, folder: Path, device: str, engine: ChosenEngine
) -> list[str]:
    """Lines for the owner of a machine about to volunteer. `folder` is the worker folder."""
    return [
        *_run_lines(manifest, needs),
        f"  You do    sample answers on {device}. Nobody sends code to your machine.",
        f"  Engine    {engine.name}, {engine.reason}",
        "  Sent      generated tokens, their log-probs and timing, signed by the key below. No host name, no files.",
        *_identity_lines(identity, folder),
        "  Credit    for groups that the learner verifies; see your rank with p2prl board and the same link",
    ]


def validator_introduction(
    manifest: RunManifest,
    needs: Requirements,
    identity: Identity,
    folder: Path,
    device: str,
    rate: float,
    *,
    run_scorer: bool = False,
) -> list[str]:
    """Lines for the owner of a machine about to validate. `run_scorer` as in `p2prl validate`."""
    return [
        *_run_lines(manifest, needs),
        f"  You do    replay {rate:.0%} of the volunteers' groups on {device} to check that their policy sampled them.",
        *_scorer_lines(manifest, run_scorer=run_scorer),
        "  Sent      signed verdicts: which group, whose, passed or failed and by how much. No host name, no files.",
        *_identity_lines(identity, folder),
    ]


def _run_lines(manifest: RunManifest, needs: Requirements) -> list[str]:
    tasks = ", ".join(share.task for share in manifest.tasks)
    return [
        f"run {manifest.name} (manifest verified)",
        f"  Goal      {manifest.goal}",
        f"  Model     {manifest.base_model}, {manifest.parameters:,} parameters; task {tasks}",
        f"  License   {manifest.licence}, of the trained weights",
        f"  Content   {manifest.content_policy}",
        f"  Download  {size_text(needs.download_bytes)} now, up to {size_text(needs.weights_bytes)} a newer policy",
        *([f"  Data      {size_text(needs.data_bytes)} of the download are rows of data"] if needs.data_bytes else []),
        f"  Needs     about {size_text(needs.disk_bytes)} of disk and {size_text(needs.memory_bytes)} of memory",
    ]


def _scorer_lines(manifest: RunManifest, *, run_scorer: bool) -> list[str]:
    """What code of others a validator runs."""
    third_party = ", ".join(data.task for data in manifest.data_sets if is_third_party(data))
    if not third_party:
        return ["            Nobody sends code to your machine."]
    if run_scorer:
        return [f"  Scorer    third-party code scores {third_party}: it runs here, in a sandbox, as --run-scorer asks"]
    return [
        "            Nobody sends code to your machine.",
        f"  Scorer    third-party code scores {third_party}: it does not run here, so those rewards are not checked.",
        "            --run-scorer checks them too, in a sandbox.",
    ]


def _identity_lines(identity: Identity, folder: Path) -> list[str]:
    delegation = load_delegation(folder, identity.public_key)
    owner = [] if delegation is None else [f"  Owner     {display_name(delegation.owner)}: work counts for that row"]
    return [
        f"  You are   {display_name(identity.public_key)} on the board, {identity.peer_id}",
        *owner,
        f"  Your key  back it up on paper: {_backup_command(folder)}",
    ]


def _backup_command(folder: Path) -> str:
    """The command that prints this key's words in any shell, whatever `P2PRL_HOME` is set to there."""
    home = folder.absolute().parent
    chosen = "" if home == platform_home().absolute() else f" --home {shlex.quote(str(home))}"
    return f"p2prl key backup --seat {folder.name}{chosen}"
