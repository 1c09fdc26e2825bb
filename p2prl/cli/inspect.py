"""`p2prl eval`, `board` and `ledger`. Only `eval` needs torch, and imports it once the run folder is known."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from p2prl.cli import crashes
from p2prl.cli.console import emit, progress, say
from p2prl.clock import SystemClock
from p2prl.config.run_folder import open_folder
from p2prl.config.worker_folder import claim_worker_folder, default_home
from p2prl.errors import UnreachableError
from p2prl.net.process.handle import DEFAULT_LISTEN
from p2prl.protocol.join_link import SCHEME, parse_link
from p2prl.scoreboard.ledger_dump import verify_dump, verify_source, write_dump
from p2prl.scoreboard.ledger_recount import Recount
from p2prl.scoreboard.listen_port import bind
from p2prl.scoreboard.run_folder_source import RunFolderSource
from p2prl.scoreboard.summary import summary
from p2prl.scoreboard.swarm_source import SwarmSource, SwarmSourceConfig

_FIRST_LEDGER_S = 30.0
"""How long `board LINK --json` waits for the swarm before it gives up."""

_NEWS_S = 5.0
"""How long it then waits for a newer ledger than the one it keeps, once somebody has answered."""


def eval_command(
    directory: Path,
    *,
    checkpoint: Path | None,
    prompts: int,
    greedy: bool,
    device: str,
    threads: int,
    seed: int,
    as_json: bool,
) -> None:
    """Measure a checkpoint."""
    open_folder(directory)  # a wrong path is said at once: torch takes seconds to import
    crashes.keep_in(directory)

    from p2prl.cli.evaluate import evaluate_checkpoint
    from p2prl.config.run_settings import open_run
    from p2prl.models.device import use_threads

    folder = open_run(directory)
    use_threads(threads or folder.settings.threads)
    chosen = checkpoint or folder.newest_weights()
    with progress(f"evaluating {chosen.name}", quiet=as_json) as tell:
        result = evaluate_checkpoint(
            folder,
            chosen,
            prompts=prompts,
            seed=seed,
            greedy=greedy,
            device=device,
            on_progress=tell,
        )
    document = {
        "checkpoint": str(chosen),
        "reward": result.reward,
        "standard_error": result.standard_error,
        "prompts": result.prompts,
        "completion_tokens_mean": result.tokens_mean,
        "greedy": greedy,
        "seed": seed,
    }
    if as_json:
        emit(document)
    else:
        how = "greedy" if greedy else "sampled"
        say(f"{chosen}: {how} reward {result.reward:.3f} ± {result.standard_error:.3f} on {prompts} fresh prompts")


def board_command(
    source: str, *, host: str, port: int, home: Path | None, listen: list[str] | None, as_json: bool
) -> None:
    """Serve the leaderboard of a run folder or of a swarm, or print it once."""
    if as_json:
        with _board_source(source, home, listen) as ledger:
            _await_run(ledger)
            emit(summary(ledger))
        return
    # The port before the swarm: one that is taken is said at once, and nothing has been started by then.
    with bind(host, port) as listener, _board_source(source, home, listen) as ledger:
        from p2prl.scoreboard.service import serve  # the web framework

        serve(ledger, host=host, port=port, listener=listener, on_ready=lambda url: say(f"board      {url}"))


def ledger_verify_command(source: Path, *, as_json: bool) -> None:
    """Recount a ledger from its first entry."""
    if source.is_dir():
        with _run_source(source) as ledger:
            result = verify_source(ledger)
    else:
        result = verify_dump(source)
    if as_json:
        emit(_recount_document(result))
        return
    say(f"{result.height} entries follow the chain, every signature holds. root {result.root}")
    for person in result.people:
        sys.stdout.write(f"{person.handle:<24} {person.verified_groups:>6} groups {person.verified_tokens:>9} tokens\n")


def ledger_dump_command(run: Path, out: Path, *, as_json: bool) -> None:
    """Write a run's ledger to one file."""
    with _run_source(run) as ledger:
        height = write_dump(ledger, out)
    if as_json:
        emit({"entries": height, "file": str(out)})
    else:
        say(f"{height} entries in {out}. Anyone can check it:  p2prl ledger verify {out}")


@contextmanager
def _board_source(source: str, home: Path | None, listen: list[str] | None) -> Iterator[RunFolderSource | SwarmSource]:
    if not source.startswith(SCHEME):
        with _run_source(Path(source)) as run_source:
            yield run_source
        return
    link = parse_link(source)
    seat = claim_worker_folder(home or default_home(), kind="board")
    crashes.keep_in(seat.directory)
    config = SwarmSourceConfig(
        link=link,
        key_file=seat.key_file,
        folder=seat.run_directory(link.run),
        listen=tuple(listen or DEFAULT_LISTEN),
    )
    link_source = SwarmSource(config, clock=SystemClock())
    try:
        yield link_source
    finally:
        link_source.close()
        seat.release()


@contextmanager
def _run_source(directory: Path) -> Iterator[RunFolderSource]:
    folder = open_folder(directory)
    link = folder.link_file.read_text().strip() if folder.link_file.exists() else ""
    source = RunFolderSource(
        folder.paths.journal, folder.manifest_raw, join_link=link, planned_updates=folder.planned_updates
    )
    try:
        yield source
    finally:
        source.close()


def _await_run(source: RunFolderSource | SwarmSource) -> None:
    """Wait until the ledger is the run's and not merely the one kept here since the last time."""
    began = time.monotonic()
    kept, reached_at = source.snapshot().signed_height, None
    while True:
        now, snapshot = time.monotonic(), source.snapshot()
        if reached_at is None and (isinstance(source, RunFolderSource) or snapshot.connected_peers):
            reached_at = now
        if reached_at is not None and snapshot.board is not None:
            signed = snapshot.signed_height
            news = isinstance(source, RunFolderSource) or (signed is not None and signed > (kept or 0))
            if (news or now > reached_at + _NEWS_S) and snapshot.board.height >= (signed or 0):
                return
        failure = source.failure()
        if failure is not None:
            raise failure
        if now > began + _FIRST_LEDGER_S:
            raise _nothing_arrived(reached=reached_at is not None, kept=kept)
        time.sleep(0.2)


def _nothing_arrived(*, reached: bool, kept: int | None) -> UnreachableError:
    what = "no ledger arrived" if reached else "no peer of the run answered"
    old = "" if kept is None else f"; the {kept} entries kept here may be out of date"
    return UnreachableError(f"{what} within {_FIRST_LEDGER_S:.0f} s{old}", remedy="Check that the run's learner is up.")


def _recount_document(result: Recount) -> dict[str, object]:
    return {
        "run": result.run_id,
        "name": result.name,
        "height": result.height,
        "root": result.root,
        "signed_height": result.signed_height,
        "totals": msgspec.to_builtins(result.totals),
        "people": msgspec.to_builtins(result.people),
        "validators": msgspec.to_builtins(result.validators),
    }
