"""The standby learner's side of following: asks for the newest copy, then for the pieces of it that it lacks.

The owner passes in answers and the time, and sends the questions returned. Questions that stay unanswered are asked
again: the learner may be away, and its answers are limited by rate.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from p2prl.errors import RemoteProtocolError
from p2prl.learner.following.copy_list import CopyHead, count_of, read_head
from p2prl.learner.following.held_copies import HeldCopies, HeldCopy, Place
from p2prl.swarm import signals

ASK_S = 1.0
"""Time between two questions for a newer copy."""

AGAIN_S = 5.0
"""Time after which a question is asked again."""

WINDOW = 16
"""Questions that wait for their answer at once."""

_MOST_WRONG = 8
"""Pieces with a wrong digest after which a copy is given up."""

_LIST_FILE = -1


@dataclass(slots=True)
class _Fetching:
    """The copy that is being fetched."""

    head: CopyHead
    missing: deque[Place]
    asked: dict[Place, float] = field(default_factory=dict)
    """Question → when it was asked."""
    list_pieces: dict[int, bytes] = field(default_factory=dict)
    wrong: int = 0


class Follower:
    """Fetches copy after copy."""

    def __init__(
        self, copies: HeldCopies, permit: Callable[[float], bytes], on_whole: Callable[[HeldCopy], None]
    ) -> None:
        """`permit` is the run key's for this machine at a time; `on_whole` gets each copy once it is on disk."""
        self._copies = copies
        self._permit = permit
        self._on_whole = on_whole
        self._fetching: _Fetching | None = None
        self._asked_at = float("-inf")
        self.answered_at: float | None = None
        """When the learner answered last."""
        self.fetched_bytes = 0
        """Bytes fetched since the start."""

    @property
    def pieces_left(self) -> int:
        """Pieces of the copy in progress that are still to come."""
        return 0 if self._fetching is None else len(self._fetching.missing) + len(self._fetching.asked)

    def receive(self, answer: signals.FollowArrived, now: float) -> None:
        """Take an answer of the learner."""
        self.answered_at = now
        try:
            if (answer.file, answer.piece) == (-1, -1):
                self._on_head(answer)
            elif self._fetching is not None and answer.copy == self._fetching.head.number:
                self._on_piece(self._fetching, answer, now)
        except RemoteProtocolError:
            self._fetching = None  # asked anew; nothing of it counts
            raise

    def questions(self, now: float) -> list[signals.AskFollow]:
        """What to ask now."""
        fetching = self._fetching
        if fetching is None:
            if now - self._asked_at < ASK_S:
                return []
            self._asked_at = now
            return [self._question(0, -1, -1, now)]
        for place, asked_at in list(fetching.asked.items()):
            if now - asked_at >= AGAIN_S:
                del fetching.asked[place]
                fetching.missing.appendleft(place)
        questions = []
        while fetching.missing and len(fetching.asked) < WINDOW:
            place = fetching.missing.popleft()
            fetching.asked[place] = now
            questions.append(self._question(fetching.head.number, *place, now))
        return questions

    def _question(self, copy: int, file: int, piece: int, now: float) -> signals.AskFollow:
        held = 0 if self._copies.whole is None else self._copies.whole.head.number
        return signals.AskFollow(self._permit(now), held, copy, file, piece)

    def _on_head(self, answer: signals.FollowArrived) -> None:
        """A newer copy begins; an empty head says that there is none yet."""
        if not answer.data:
            if self._fetching is not None and answer.copy != self._fetching.head.number:
                self._fetching = None  # the learner has begun another
            return
        head = read_head(answer.data)
        if self._fetching is None or self._fetching.head != head:
            places = [(_LIST_FILE, piece) for piece in range(count_of(head.list_bytes))]
            self._fetching = _Fetching(head, deque(places))

    def _on_piece(self, fetching: _Fetching, answer: signals.FollowArrived, now: float) -> None:
        place = (answer.file, answer.piece)
        if fetching.asked.pop(place, None) is None:
            return
        self.fetched_bytes += len(answer.data)
        if answer.file == _LIST_FILE:
            fetching.list_pieces[answer.piece] = answer.data
            if self.pieces_left == 0:
                raw = b"".join(fetching.list_pieces[piece] for piece in sorted(fetching.list_pieces))
                fetching.list_pieces.clear()
                fetching.missing.extend(self._copies.begin(fetching.head, raw))
        elif not self._copies.write(place, answer.data):
            fetching.missing.append(place)
            fetching.wrong += 1
            if fetching.wrong > _MOST_WRONG:
                raise RemoteProtocolError("copy: the learner sends other bytes than it lists")
        if self.pieces_left == 0:
            self._fetching = None
            self._asked_at = now - ASK_S  # at once: the learner waits to hear that it is held
            self._on_whole(self._copies.finish())
