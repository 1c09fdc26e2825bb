"""A simulated swarm with validators, honest and dishonest, and dishonest volunteers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from p2prl.models.base_model.pretrained import LoadedModel
from p2prl.models.groups.group_work import ReplayTools, SamplingTools
from p2prl.models.sampler_port import Sampler
from p2prl.net.process.bridge import NetworkPort
from p2prl.net.process.run_preparation import Prepare, RunPreparation
from p2prl.net.storage.disk_blobs import DiskBlobStore
from p2prl.protocol.envelope import Opened
from p2prl.protocol.identity import PeerId
from p2prl.protocol.kinds import Role
from p2prl.protocol.ledger_messages import Receipt, Receipts
from p2prl.protocol.manifests import RunManifest
from p2prl.scoreboard.ledger.journal_reader import JournalReader
from p2prl.scoreboard.ledger.ledger_fold import BoardState, LedgerFold
from p2prl.sim.machines import identity_of
from p2prl.sim.shared_engine import SharedScorer
from p2prl.sim.swarm import Swarm
from p2prl.sim.swarm_config import SwarmConfig
from p2prl.validator.own_ledger import FILE_NAME, OwnLedger
from p2prl.validator.service import Audit, Validator, ValidatorConfig
from p2prl.validator.verdicts import judge
from p2prl_lab.sim.dishonest_validators import DISHONEST_JUDGES, CopyingJudge, HearingPort

_TURN_S = 5.0
"""Virtual seconds between two turns of a validator."""


class ValidatedSwarm(Swarm):
    """A simulated swarm with validators of the kinds named, and with volunteers that cheat."""

    def __init__(
        self,
        config: SwarmConfig,
        loaded: LoadedModel,
        directory: Path,
        *,
        validators: Sequence[str],
        cheats: int = 0,
        cheat: Callable[[Sampler], Sampler] | None = None,
        crash_validators_s: float | None = None,
        own_ledgers: bool = False,
    ) -> None:
        """`validators` has "honest" or a key of `DISHONEST_JUDGES` for each; all of them crash for good after
        `crash_validators_s`; with `own_ledgers` each keeps one in its folder. The first `cheats` volunteers replace
        their sampler by `cheat` of it."""
        self._cheats = cheats if cheat else 0
        self._cheat = cheat
        self._folder = directory
        self._seed = config.seed
        self._own_ledgers = own_ledgers
        self.audits: dict[bytes, Audit] = {}
        """Newest state of each validator, by public key."""
        self.kinds: dict[bytes, str] = {}
        """Kind of each validator, by public key."""
        super().__init__(config, loaded, directory)
        peers = [self._start_validator(number, kind) for number, kind in enumerate(validators)]
        if crash_validators_s is not None:
            for peer in peers:
                self.network.after(crash_validators_s, partial(self.network.crash, peer))

    def board(self) -> BoardState:
        """The leaderboard, from the learner's ledger. Call it after `run`."""
        return self._fold()[0].state()

    def receipts(self, validator: bytes = b"") -> list[Receipt]:
        """All receipts of the learner's ledger, or of the own ledger of the validator with this public key."""
        bodies = [opened.body for opened in self._fold(validator)[1]]
        return [receipt for body in bodies if isinstance(body, Receipts) for receipt in body.receipts]

    def _fold(self, validator: bytes = b"") -> tuple[LedgerFold, list[Opened]]:
        """A ledger from its first entry, every entry checked against the key that signs it."""
        run, path = self._run, self._folder / "learner" / "journal.db"
        if validator:
            path = self._folder / f"validator-{list(self.kinds).index(validator)}" / FILE_NAME
        fold = LedgerFold(run=run.run, learner=validator or run.key.public_key, parameters=run.manifest.parameters)
        reader, opened = JournalReader(path), list[Opened]()
        while entries := reader.entries(fold.height, 256):
            opened += map(fold.follow, entries)
        reader.close()
        return fold, opened

    def _prepare_of(self, number: int) -> Prepare[SamplingTools]:
        return self._prepare_cheat if number < self._cheats else super()._prepare_of(number)

    def _prepare_cheat(self, manifest: RunManifest, files: Mapping[str, Path]) -> SamplingTools:
        tools = self._run.prepare(manifest, files)
        assert self._cheat is not None
        return replace(tools, sampler=self._cheat(tools.sampler))

    def _start_validator(self, number: int, kind: str) -> PeerId:
        identity = identity_of(f"validator {self._seed}/{number}")
        self.kinds[identity.public_key] = kind
        folder = self._folder / f"validator-{number}"
        blobs = DiskBlobStore(folder / "blobs")
        port = self._host(identity, Role.VALIDATOR, blobs, keep_versions=4)
        made = judge if kind == "honest" else DISHONEST_JUDGES[kind](judge)
        heard: NetworkPort = HearingPort(port, made.hear) if isinstance(made, CopyingJudge) else port

        def keep(audit: Audit) -> None:
            self.audits[identity.public_key] = audit

        own_ledger = OwnLedger(identity, self._run.run, self.network.loop_clock) if self._own_ledgers else None
        if own_ledger is not None:
            own_ledger.begin(folder / FILE_NAME)
        validator = Validator(
            identity=identity,
            run=self._run.run,
            config=ValidatorConfig(rate=1.0),
            clock=self.network.loop_clock,
            preparation=RunPreparation(
                lambda *_: ReplayTools(SharedScorer(self._run.model), self._run.work), lambda *_: None
            ),
            on_audit=keep,
            on_notice=lambda _: None,
            judge=made,
            own_ledger=own_ledger,
        )

        def turn() -> float:
            validator.turn(heard, wait_s=0.0)
            return _TURN_S

        self._turns(port, turn)
        return identity.peer_id
