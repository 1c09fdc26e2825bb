"""Probes of a verdict: which log-probs a validator states as proof that it computed a group's forward pass. Pure.

At the last position of every completion, the group's digest names `CANDIDATES` tokens; each validator states the
log-probs of its own few of them, chosen by its key. What the volunteer claims does not help: its group has the log-prob
of the sampled token alone. Another validator's verdict hardly helps: of 16 probes it gives away about one in eight. The
last position needs the forward pass over the whole completion, and every completion has a probe, so nothing can be left
out. The learner keeps the log-probs of all candidates from the replay that it does anyway, and so can check every
verdict of every validator without another replay.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from p2prl.protocol.digests import digest, digest_stream

PROBES = 16
"""Least probes of a verdict. A guess that is within a few deviations of the noise once in ten tries is so for all of
them once in 10^16."""

CANDIDATES = 128
"""Tokens of a completion that validators choose from: after the verdicts of 40 others, three quarters of a validator's
probes are still unknown to it."""

_NUMBERS = struct.Struct(f"<{CANDIDATES}I")


def candidate_tokens(group: bytes, last_tokens: Sequence[int], vocabulary: int) -> list[tuple[int, ...]]:
    """For each completion of a group, given its last token, the candidates: token ids below `vocabulary`.

    The last token itself is none of them, as its log-prob is in the group. `group` is the envelope's digest.
    """
    size = 4 * CANDIDATES
    stream = digest_stream("p2prl/verdict-candidates/v1", group, length=size * len(last_tokens))
    chosen = []
    for row, last in enumerate(last_tokens):
        tokens = [number % vocabulary for number in _NUMBERS.unpack_from(stream, size * row)]
        if last in tokens:
            tokens = [(token + 1) % vocabulary if token == last else token for token in tokens]
        chosen.append(tuple(tokens))
    return chosen


def probe_places(validator: bytes, group: bytes, completions: int) -> list[int]:
    """Places of a validator's probes among all candidates of a group, completion after completion.

    As many for each completion as give at least `PROBES`; place p is candidate p mod `CANDIDATES` of completion
    p div `CANDIDATES`.
    """
    each = -(-PROBES // completions)
    places = []
    for row in range(completions):
        drawn = digest("p2prl/verdict-probes/v1", validator, group, row.to_bytes(4, "little"))
        places += [row * CANDIDATES + byte % CANDIDATES for byte in drawn[:each]]
    return places
