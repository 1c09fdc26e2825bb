"""Introduction of a run for the machine's owner: cost, data that leaves the machine, identity used."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from p2prl.config.owner_files import load_delegation, load_memberships
from p2prl.config.requirements import Requirements
from p2prl.config.worker_folder import platform_home
from p2prl.protocol.identity import Identity
from p2prl.protocol.manifests import RunManifest
from p2prl.protocol.reward_text import reward_model_of
from p2prl.protocol.run_blobs import is_third_party
from p2prl.quantity_text import size_text
from p2prl.scoreboard.display_names import display_name
from p2prl.tasks.wasm.runtime import FUEL, MEMORY_BYTES

if TYPE_CHECKING:
    from p2prl.models.engines.engine_names import ChosenEngine


def volunteer_introduction(
    manifest: RunManifest,
    needs: Requirements,
    disk_bytes: int,
    identity: Identity,
    folder: Path,
    device: str,
    engine: ChosenEngine,
    limits: Mapping[str, str],
) -> list[str]:
    """Lines for the owner of a machine about to volunteer. `disk_bytes` is the most disk that the run may use, `folder`
    the worker folder, `limits` what the owner has set."""
    return [
        *_run_lines(manifest, needs, disk_bytes),
        f"  You do    sample answers on {device}. {_sent_code(manifest)}",
        *_environment_lines(manifest),
        f"  Engine    {engine.name}, {engine.reason}",
        "  Sent      generated tokens, log-probs, timing, signed. No host name, no files.",
        _limits_line(limits, folder, on_card=device != "cpu"),
        *_identity_lines(identity, folder),
        "  Credit    for verified groups; your rank: p2prl board and the same link",
    ]


def validator_introduction(
    manifest: RunManifest,
    needs: Requirements,
    disk_bytes: int,
    identity: Identity,
    folder: Path,
    device: str,
    rate: float,
    *,
    run_scorer: bool = False,
) -> list[str]:
    """Lines for the owner of a machine about to validate. `run_scorer` as in `p2prl validate`."""
    return [
        *_run_lines(manifest, needs, disk_bytes),
        f"  You do    replay {rate:.0%} of the volunteers' groups on {device} to check that their policy sampled them.",
        *_environment_lines(manifest),
        *_scorer_lines(manifest, run_scorer=run_scorer),
        "  Sent      signed verdicts: which group, whose, passed or failed and by how much. No host name, no files.",
        *_identity_lines(identity, folder),
    ]


def seeder_introduction(manifest: RunManifest, needs: Requirements, disk_bytes: int) -> list[str]:
    """Lines for the owner of a machine about to seed. `disk_bytes` as in `volunteer_introduction`."""
    return [
        *_run_lines(manifest, needs, disk_bytes),
        "  You do    upload the run's weights and data to its volunteers. Nobody sends code that runs on your machine.",
    ]


def _run_lines(manifest: RunManifest, needs: Requirements, disk_bytes: int) -> list[str]:
    tasks = ", ".join(share.task for share in manifest.tasks)
    model, size = manifest.base_model, f"{manifest.parameters:,} parameters"
    return [
        f"run {manifest.name} (manifest verified)",
        f"  Goal      {manifest.goal}",
        f"  Model     {model if size in model else f'{model}, {size}'}; task {tasks}",
        f"  License   {manifest.licence}, of the trained weights",
        f"  Content   {manifest.content_policy}",
        f"  Download  {size_text(needs.download_bytes)} now, up to {size_text(needs.weights_bytes)} a newer policy",
        *([f"  Data      {size_text(needs.data_bytes)} of the download are rows of data"] if needs.data_bytes else []),
        f"  Disk      {size_text(disk_bytes)} at most, everything together; writes at most {_writes(needs)}",
        f"  Memory    about {size_text(needs.memory_bytes)}, estimated, all processes together",
    ]


def _sent_code(manifest: RunManifest) -> str:
    return "No other code comes to your machine." if manifest.modules else "Nobody sends code to your machine."


def _environment_lines(manifest: RunManifest) -> list[str]:
    """What modules the run brings, and what they can do."""
    if not manifest.modules:
        return []
    names = ", ".join(f"{task} ({size_text(file.blob.size_bytes)})" for task, file in sorted(manifest.modules.items()))
    return [
        f"  Programs  {names}: WebAssembly that the run brings and this machine interprets. It has no files,",
        f"            network or clock, {size_text(MEMORY_BYTES)} of memory, and {FUEL:,} instructions for an answer.",
    ]


def _scorer_lines(manifest: RunManifest, *, run_scorer: bool) -> list[str]:
    """What code of others a validator runs, and which rewards it cannot check."""
    if reward_model_of(manifest.reward):
        return [
            f"            {_sent_code(manifest)}",
            "  Rewards   come from a reward model that the learner alone has: you check tokens, and not rewards.",
        ]
    third_party = ", ".join(data.task for data in manifest.data_sets if is_third_party(data))
    if not third_party:
        return [f"            {_sent_code(manifest)}"]
    if run_scorer:
        return [f"  Scorer    third-party code scores {third_party}: it runs here, in a sandbox, as --run-scorer asks"]
    return [
        f"            {_sent_code(manifest)}",
        f"  Scorer    third-party code scores {third_party}: it does not run here, so those rewards are not checked.",
        "            --run-scorer checks them too, in a sandbox.",
    ]


def _identity_lines(identity: Identity, folder: Path) -> list[str]:
    delegation = load_delegation(folder, identity.public_key)
    owner = [] if delegation is None else [f"  Owner     {display_name(delegation.owner)}: work counts for that row"]
    row = identity.public_key if delegation is None else delegation.owner
    membership = load_memberships(folder.parent).get(row)
    named = None if membership is None else membership.team
    team = [] if named is None else [f"  Team      {named.name}: work counts for it too"]
    return [
        f"  You are   {display_name(identity.public_key)} on the board ({identity.peer_id[-8:]})",
        *owner,
        *team,
        f"  Your key  back it up on paper: {_backup_command(folder)}",
    ]


def _limits_line(limits: Mapping[str, str], folder: Path, *, on_card: bool) -> str:
    """What the owner has set; where that is nothing, what is worth it on a machine that somebody uses."""
    if limits:
        return f"  Limits    {', '.join(f'{name}={text}' for name, text in limits.items())}"
    worth = "yield=games battery=never" + " gpu.temp=75C" * on_card
    return f"  Limits    none; if you use this machine too: p2prl limits {worth}{_home_option(folder)}"


def _backup_command(folder: Path) -> str:
    """The command that prints this key's words."""
    return f"p2prl key backup --seat {folder.name}{_home_option(folder)}"


def _home_option(folder: Path) -> str:
    """What a command needs to find this folder from any shell, whatever `P2PRL_HOME` is set to there."""
    home = folder.absolute().parent
    return "" if home == platform_home().absolute() else f" --home {shlex.quote(str(home))}"


def _writes(needs: Requirements) -> str:
    """What policies cost a disk in writes, whatever the run's learner does."""
    first, newer = needs.most_written(1), needs.most_written(2) - needs.most_written(1)
    return f"{size_text(first)} for the first policy, {size_text(newer)} for a newer one"
