"""State of a weight chain: which version the weights file holds, and which inverse patches lead back from it. Pure.

An inverse patch leads from a version to an older one. Every version has one to the version before it, and some lead
over 4, 16 or 64 versions, so that an old version is a few patches away. While the file is being rewritten, the state
names the version that it is rewritten to: each segment then holds one of the two, and its digest tells which.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

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
    """Root of the weights' blob, by version. `at` and `target` are among them."""
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

    def route(self, start: int, version: int) -> tuple[Inverse, ...] | None:
        """Inverses that lead from `start` back to `version`; None when none do. The longest steps first: spans nest."""
        steps: list[Inverse] = []
        while start > version:
            from_here = [each for each in self.inverses if each.newer == start and each.older >= version]
            if not from_here:
                return None
            steps.append(min(from_here, key=lambda each: each.older))
            start = steps[-1].older
        return tuple(steps) if start == version else None

    def with_target(self, version: int, root: Digest, inverses: frozenset[Inverse]) -> ChainState:
        """A newer version is about to be written over the file."""
        assert self.target is None, "one version is written at a time"
        assert version > self.newest, "versions only grow"
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
        """Without versions newer than this."""
        return replace(
            self,
            roots={each: root for each, root in self.roots.items() if each <= version},
            inverses=frozenset(each for each in self.inverses if each.newer <= version),
        )

    def forgetting_before(self, version: int, *, besides: int | None = None) -> ChainState:
        """Without versions older than this, never without the one in the file. With the patches that lead back from it
        to the version `besides`, and that version, if they do."""
        oldest = min(version, self.at)
        way = None if besides is None or besides not in self.roots else self.route(self.at, besides)
        return replace(
            self,
            roots={
                each: root
                for each, root in self.roots.items()
                if each >= oldest or (each == besides and way is not None)
            },
            inverses=frozenset(each for each in self.inverses if each.older >= oldest or each in (way or ())),
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
    if any(len(root) != DIGEST_BYTES for root in state.roots.values()):
        raise IntegrityError("the state of the weight chain holds roots that are no digests")
    return state
