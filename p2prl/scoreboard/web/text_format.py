"""Filters of the page's templates: codes, names and numbers as text for people."""

from __future__ import annotations

from p2prl.plain_text import counted
from p2prl.protocol.rejection_reasons import RejectionReason
from p2prl.quantity_text import count, credit, percent, quantity
from p2prl.time_text import moment

_SHORT_ID = 6
"""Characters of a peer id shown beside a name: 58^6 = 38 billion, enough to tell two equal names apart."""

_IGNORED_LINES = {
    "impossible_receipt": "receipt with an impossible number",
    "second_receipt": "second receipt of one group",
    "impossible_verdict": "verdict with an impossible number",
    "second_verdict": "second verdict of one validator on one group",
    "verdict_on_own_work": "verdict of a validator on its own work",
    "verdict_on_another_group": "verdict that does not fit the group's receipt",
    "second_delegation": "delegation of a machine that says nothing new",
    "too_many_delegations": "delegation beyond the number that counts",
    "revocation_of_nothing": "revocation without a delegation",
    "second_revocation": "revocation that says nothing new",
    "too_many_revocations": "revocation beyond the number that counts",
    "membership_of_another": "membership that none of the member's machines sent",
    "second_membership": "membership that says nothing new",
    "too_many_memberships": "membership beyond the number that counts",
}


def rejection(code: str) -> str:
    """A sentence that explains a rejection reason."""
    try:
        return RejectionReason(code).explanation
    except ValueError:
        return "A reason unknown to this version of the board."


def ignored_line(rule: str) -> str:
    """Description of a kind of ignored ledger line."""
    return _IGNORED_LINES[rule]


def short_id(peer_id: str) -> str:
    """The end of a peer id; the beginning is the same for every Ed25519 key."""
    return peer_id[-_SHORT_ID:]


def quoted(text: str) -> str:
    """A text as one POSIX shell argument, always quoted: a join link has a ? that zsh would expand."""
    return "'" + text.replace("'", "'\"'\"'") + "'"


FILTERS = {
    function.__name__: function
    for function in (count, counted, quantity, credit, percent, rejection, ignored_line, short_id, moment, quoted)
}
"""Filters by their name in templates."""
