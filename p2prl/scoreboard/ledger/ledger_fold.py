"""The leaderboard as a pure fold over the ledger: anyone can recompute who contributed what.

The rules, in the order they apply (docs/leaderboard.md states them for readers):

* Every group has one state. The first receipt of a group counts; a later one is ignored and counted as ignored.
* The newest credited groups of a machine are in escrow, and so are a validator's newest paid verdicts (`escrow`).
* A verdict counts once per (validator, group), only for a group that has a receipt, and never for one's own work. A
verdict that precedes its receipt waits for it, so the order in which the two reach the ledger does not matter.
* A verdict earns tokens when the learner's check of it passes, or when a third validator confirms it against the
learner. `verdict_totals` has the rules.
* A receipt counts for the owner of its machine when the learner signed it, and a verdict for that of its machine when
the learner signed its check, whenever the delegation or the revocation that says so reaches the ledger
(`owner_totals`). A verdict on work of one's own owner, or of an owner in one's own team, earns nothing.
* A membership counts for receipts and checks that the learner signs after those before it in the ledger; what a team
has is not changed by a later one (`p2prl.protocol.team_membership`).
* An invalid line (an impossible number, an unknown state) is ignored and counted, never an error: one bad line from
one peer must not take down every board of the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from p2prl.protocol import ledger_chain
from p2prl.protocol.delegation import Delegation, Revocation
from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import Opened
from p2prl.protocol.ledger_messages import Receipts, Verdict, VerdictChecks
from p2prl.protocol.membership_statements import Membership, TeamName
from p2prl.protocol.team_membership import Teams
from p2prl.scoreboard.ledger.credit import credit_of
from p2prl.scoreboard.ledger.hourly_totals import Hours, Work
from p2prl.scoreboard.ledger.marks import RunMarks
from p2prl.scoreboard.ledger.receipt_totals import ReceiptTotals
from p2prl.scoreboard.ledger.total_rows import Person, Step, Validator
from p2prl.scoreboard.ledger.validator_shares import merged
from p2prl.scoreboard.ledger.verdict_totals import VerdictTotals


@dataclass(frozen=True, slots=True)
class Team:
    """A team at one ledger height."""

    name: TeamName
    """The newest name that it signed, as a member passed it on."""
    members: frozenset[bytes]
    """Owners that are in it now."""
    work: Mapping[bytes, Work]
    """Credited work by owner, of those that have left too."""
    tokens: int
    groups: int


def team_totals(teams: Teams, work: Mapping[bytes, Mapping[bytes, Work]]) -> dict[bytes, Team]:
    """Every team that has or had a member, by its public key; `work` by team, then by owner."""
    found = {}
    for team, members in teams.members().items():
        of_team = work.get(team, {})
        tokens, groups = (sum(each[place] for each in of_team.values()) for place in (0, 1))
        found[team] = Team(teams.name_of(team), members, MappingProxyType(dict(of_team)), tokens, groups)
    return found


@dataclass(frozen=True, slots=True, eq=False)
class BoardState:
    """The leaderboard at one ledger height. Its mappings never change; states are compared by identity.

    One record, because every part of the page is a sum over the same entries.
    """

    parameters: int
    """Parameters of the run's model; scales tokens to credit."""
    height: int
    """Ledger entries counted."""
    head: Digest
    """Digest of the newest entry: two boards with the same head show the same numbers."""
    people: Mapping[bytes, Person]
    """By the owner's public key."""
    machines: Mapping[bytes, Mapping[bytes, Person]]
    """The parts of the same totals: by owner, then by the machine's public key."""
    revoked: Mapping[tuple[bytes, bytes], int]
    """By owner and machine, both public keys: since when the owner has revoked the machine, ms."""
    validators: Mapping[bytes, Validator]
    """By the owner's public key."""
    validator_machines: Mapping[bytes, Mapping[bytes, Validator]]
    """The parts of the same totals: by owner, then by the machine's public key."""
    steps: Mapping[int, Step]
    """By learner step, in the order of their first receipt."""
    hours: Hours
    """Credited work by hour, then by the owner's public key."""
    teams: Mapping[bytes, Team]
    """By the team's public key."""
    team_hours: Hours
    """Credited work that counts for teams by hour, then by `team_row` of team and owner."""
    marks: RunMarks
    """When the run passed round numbers."""
    own_marks: Mapping[bytes, Mapping[int, int]]
    """By the owner's public key: when it passed round numbers of credited groups, ms."""
    ignored: Mapping[str, int]
    """Ignored ledger lines, by rule."""
    waiting_verdicts: int
    """Verdicts on groups that have no receipt yet."""
    overruled_receipts: int
    """Receipts that two validators, one chosen by its standing and a hash, found to be wrong."""

    def credit(self, tokens: int) -> float:
        """Credit of a number of tokens in this run."""
        return credit_of(tokens, self.parameters)

    def newest_ms(self) -> int | None:
        """When the learner signed its newest receipts, milliseconds since 1970; None before the first."""
        return max((step.last_ms for step in self.steps.values()), default=None)


class LedgerFold:
    """Follows one run's chain from its first entry and keeps the totals."""

    def __init__(self, *, run: bytes, learner: bytes, parameters: int) -> None:
        self._run = run
        self._learner = learner
        self._parameters = parameters
        self._height = 0
        self._head = ledger_chain.GENESIS
        self._receipts = ReceiptTotals()
        self._verdicts = VerdictTotals(
            self._receipts.groups, self._receipts.owners.ownership, self._receipts.owners.teams
        )
        self._ignored: dict[str, int] = {}
        self._state: BoardState | None = None

    @property
    def height(self) -> int:
        """Entries counted."""
        return self._height

    @property
    def head(self) -> Digest:
        """Digest of the newest entry."""
        return self._head

    def follow(self, raw: bytes) -> Opened:
        """Check that `raw` is the chain's next entry and count it.

        Raises `IntegrityError` when it does not follow and `RemoteProtocolError` when it is malformed or signed by
        the wrong key; the totals are unchanged then.
        """
        opened, head = ledger_chain.follow(
            raw, height=self._height, head=self._head, run=self._run, learner=self._learner
        )
        if opened.author == self._learner:
            self._verdicts.on_learner_time(opened.sent_ms)
        if isinstance(opened.body, Receipts):
            self._add_receipts(opened.body, opened.sent_ms)
        elif isinstance(opened.body, Verdict):
            self._ignore(self._verdicts.add(opened.author, opened.sent_ms, opened.body))
        elif isinstance(opened.body, VerdictChecks):
            self._ignore(*(self._verdicts.add_check(check, opened.sent_ms) for check in opened.body.checks))
        elif isinstance(opened.body, (Delegation, Revocation)):
            self._take(opened.body)
        elif isinstance(opened.body, Membership):
            teams = self._receipts.owners.teams
            self._ignore(teams.take(opened.body, opened.author, after_ms=self._verdicts.learner_ms))
        self._height, self._head = self._height + 1, head
        self._state = None
        return opened

    def knows(self, validator: bytes) -> bool:
        """Whether a validator has standing by the checks of its verdicts so far."""
        return self._verdicts.knows(validator)

    def state(self) -> BoardState:
        """The totals so far."""
        if self._state is None:
            validators, owners = self._verdicts.by_owner(), self._receipts.owners
            self._state = BoardState(
                parameters=self._parameters,
                height=self._height,
                head=self._head,
                people=MappingProxyType(dict(owners.people)),
                machines=MappingProxyType(dict(owners.machines)),
                revoked=MappingProxyType(dict(owners.revoked)),
                validators=MappingProxyType({owner: merged(parts) for owner, parts in validators.items()}),
                validator_machines=MappingProxyType(validators),
                steps=MappingProxyType(dict(self._receipts.steps)),
                hours=owners.hours.state(),
                teams=MappingProxyType(team_totals(owners.teams, owners.hours.team_work)),
                team_hours=owners.hours.team_state(),
                marks=self._receipts.marks.state(),
                own_marks=MappingProxyType(dict(owners.marks)),
                ignored=MappingProxyType(dict(sorted(self._ignored.items()))),
                waiting_verdicts=self._verdicts.waiting,
                overruled_receipts=self._verdicts.overruled,
            )
        return self._state

    def _add_receipts(self, body: Receipts, sent_ms: int) -> None:
        for receipt in body.receipts:
            rule = self._receipts.add(receipt, step=body.step, sent_ms=sent_ms)
            self._ignore(rule)
            if rule is None:
                self._ignore(*self._verdicts.on_receipt(receipt.group))

    def _take(self, statement: Delegation | Revocation) -> None:
        rule = self._receipts.owners.take(statement)
        self._ignore(rule)
        if rule is None:
            self._verdicts.on_statement(statement.delegate)

    def _ignore(self, *rules: str | None) -> None:
        for rule in rules:
            if rule is not None:
                self._ignored[rule] = self._ignored.get(rule, 0) + 1
