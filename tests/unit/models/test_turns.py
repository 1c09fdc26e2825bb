"""Transcripts: honest ones are read as they were made, and any change of one is refused."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2prl.models.small_models.tiny_models import tiny_model
from p2prl.models.tokenizer.text_codec import TextCodec
from p2prl.models.turns import Episode, Transcript, TurnRules
from p2prl.tasks import environment
from p2prl.tasks.environment import MAX_MESSAGE_CHARS, MAX_TURNS, next_message
from p2prl.tasks.task import FAILED, Score

LOADED = tiny_model("guess")
CODEC = TextCodec(LOADED.tokenizer, LOADED.model)
(STOP,) = CODEC.stop_ids
SIGNS = "0123456789+-?"
DIGITS = tuple(CODEC.encode("0123456789", rendered=True))


class Sums:
    """Replies with the digit sum of the turn and of all turns, until that is a multiple of five."""

    name = "unit_sums"

    def opening(self, seed: int) -> str:
        return str(seed)

    def reply(self, seed: int, turns: Sequence[str]) -> str | None:
        sums = [sum(SIGNS.index(sign) for sign in turn) for turn in turns]
        total = seed + sum(sums)
        return None if total % 5 == 0 else f"+{sums[-1]}-{total}"

    def score(self, seed: int, turns: Sequence[str], finished: bool) -> Score:
        return Score(reward=len(turns) / 100 + float(finished) / 2)


class Endless:
    """Always says the same."""

    name = "unit_endless"

    def __init__(self, message: str) -> None:
        self.message = message

    def opening(self, seed: int) -> str:
        return "?"

    def reply(self, seed: int, turns: Sequence[str]) -> str | None:
        return self.message

    def score(self, seed: int, turns: Sequence[str], finished: bool) -> Score:
        return Score(reward=float(finished))


def rules(seed: int, *, most: int = 60, frame: tuple[str, str] = ("", "")) -> TurnRules:
    return TurnRules(Sums(), seed, CODEC, most, frame)


def played(of: TurnRules, rng: random.Random) -> tuple[list[int], list[bool], list[str], bool]:
    """An honest transcript, written as a game between two speakers: ids, who said them, the turns, and whether the
    environment ended it."""
    ids: list[int] = []
    ours: list[bool] = []
    turns: list[str] = []
    while True:
        length = min(rng.randrange(5), of.max_new_tokens - len(ids))
        said = [rng.choice(DIGITS) for _ in range(length)]
        ids, ours = ids + said, ours + [True] * length
        turns.append(LOADED.tokenizer.decode(said).replace(" ", ""))
        if len(ids) == of.max_new_tokens:
            return ids, ours, turns, False
        ids, ours = [*ids, STOP], [*ours, True]
        answer = of.environment.reply(of.seed, turns)
        if answer is None:
            return ids, ours, turns, True
        heard = [int(LOADED.tokenizer.convert_tokens_to_ids(sign)) for sign in of.frame[0] + answer + of.frame[1]]
        if len(ids) + len(heard) >= of.max_new_tokens:
            return ids, ours, turns, False
        ids, ours = ids + heard, ours + [False] * len(heard)


def message_after(of: TurnRules, ids: Sequence[int]) -> tuple[int, ...] | None:
    """The message after a transcript that ends with a turn."""
    episode, start = Episode(of), 0
    while True:
        stop = next(i for i in range(start, len(ids)) if ids[i] == STOP)
        message = episode.end_turn(ids[start : stop + 1])
        if message is None or stop + 1 == len(ids):
            return message
        start = stop + 1 + len(message)


CASES = st.tuples(st.integers(0, 40), st.integers(1, 60), st.sampled_from([("", ""), ("?", "+"), ("", "77")]))


@given(CASES, st.integers(0, 10_000))
def test_an_honest_transcript_is_read_as_it_was_played(case: tuple[int, int, tuple[str, str]], game: int) -> None:
    of = rules(case[0], most=case[1], frame=case[2])
    ids, ours, turns, finished = played(of, random.Random(game))
    assert of.read(ids) == Transcript(tuple(turns), tuple(ours), finished)
    assert of.score(ids).reward == len(turns) / 100 + float(finished) / 2
    # A sampler that asks after every turn is told the same messages.
    ends = [i + 1 for i, (token, mine) in enumerate(zip(ids, ours, strict=True)) if mine and token == STOP]
    for end, following in itertools.zip_longest(ends, ends[1:]):
        heard = tuple(ids[i] for i in range(end, following or len(ids)) if not ours[i])
        message = message_after(of, ids[:end])
        assert message == (heard or None) if end != len(ids) else message is None


@given(CASES, st.integers(0, 10_000), st.data())
def test_no_other_transcript_passes_with_the_same_turns(
    case: tuple[int, int, tuple[str, str]], game: int, data: st.DataObject
) -> None:
    """Edited, missing and added tokens of the environment, dropped turns and other ends are all refused."""
    of = rules(case[0], most=case[1], frame=case[2])
    ids, ours, _, _ = played(of, random.Random(game))
    changed = [(*ids, DIGITS[0]), (*ids, STOP)]
    if ids[-1] == STOP or len(ids) < of.max_new_tokens:
        changed.append(tuple(ids[:-1]))
    theirs = [i for i, mine in enumerate(ours) if not mine]
    if theirs:
        at = data.draw(st.sampled_from(theirs))
        other = data.draw(st.sampled_from([token for token in (*DIGITS, STOP) if token != ids[at]]))
        changed.append((*ids[:at], other, *ids[at + 1 :]))
        start = max(i for i in range(at) if ours[i]) + 1
        end = next((i for i in range(at, len(ids)) if ours[i]), len(ids))
        changed.append((*ids[:start], *ids[end:]))  # a message dropped
    for each in changed:
        assert of.read(each) is None, (ids, each)
        assert of.score(each) == FAILED


@given(st.integers(0, 40), st.integers(0, 10_000), st.data())
def test_an_edited_turn_is_refused_or_is_another_game(seed: int, game: int, data: st.DataObject) -> None:
    """Every digit counts in the replies, so an edit shows in the next message; in the last turn the replay sees it."""
    of = rules(seed)
    ids, ours, turns, _ = played(of, random.Random(game))
    digits = [i for i, mine in enumerate(ours) if mine and ids[i] != STOP]
    if not digits:
        return
    at = data.draw(st.sampled_from(digits))
    edited = list(ids)
    edited[at] = data.draw(st.sampled_from([token for token in DIGITS if token != ids[at]]))
    read = of.read(edited)
    if not all(ours[at:]):
        assert read is None
    elif read is not None:
        assert read.turns[:-1] == tuple(turns[:-1])
        assert read.turns != tuple(turns)


@given(CASES, st.lists(st.sampled_from([*DIGITS[:3], *DIGITS[5:8], STOP, *CODEC.encode("+-", rendered=True)])))
def test_what_is_read_is_what_its_turns_give(case: tuple[int, int, tuple[str, str]], tokens: list[int]) -> None:
    """Any tokens: those of each turn that was read, followed by the messages to them, are the transcript."""
    of = rules(case[0], most=case[1], frame=case[2])
    ids, _, _, _ = played(of, random.Random(case[0]))
    for candidate in (tokens, [*ids[: len(ids) // 2], *tokens], [*tokens, *ids], ids[len(ids) // 3 :]):
        if not candidate:
            continue
        read = of.read(candidate)
        if read is None:
            continue
        assert len(read.sampled) == len(candidate) <= of.max_new_tokens
        again: list[int] = []
        for number, turn in enumerate(read.turns, 1):
            again += CODEC.encode(turn, rendered=True)
            if number == len(read.turns) and len(again) == of.max_new_tokens:
                break  # cut off
            again.append(STOP)
            message = message_after(of, again)
            assert (message is None) == (number == len(read.turns))
            again += message or ()
        assert again == candidate


def test_the_longest_transcript_is_one_token_short_of_a_message_that_does_not_fit() -> None:
    of = TurnRules(Endless("7"), 0, CODEC, 6)
    full = (STOP, DIGITS[7], STOP, DIGITS[7], STOP)
    assert message_after(of, full[:1]) == message_after(of, full[:3]) == (DIGITS[7],)
    assert message_after(of, full) is None, "its message would leave no room below the limit"
    assert of.read(full) == Transcript(("", "", ""), (True, False, True, False, True), finished=False)
    assert of.read((*full, DIGITS[7])) is None
    assert of.score(full).reward == 0.0
    roomy = replace(of, max_new_tokens=7)
    assert message_after(roomy, full) == (DIGITS[7],)
    assert roomy.read(full) is None
    assert roomy.read((*full, DIGITS[7], DIGITS[1])) is not None


def test_turns_and_messages_are_limited() -> None:
    of = TurnRules(Endless("7"), 0, CODEC, 10_000)
    ids = (STOP, DIGITS[7]) * (MAX_TURNS - 1) + (STOP,)
    assert message_after(of, ids[:-2]) is not None
    assert message_after(of, ids) is None
    read = of.read(ids)
    assert read is not None
    assert (len(read.turns), read.finished) == (MAX_TURNS, False)
    assert of.read((*ids, DIGITS[7], STOP)) is None
    assert next_message(Endless("7" * (MAX_MESSAGE_CHARS + 5)), 0, ("",)) == "7" * MAX_MESSAGE_CHARS


def test_a_stop_token_inside_a_message_ends_nothing() -> None:
    of = TurnRules(Endless("7"), 0, CODEC, 9, ("<e>", ""))
    ids = (STOP, STOP, DIGITS[7], DIGITS[1], STOP, STOP, DIGITS[7], DIGITS[2])
    assert message_after(of, ids[:1]) == (STOP, DIGITS[7])
    read = of.read((*ids, DIGITS[3]))
    assert read is not None
    assert read.turns == ("", "1", "23")
    assert read.sampled == (True, False, False, True, True, False, False, True, True)


def test_an_environment_in_a_tasks_place_is_not_scored_by_text() -> None:
    task = environment.EnvironmentTask(Sums())
    assert (task.name, task.prompt(12)) == ("unit_sums", "12")
    with pytest.raises(Exception, match="turn by turn"):
        task.score("12", "", True)
