"""A swarm with a team on virtual time: its work is the team's, and its validator is paid for others' groups only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from p2prl.learner.journal.journal import Journal
from p2prl.models.small_models.tiny_models import tiny_model
from p2prl.protocol.delegation import DAY_MS, sign_delegation
from p2prl.protocol.envelope import open_envelope
from p2prl.protocol.identity import Identity
from p2prl.protocol.kinds import Kind, Role
from p2prl.protocol.ledger_chain import LedgerEntry
from p2prl.protocol.ledger_messages import CheckOutcome, Receipts, VerdictChecks
from p2prl.protocol.membership_statements import sign_membership, sign_team_name
from p2prl.protocol.wire_codec import decode
from p2prl.sim import simulated_run
from p2prl.sim.machines import identity_of
from p2prl.sim.swarm_config import SwarmConfig
from p2prl.sim.virtual_time import START
from p2prl.swarm.node_config import NodeConfig
from p2prl_lab.sim.validated_swarm import ValidatedSwarm

CONFIG = SwarmConfig(volunteers=3, updates=4, step_seconds=20.0, seed=7)
OWNER, TEAM = identity_of("owner"), identity_of("team")
NAME = sign_team_name(TEAM, "Red Pandas", serial=1)
START_MS = int(START * 1000)


class TeamSwarm(ValidatedSwarm):
    """The first volunteer works for an owner in the team, the validator is in it, and the others are in none."""

    def _node_config(self, identity: Identity, role: Role, keep_versions: int) -> NodeConfig:
        plain = super()._node_config(identity, role, keep_versions)
        if role is Role.VALIDATOR:
            return replace(plain, memberships=(sign_membership(identity, NAME, serial=1),))
        if role is Role.VOLUNTEER and not hasattr(self, "machine"):
            self.machine = identity.public_key
            delegation = sign_delegation(OWNER, self.machine, serial=START_MS, expires_ms=START_MS + DAY_MS)
            return replace(plain, delegations=(delegation,), memberships=(sign_membership(OWNER, NAME, serial=1),))
        return plain


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(simulated_run, "_EVALUATION_PROMPTS", 8)  # no test here asks for the reward
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_a_team_has_its_members_work_and_no_pay_for_auditing_itself(tmp_path: Path) -> None:
    swarm = TeamSwarm(CONFIG, tiny_model("chain4", seed=1), tmp_path, validators=["honest"])
    swarm.run(on_progress=lambda _: None)
    board = swarm.board()
    (validator,) = swarm.kinds
    assert board.ignored == {}
    assert list(board.teams) == [TEAM.public_key]
    team = board.teams[TEAM.public_key]
    assert team.members == {OWNER.public_key, validator}
    assert set(team.work) == {OWNER.public_key}

    journal = Journal(tmp_path / "learner" / "journal.db")
    entries, learner_ms = journal.ledger.entries(0, 1_000_000), 0
    journal.close()
    since: dict[bytes, int] = {}
    receipts, checks = [], []
    for raw in entries:
        opened = open_envelope(decode(raw, LedgerEntry, limit_bytes=len(raw)).envelope, now=None)
        if isinstance(opened.body, Receipts):
            receipts += [(opened.sent_ms, receipt) for receipt in opened.body.receipts if receipt.tokens]
        elif isinstance(opened.body, VerdictChecks):
            checks += [(opened.sent_ms, check) for check in opened.body.checks]
        elif opened.kind is Kind.MEMBERSHIP:
            since[opened.author] = learner_ms
        if opened.kind in (Kind.RECEIPTS, Kind.VERDICT_CHECKS):
            learner_ms = max(learner_ms, opened.sent_ms)
    assert set(since) == {swarm.machine, validator}
    mine = [row.tokens for at, row in receipts if row.peer == swarm.machine and at > since[swarm.machine]]
    assert 0 < team.tokens == sum(mine)
    assert team.tokens < sum(row.tokens for row in board.people.values())

    sampler = {receipt.group: receipt.peer for _, receipt in receipts}
    agreed = [(at, check) for at, check in checks if check.outcome == CheckOutcome.AGREED and check.group in sampler]
    own = [
        check.tokens
        for at, check in agreed
        if sampler[check.group] == swarm.machine and at > max(since[swarm.machine], since[validator])
    ]
    assert own, "it audited its team as well"
    paid = sum(check.tokens for _, check in agreed) - sum(own)
    assert board.validators[validator].tokens == paid > 0
