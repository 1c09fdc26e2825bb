"""One file of words, moved from version to version in place, that no crash leaves between two versions.

The words lie in layout order, so the file is also the version's whole weight byte string, and there is no second copy
of it. A move has two halves. *Preparing* decodes segment after segment beside the words and logs both sides of every
change; the words stay as they are, and may be read, while it lasts. *Committing* makes the log safe on disk, then
writes the words, makes them safe, and replaces the claim (`state.json`). In that order any power cut leaves either the
words untouched or a whole log to finish with; what is decided on opening stands in `recovery`.

On opening nothing is believed: every segment is hashed. One process may hold a weight file for writing. Others may
read the words at `path`, and must hash what they read: a commit is not atomic for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path

import numpy as np
from blake3 import blake3

from p2prl.errors import IntegrityError, LocalProtocolError
from p2prl.patches.kernels import Kernels, fastest_kernels
from p2prl.patches.segments import SEGMENT_WORDS, SegmentHeader, decode_segment, words_digest
from p2prl.patches.words import Words, WordType
from p2prl.protocol.digests import Digest
from p2prl.weights.disk import DiskFiles
from p2prl.weights.ports import Files
from p2prl.weights.records import Claim, Move, Record, Version, pack_record, read_claim, read_log
from p2prl.weights.recovery import Side, decide

_CLAIM, _NEW_CLAIM, _LOG = "state.json", "state.json.new", "move.log"
_WORDS = ("words-0", "words-1")
"""Names of the words, taken in turns: a whole file that is adopted stands beside the old one until it is claimed."""


class WeightFile:
    """The words of one policy in one directory."""

    def __init__(
        self,
        files: Files,
        *,
        words: int,
        word_type: WordType,
        kernels: Kernels | None = None,
        segment_words: int = SEGMENT_WORDS,
    ) -> None:
        """Open what there is and mend what a crash left; `open` is the usual way in.

        `segment_words` is part of the patch format; a test of many segments may want small ones.
        """
        self._files = files
        self._word_type = word_type
        self._kernels = kernels
        self._spans = [(start, min(segment_words, words - start)) for start in range(0, words, segment_words)]
        self._claim: Claim | None = None
        self._words: Words = np.zeros(0, dtype=word_type.dtype)
        self._move: Move | None = None
        self._logged: dict[int, tuple[Digest, Digest]] = {}
        self._damaged: tuple[int, ...] = ()
        self._recover()

    @classmethod
    def open(cls, directory: Path, *, words: int, word_type: WordType) -> WeightFile:
        """The weight file in `directory`, made if need be, for a layout of `words` words.

        Hashes all of it, at gigabytes a second. `MachineError` when the disk refuses.
        """
        return cls(DiskFiles(directory), words=words, word_type=word_type)

    @property
    def held(self) -> Version | None:
        """What the words are; None when nothing was adopted yet or a segment is damaged."""
        return None if self._claim is None or self._damaged else self._claim.version

    @property
    def damaged(self) -> tuple[int, ...]:
        """Segments that are not what the claim says and have to be repaired, or a whole file adopted."""
        return self._damaged

    @property
    def words(self) -> int:
        """Words of the layout."""
        return sum(count for _, count in self._spans)

    @property
    def word_type(self) -> WordType:
        """What they are."""
        return self._word_type

    @property
    def pending(self) -> Version | None:
        """The version a move is being prepared to, if any."""
        return self._move.target if self._move is not None and self._side is Side.BASE else None

    @property
    def prepared(self) -> frozenset[int]:
        """Segments ready for the pending version."""
        return frozenset(self._logged) if self.pending is not None else frozenset()

    @property
    def path(self) -> Path:
        """The words themselves. Changes only when a whole file is adopted."""
        return self._files.path(_WORDS[0] if self._claim is None else self._claim.file)

    def view(self) -> memoryview:
        """All words as bytes, read-only and not copied. `LocalProtocolError` when no version is held."""
        self._require_held()
        return self._words.view(np.uint8).data

    # --- whole files -------------------------------------------------------------------------------------------

    def adopt(self, path: Path, version: Version) -> None:
        """Move a whole file of words in and hold it instead of whatever was held.

        The file at `path` is gone afterwards. `IntegrityError`, and it is left where it is, when its bytes are not
        those of `version`.
        """
        source = DiskFiles(path.parent).mapped(path.name)
        if source.nbytes != self.words * self._word_type.word_bytes or blake3(source).digest() != version.state:
            raise IntegrityError(f"{path.name} does not hold version {version.number}")
        name = _WORDS[1] if self._claim is not None and self._claim.file == _WORDS[0] else _WORDS[0]
        words = np.frombuffer(source, dtype=self._word_type.dtype)
        claim = Claim.of(name, version, [words_digest(words[start : start + n]) for start, n in self._spans])
        # The claim first, under its other name: a crash after the move then finds a file it can tell.
        self._announce(claim)
        self._files.take(path, name)
        self._files.sync(name)
        self._files.sync_directory()
        self._put_announced(claim)
        self._take_up(claim)

    def repair(self, index: int, words: Words) -> None:
        """Put back a damaged segment, as fetched again. `IntegrityError` when these are not its words."""
        if self._claim is None or index not in self._damaged:
            raise LocalProtocolError(f"segment {index} is not damaged")
        if len(words) != self._spans[index][1] or words_digest(words) != self._claim.digests[index]:
            raise IntegrityError(f"these are not the words of segment {index}")
        self._write(index, words)
        self._files.sync(self._claim.file)
        self._damaged = tuple(i for i in self._damaged if i != index)

    # --- moves -------------------------------------------------------------------------------------------------

    def begin(self, target: Version) -> frozenset[int]:
        """Prepare for `target`; returns the segments that are prepared already, by an earlier process perhaps.

        A move prepared to another version is dropped, and the last commit can no longer be undone.
        `LocalProtocolError` when no version is held, or `target` is.
        """
        move = Move(base=self._require_held(), target=target)
        if move.base == target:
            raise LocalProtocolError(f"version {target.number} is held already")
        if self._move != move:
            self._forget_move()
            self._files.write(_LOG, move.packed())
            self._move = move
        return self.prepared

    def prepare(self, index: int, header: SegmentHeader, body: bytes | memoryview) -> None:
        """Decode a segment beside the words, prove it and log it. Once is enough: repeated, it does nothing.

        `IntegrityError` when the segment does not start from the words held or does not end as it promises,
        `RemoteProtocolError` when the body cannot be read. Nothing has changed then.
        """
        if self._move is None or self._side is not Side.BASE:
            raise LocalProtocolError("begin a move before preparing its segments")
        if self._logged.get(index) == (header.pre, header.post):
            return
        old = self._segment(index)
        new = decode_segment(old, header, body, self._word_type, self._kernels or fastest_kernels())
        # A segment that was prepared otherwise before is superseded: of two records the later one counts.
        self._files.append(_LOG, pack_record(self._move, index, pre=header.pre, post=header.post, old=old, new=new))
        self._logged[index] = header.pre, header.post

    def commit(self) -> Version:
        """Move the words to the pending version, all of whose segments are prepared, and hold it.

        `IntegrityError` when the segments do not add up to the version's state: the words are untouched and the move
        is dropped.
        """
        move = self._move
        if move is None or self._side is not Side.BASE or len(self._logged) < len(self._spans):
            raise LocalProtocolError("a commit needs every segment prepared")
        records = self._whole_log()
        if self._state_at(Side.TARGET, records) != move.target.state:
            self._forget_move()
            raise IntegrityError(f"the patch to version {move.target.number} does not lead to the state it should")
        return self._go(move, Side.TARGET, records)

    def undo(self) -> Version:
        """Go back to the version before the last commit. `LocalProtocolError` when its log is gone."""
        if self._move is None or self._side is not Side.TARGET:
            raise LocalProtocolError("there is no commit to undo")
        version = self._go(self._move, Side.BASE, self._whole_log())
        self._forget_move()  # whoever goes back has no use for the way forth
        return version

    # --- within ------------------------------------------------------------------------------------------------

    @property
    def _side(self) -> Side | None:
        """Which end of the move is claimed."""
        if self._move is None or self._claim is None:
            return None
        return Side.TARGET if self._move.target == self._claim.version else Side.BASE

    def _require_held(self) -> Version:
        held = self.held
        if held is None:
            raise LocalProtocolError("no version is held: adopt a whole file or repair the damaged segments first")
        return held

    def _segment(self, index: int) -> Words:
        start, count = self._spans[index]
        return self._words[start : start + count]

    def _write(self, index: int, words: Words) -> None:
        assert self._claim is not None
        offset = self._spans[index][0] * self._word_type.word_bytes
        self._files.overwrite(self._claim.file, offset, _bytes(words))

    def _go(self, move: Move, side: Side, records: Mapping[int, Record]) -> Version:
        """Write one side's words wherever others are, and claim them. `records` hold every segment."""
        assert self._claim is not None
        self._files.sync(_LOG)
        self._files.sync_directory()
        for index in range(len(self._spans)):
            words = records[index].segment(self._segment(index), side)
            if not np.array_equal(words, self._segment(index)):
                self._write(index, words)
        self._files.sync(self._claim.file)
        digests = [records[index].digest(side) for index in range(len(self._spans))]
        claim = Claim.of(self._claim.file, move.at(side), digests)
        self._announce(claim)
        self._put_announced(claim)
        return move.at(side)

    def _announce(self, claim: Claim) -> None:
        self._files.write(_NEW_CLAIM, claim.packed())
        self._files.sync(_NEW_CLAIM)

    def _put_announced(self, claim: Claim) -> None:
        self._files.rename(_NEW_CLAIM, _CLAIM)
        self._files.sync_directory()
        self._claim = claim

    def _state_at(self, side: Side, records: Mapping[int, Record]) -> Digest:
        """Digest of all words as they would be on that side."""
        hasher = blake3()
        for index in range(len(self._spans)):
            words = records[index].segment(self._segment(index), side)
            hasher.update(_bytes(words))
        return Digest(hasher.digest())

    def _forget_move(self) -> None:
        self._move, self._logged = None, {}
        self._files.remove(_LOG)

    def _take_up(self, claim: Claim | None) -> None:
        """Hold the words of a claim, which no log is about, and keep no others."""
        self._claim = claim
        self._words = np.zeros(0, dtype=self._word_type.dtype) if claim is None else self._mapped(claim.file)
        self._damaged = ()
        self._forget_move()
        for name in _WORDS:
            if claim is None or name != claim.file:
                self._files.remove(name)

    # --- after a crash -----------------------------------------------------------------------------------------

    def _recover(self) -> None:
        names = self._files.names()
        claims = [read_claim(self._files.mapped(name)) if name in names else None for name in (_NEW_CLAIM, _CLAIM)]
        adopted, claim = (found if self._fits(found, names) else None for found in claims)
        begun = adopted is not None and (claim is None or adopted.file != claim.file)
        if adopted is not None and begun and self._digests(self._mapped(adopted.file)) == adopted.digests:
            self._files.sync(adopted.file)
            self._files.sync_directory()
            self._put_announced(adopted)
            self._take_up(adopted)
            return
        if claim is None:
            self._take_up(None)
            return
        self._claim, self._words = claim, self._mapped(claim.file)
        if _LOG in names:
            self._take_up_log(claim)
        self._mend(claim)

    def _fits(self, claim: Claim | None, names: AbstractSet[str]) -> bool:
        """Whether a claim is about a file that is there and as long as this layout."""
        return (
            claim is not None
            and claim.file in names
            and len(claim.segments) == len(self._spans)
            and self._files.mapped(claim.file).nbytes == self.words * self._word_type.word_bytes
        )

    def _mapped(self, name: str) -> Words:
        return np.frombuffer(self._files.mapped(name), dtype=self._word_type.dtype)

    def _digests(self, words: Words) -> list[Digest]:
        """Of each segment of all words."""
        return [words_digest(words[start : start + count]) for start, count in self._spans]

    def _take_up_log(self, claim: Claim) -> None:
        """Go on with the log on disk, without its end that a crash cut off; unless it is about other versions."""
        raw = self._files.mapped(_LOG)
        move, records, size = read_log(raw, [count for _, count in self._spans], self._word_type)
        if move is None or claim.version not in (move.base, move.target):
            self._forget_move()
            return
        if size < raw.nbytes:
            self._files.truncate(_LOG, size)
        self._move = move
        side = self._side or Side.BASE
        own = {i: record for i, record in records.items() if record.digest(side) == claim.digests[i]}
        self._logged = {index: (record.pre, record.post) for index, record in own.items()}

    def _records(self) -> dict[int, Record]:
        """The log's records, read and checked again; they are views of the file and take no memory."""
        _, records, _ = read_log(
            self._files.mapped(_LOG), [count for _, count in self._spans], self._word_type
        )  # fmt: skip
        return {index: record for index, record in records.items() if index in self._logged}

    def _whole_log(self) -> dict[int, Record]:
        """All records. `IntegrityError`, and the move is dropped, when the disk did not keep them."""
        records = self._records()
        if len(records) < len(self._spans):
            self._forget_move()
            raise IntegrityError("the log of a prepared version is damaged; the words are as they were")
        return records

    def _mend(self, claim: Claim) -> None:
        """Finish what a crash interrupted, or say what is damaged."""
        side = self._side or Side.BASE
        records = self._records() if self._logged else {}
        other = {index: record.digest(side.other) for index, record in records.items()}
        recovery = decide(claimed=side, found=self._digests(self._words), expected=claim.digests, other=other)
        move = self._move
        if recovery.side is not side and move is not None:
            # As a commit does before its first word: a whole log need not lead where it should.
            to = recovery.side if self._state_at(recovery.side, records) == move.at(recovery.side).state else side
            self._go(move, to, records)
            return
        for index in recovery.write:
            self._write(index, records[index].segment(self._segment(index), side))
        self._damaged = recovery.damaged


def _bytes(words: Words) -> memoryview:
    return np.ascontiguousarray(words).view(np.uint8).data
