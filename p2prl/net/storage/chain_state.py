"""State of a weight chain: which version the weights file holds, and which inverse patches lead back from it. Pure.

An inverse patch leads from a version to an older one. Every version has one to the version before it, and some lead
over 4, 16 or 64 versions or to version 0, so that an old version is a few patches away. Spans need not nest: a patch to
version 0 may begin at any version. So a route is the shortest path through all patches there are, and versions are
forgotten in such a way that every version that stays can be reached from the one in the file.

While the file is being rewritten, the state names the version that it is rewritten to: each segment then holds one of
the two, and its digest tells which.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter

from p2prl.errors import IntegrityError
from p2prl.patches.words import WORD_TYPES, WordType
from p2prl.protocol.digests import DIGEST_BYTES, Digest

FORMAT = "p2prl/weight-chain/1"
"""Format name in the file. Its number changes when the meaning of the file changes."""


@dataclass(frozen=True, slots=True, order=True)
class Inverse:
    """A patch from a version to an older one."""

    newer: int
    older: int
    size_bytes: int

    @property
    def name(self) -> str:
        """Its file."""
        return f"back-{self.newer:08d}-{self.older:08d}"


@dataclass(frozen=True, kw_only=True, slots=True)
class ChainState:
    """What the files of a chain hold."""

    word_type: WordType
    words: int
    """Words of one version."""
    at: int
    """Version in the weights file."""
    target: int | None = None
    """Version the file is being rewritten to; None when it is `at` in all segments."""
    roots: Mapping[int, Digest]
    """Root of the weights' blob, by version. `at` and `target` are among them, and patches lead from the higher of
    these two to all others."""
    inverses: frozenset[Inverse] = field(default_factory=frozenset)

    @property
    def newest(self) -> int:
        """The highest version."""
        return max(self.roots)

    @property
    def size_bytes(self) -> int:
        """Bytes of one version."""
        return self.words * self.word_type.word_bytes

    def version_of(self, root: bytes) -> int | None:
        """The newest version whose weights have this root."""
        return max((version for version, held in self.roots.items() if held == root), default=None)

    def route(self, starts: Collection[int], version: int) -> tuple[int, tuple[Inverse, ...]] | None:
        """(version of `starts`, inverses that lead from it back to `version`); None when none of them does.

        The fewest patches, since each costs two digests of every segment; among equals the fewest bytes.
        """
        cost, step = self._ways_to(version)
        start = min((each for each in starts if each in cost), key=lambda each: (cost[each], each), default=None)
        if start is None:
            return None
        at, steps = start, list[Inverse]()
        while at != version:
            steps.append(step[at])
            at = step[at].older
        return start, tuple(steps)

    def _ways_to(self, version: int) -> tuple[dict[int, tuple[int, int]], dict[int, Inverse]]:
        """By version that leads to this one: (patches, bytes) of the shortest way, and its first patch."""
        cost, step = {version: (0, 0)}, dict[int, Inverse]()
        for inverse in sorted(self.inverses, key=attrgetter("newer")):  # so the ways from `older` are complete
            if inverse.older not in cost:
                continue
            patches, size = cost[inverse.older]
            way = patches + 1, size + inverse.size_bytes
            if inverse.newer not in cost or way < cost[inverse.newer]:
                cost[inverse.newer], step[inverse.newer] = way, inverse
        return cost, step

    def reachable(self, start: int) -> set[int]:
        """Versions that patches lead to from `start`, itself included."""
        found = {start}
        for inverse in sorted(self.inverses, key=attrgetter("newer"), reverse=True):
            if inverse.newer in found:
                found.add(inverse.older)
        return found

    def with_target(self, version: int, root: Digest, inverses: frozenset[Inverse]) -> ChainState:
        """A newer version is about to be written over the file."""
        assert self.target is None, "one version is written at a time"
        assert version > self.newest, "versions only grow"
        assert any((each.newer, each.older) == (version, self.at) for each in inverses), "a patch leads back"
        return replace(self, target=version, roots={**self.roots, version: root}, inverses=self.inverses | inverses)

    def towards(self, version: int) -> ChainState:
        """An older version is about to be written over the file."""
        assert self.target is None, "one version is written at a time"
        assert version in self.roots, "only versions of the chain can be reached"
        return replace(self, target=version)

    def arrived(self) -> ChainState:
        """The file holds the target in all segments. Versions newer than it are forgotten."""
        assert self.target is not None, "there is a target"
        return replace(self, at=self.target, target=None).forgetting_after(self.target)

    def given_up(self) -> ChainState:
        """The file holds `at` again in all segments."""
        return replace(self, target=None).forgetting_after(self.at)

    def forgetting_after(self, version: int) -> ChainState:
        """Without versions newer than this, which the file holds, and without those that only newer ones led to."""
        assert version == self.at, "the file holds it"
        return self.with_inverses(frozenset(each for each in self.inverses if each.newer <= version))

    def with_inverses(self, inverses: frozenset[Inverse]) -> ChainState:
        """With these patches alone, and the versions that they lead to from the one in the file."""
        kept = replace(self, inverses=inverses)
        reachable = kept.reachable(self.at)
        return replace(kept, roots={each: root for each, root in self.roots.items() if each in reachable})

    def forgetting_before(self, version: int, *, besides: int | None = None) -> ChainState:
        """Without versions older than this, but never without the one in the file and `besides`.

        What stays can be reached: every version on the way to one of the window is in the window too, and the patches
        on the way to `besides` stay.
        """
        oldest = min(version, self.at)
        route = None if besides is None or besides not in self.roots else self.route({self.at}, besides)
        way = () if route is None else route[1]
        return replace(
            self,
            roots={each: root for each, root in self.roots.items() if each >= oldest or each == besides},
            inverses=frozenset(each for each in self.inverses if each.older >= oldest or each in way),
        )


def write_state(state: ChainState) -> bytes:
    """The state as a file."""
    document = {
        "format": FORMAT,
        "dtype": state.word_type.name,
        "words": state.words,
        "at": state.at,
        "target": state.target,
        "roots": {str(version): root.hex() for version, root in sorted(state.roots.items())},
        "inverses": [[each.newer, each.older, each.size_bytes] for each in sorted(state.inverses)],
    }
    return json.dumps(document).encode()


def read_state(data: bytes) -> ChainState:
    """The state in a file. `IntegrityError` when it is none."""
    try:
        document = json.loads(data)
        if document["format"] != FORMAT:
            raise IntegrityError(f"the weight chain has the format {str(document['format'])[:64]!r}, not {FORMAT!r}")
        state = ChainState(
            word_type=WORD_TYPES[document["dtype"]],
            words=int(document["words"]),
            at=int(document["at"]),
            target=None if document["target"] is None else int(document["target"]),
            roots={int(version): Digest(bytes.fromhex(root)) for version, root in document["roots"].items()},
            inverses=frozenset(Inverse(int(a), int(b), int(size)) for a, b, size in document["inverses"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise IntegrityError("the state of the weight chain cannot be read") from error
    if not {state.at, state.at if state.target is None else state.target} <= set(state.roots):
        raise IntegrityError("the state of the weight chain names a version that it does not hold")
    if not set(state.roots) <= state.reachable(state.at if state.target is None else max(state.at, state.target)):
        raise IntegrityError("the state of the weight chain names a version that no patches lead to")
    if any(len(root) != DIGEST_BYTES for root in state.roots.values()):
        raise IntegrityError("the state of the weight chain holds roots that are no digests")
    return state
