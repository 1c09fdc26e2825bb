"""`p2prl export`: take a run's model home as a Hugging Face directory, with its card and its ledger."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from p2prl import __version__
from p2prl.cli import crash_log
from p2prl.cli.commands.export_folder import MARKER, check_space, check_target, existing_folder, new_directory
from p2prl.cli.commands.open_ledger import ledger_of_run
from p2prl.cli.options import AsJson, RunFolderPath
from p2prl.cli.views.console import emit, say
from p2prl.cli.views.export_card import LEDGER_FILE, CardFacts, model_card
from p2prl.cli.views.progress_bar import progress_bar
from p2prl.config.prompt_record import read_prompt_record
from p2prl.config.run_folder import Folder, open_folder
from p2prl.disk_full import write_error
from p2prl.errors import ConfigError, IntegrityError, MachineError
from p2prl.learner.training.checkpoints import complete_checkpoints
from p2prl.plain_text import counted
from p2prl.protocol.envelope import body_of, open_envelope
from p2prl.protocol.manifests import DTYPE_BYTES, PolicyManifest
from p2prl.quantity_text import size_text
from p2prl.scoreboard.documents.api_views import require_run, run_document
from p2prl.scoreboard.documents.ranked_leaderboard import leaderboard_document
from p2prl.scoreboard.ledger.journal_reader import JournalReader
from p2prl.scoreboard.ledger.ledger_sources import Snapshot
from p2prl.scoreboard.ledger_dump import write_dump

if TYPE_CHECKING:
    from p2prl.cli.commands.export_push import HubRepository
    from p2prl.config.new_run import RunFolder
    from p2prl.models.export.model_directory import OpenedExport, WrittenModel


def export(
    run: RunFolderPath,
    out: Annotated[Path | None, typer.Option("--out", help="Directory to write. Default: RUN/export/step-N.")] = None,
    step: Annotated[str, typer.Option("--step", help="Checkpoint to export: its step, or newest.")] = "newest",
    dtype: Annotated[
        str, typer.Option("--dtype", help="Type of the exported weights: bfloat16, float32 or float16.")
    ] = "bfloat16",
    max_shard_gb: Annotated[float, typer.Option("--max-shard-gb", min=0.001, help="Largest weight file, GB.")] = 5.0,
    force: Annotated[
        bool, typer.Option("--force", help="Replace an earlier export in --out. Default: refuse.")
    ] = False,
    push: Annotated[
        str | None,
        typer.Option("--push", help="Also upload to this Hugging Face repository, OWNER/NAME. Default: no upload."),
    ] = None,
    private: Annotated[
        bool, typer.Option("--private", help="With --push: a new repository is private. Default: public.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write a checkpoint as a directory that transformers and vLLM load, with a model card."""
    if dtype not in DTYPE_BYTES:
        raise ConfigError(f"--dtype is {dtype!r}", remedy=f"Choose one of {', '.join(DTYPE_BYTES)}.")
    if not math.isfinite(max_shard_gb):
        raise ConfigError(f"--max-shard-gb is {max_shard_gb}", remedy="For example: --max-shard-gb 5")
    if private and push is None:
        raise ConfigError("--private has no meaning without --push", remedy="Remove it, or give --push OWNER/NAME.")
    folder = open_folder(run)
    target = _target(folder, choose_checkpoint(folder.paths.checkpoints, step), out)
    check_target(target, force=force)
    repository = _repository(push, private=private, quiet=as_json)
    crash_log.keep_in(run)
    with progress_bar("exporting", quiet=as_json) as on_progress:
        on_progress("importing torch", 0.0)

        from p2prl.config.new_run import open_run
        from p2prl.models.export.model_directory import write_model

        opened_run = open_run(run)
        on_progress("opening the checkpoint", 0.0)
        done, opened = _open(opened_run, step, dtype, scratch=existing_folder(target))
        target = _target(folder, done, out)
        check_target(target, force=force)
        check_space(target, opened.size_bytes)
        on_progress("verifying the ledger", 0.0)
        with ledger_of_run(run) as ledger, new_directory(target) as new:
            written = write_model(
                opened,
                new,
                shard_bytes=int(max_shard_gb * 1e9),
                on_progress=lambda share: on_progress("writing weights", share),
            )
            snapshot = ledger.snapshot()
            facts = _facts(opened_run, snapshot, opened, written, step=done, source=push or ".")
            (new / "README.md").write_text(model_card(facts), encoding="utf-8")
            (new / MARKER).write_text(json.dumps(_marker(facts), indent=2, sort_keys=True) + "\n")
            if facts.ledger_incident is None:
                write_dump(ledger, new / LEDGER_FILE, snapshot=snapshot)
    document = _document(target, facts, written)
    if not as_json:
        _report(target, facts, written)
    if repository is not None:
        document["pushed"] = repository.upload(target, message=f"{facts.manifest.name}, step {facts.step}")
        say(f"Uploaded to {document['pushed']}")
    if as_json:
        emit(document)


FORMAT = "p2prl/export/v1"
"""First key of `p2prl_export.json`; its number changes when a key's meaning does."""

NEWEST = "newest"

_ATTEMPTS = 3
"""Checkpoints tried when the learner deletes one while it is opened; it writes one in minutes, not in milliseconds."""


def choose_checkpoint(checkpoints: Path, step: str) -> int:
    """The step of the checkpoint to export. `ConfigError` when the run has none of that step."""
    names = (path.name.removeprefix("step-") for path in complete_checkpoints(checkpoints))
    steps = [int(name) for name in names if name.isdecimal()]
    if not steps:
        raise ConfigError(
            f"{checkpoints.parent} has no checkpoint yet", remedy=f"Train it first: p2prl learn {checkpoints.parent}"
        )
    if step == NEWEST:
        return steps[-1]
    if not (step.isdecimal() and step.isascii()) or int(step) not in steps:
        kept = ", ".join(map(str, steps))
        raise ConfigError(f"--step {step} is not a checkpoint", remedy=f"Give newest or one of: {kept}.")
    return int(step)


def _target(folder: Folder, step: int, out: Path | None) -> Path:
    """The directory to write, without a trailing `.` or `..`: it is renamed at the end."""
    return folder.directory / "export" / f"step-{step}" if out is None else Path(os.path.abspath(out.expanduser()))


def _repository(push: str | None, *, private: bool, quiet: bool) -> HubRepository | None:
    if push is None:
        return None
    from p2prl.cli.commands.export_push import HubRepository

    repository = HubRepository(push, private=private, quiet=quiet)
    repository.check_login()
    return repository


def _open(run: RunFolder, step: str, dtype: str, *, scratch: Path) -> tuple[int, OpenedExport]:
    """Open the chosen checkpoint; if a running learner deletes it meanwhile, the one that is newest then.

    What has to be computed for it is kept in `scratch`: the run's own disk may be full, or read-only."""
    from p2prl.config.new_run import run_file_blobs
    from p2prl.models.export.model_directory import open_export

    files = {file.name: data for file, data in run_file_blobs(run)}
    for _ in range(_ATTEMPTS):
        chosen = choose_checkpoint(run.paths.checkpoints, step)
        policy = _policy_at(run, chosen)
        try:
            return chosen, open_export(
                run.paths.checkpoint(chosen),
                first=run.directory / "model",
                run_files=files,
                manifest=run.manifest,
                policy=policy,
                blobs=run.paths.blobs,
                dtype=dtype,
                chained=None if policy is None or dtype != run.manifest.dtype else _chained(run, policy, scratch),
            )
        except FileNotFoundError:
            continue
    raise MachineError(
        f"the checkpoint of step {chosen} is not complete", remedy="Run the command again, or give another --step."
    )


def _chained(run: RunFolder, policy: PolicyManifest, scratch: Path) -> memoryview | None:
    from p2prl.learner.published_policies import chained_weights

    try:
        return chained_weights(run.paths.blobs, policy, scratch)
    except FileNotFoundError:
        raise  # the chain's own file: the learner goes on to another version
    except OSError as error:
        raise write_error(error, scratch) from error
    except IntegrityError as error:
        remedy = "Export another step, or give another --dtype, which reads the checkpoint alone."
        raise IntegrityError(
            f"the weights of version {policy.version} in the run's blobs folder are damaged: {error}", remedy=remedy
        ) from error


def _policy_at(run: RunFolder, step: int) -> PolicyManifest | None:
    """The version published at a step, if any."""
    reader = JournalReader(run.paths.journal)
    try:
        raw = reader.policy_at(step)
    finally:
        reader.close()
    return None if raw is None else body_of(open_envelope(raw, now=None), PolicyManifest)


def _facts(
    run: RunFolder, snapshot: Snapshot, opened: OpenedExport, written: WrittenModel, *, step: int, source: str
) -> CardFacts:
    from p2prl.cli.commands.export_facts import (
        loss_settings,
        newest_evaluation,
        preferences_text,
        reward_change,
    )

    _, board = require_run(snapshot)
    reader = JournalReader(run.paths.journal)
    try:
        versions = reader.versions_until(step)
    finally:
        reader.close()
    return CardFacts(
        manifest=run.manifest,
        run_id=run.run.hex(),
        step=step,
        versions=versions,
        version=written.version,
        weights_digest=written.weights.digest.hex(),
        dtype=opened.dtype,
        has_chat_template=opened.has_chat_template,
        base_is_local=Path(run.manifest.base_model).expanduser().is_dir(),
        loss=loss_settings(run.settings.loss),
        prompts=read_prompt_record(run.directory),
        preferences=preferences_text(run.directory, run.settings.preferences),
        reward=reward_change(run.paths.metrics, until_step=step),
        evaluation=newest_evaluation(snapshot, until_step=step),
        totals=run_document(snapshot).totals,
        people=leaderboard_document(snapshot, by="people", limit=max(1, len(board.people))).people,
        ledger_height=board.height,
        ledger_root=board.head.hex(),
        ledger_incident=snapshot.incident,
        source=source,
        program=__version__,
    )


def _marker(facts: CardFacts) -> dict[str, object]:
    return {
        "format": FORMAT,
        "run": facts.run_id,
        "name": facts.manifest.name,
        "step": facts.step,
        "version": facts.version,
        "dtype": facts.dtype,
        "weights_blake3": facts.weights_digest,
        "ledger_entries": facts.ledger_height,
        "ledger_root": facts.ledger_root,
        "program": facts.program,
    }


def _document(target: Path, facts: CardFacts, written: WrittenModel) -> dict[str, object]:
    return {
        "directory": str(target),
        "run": facts.run_id,
        "step": facts.step,
        "version": facts.version,
        "dtype": facts.dtype,
        "weight_files": len(written.weights.files),
        "weight_bytes": written.weights.size_bytes,
        "weights_blake3": facts.weights_digest,
        "contributors": facts.totals.contributors,
        "ledger_verified": facts.ledger_incident is None,
        "pushed": None,
    }


def _report(target: Path, facts: CardFacts, written: WrittenModel) -> None:
    equal = f"equal to version {facts.version}" if facts.version is not None else "taken from the checkpoint"
    files = len(written.weights.files)
    say(
        f"Exported step {facts.step:,} to {target}: {size_text(written.weights.size_bytes)} of {facts.dtype} weights, "
        f"{equal}, in {counted(files, 'file')}."
    )
    if facts.ledger_incident is not None:
        say(f"The ledger could not be verified, so the card lists nobody: {facts.ledger_incident}")
    say(f"Load it:  AutoModelForCausalLM.from_pretrained({str(target)!r})   vllm serve {target}")
