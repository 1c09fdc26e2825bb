"""Failures of scorers in words: what happened to an answer that could not be scored, and what to do about it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from p2prl.tasks.sandbox.answer_limits import ANSWER_MEMORY_MB, ANSWER_S
from p2prl.tasks.sandbox.batch import ENDED, ERROR, MEMORY, ROW, TIMEOUT, TOO_LONG, VALUE

_SLOW = (
    "Import packages at the top of its file and not in the function, which runs in a new process for every answer; and"
    " do not sleep, or wait for a network: the sandbox has none."
)
_REFUSED_ERRORS = ("PermissionError", "BlockingIOError", "gaierror", "ConnectionRefusedError", "URLError")
"""Exceptions by which code learns that the sandbox has no files of the machine's, no processes and no network."""

_WORDS = {
    TIMEOUT: (f"it took longer than the {ANSWER_S:g} s of an answer", _SLOW),
    MEMORY: (
        f"it needed more than the {ANSWER_MEMORY_MB:,} MB of an answer",
        "Have it hold less: load tables at the top of its file, where they do not count.",
    ),
    ENDED: (
        "its process ended",
        "Look for a library that crashes or calls exit, and for processor time beyond the limit of an answer.",
    ),
    VALUE: ("it returned {rest}", "Return a list of one finite number from -100 to 100 for each completion."),
    ERROR: ("{rest}", "Correct the scorer, or install what it needs."),
    TOO_LONG: ("the answer has too many characters to score", "Give fewer --max-new-tokens."),
    ROW: ("the row has too many characters to score", "Drop the columns that no scorer reads."),
}
"""By kind of failure: a clause, and a remedy."""


def failure_text(failures: Iterable[str]) -> str:
    """The most common of the failures of `ScoredAnswer`, as a clause: `it took longer than the 2 s of an answer`."""
    failure = _commonest(failures)
    kind, _, rest = failure.partition(":")
    return failure if kind not in _WORDS else _WORDS[kind][0].format(rest=rest.strip() or "something else")


def failure_remedy(failures: Iterable[str]) -> str:
    """A remedy for the most common of the failures of `ScoredAnswer`."""
    kind, _, rest = _commonest(failures).partition(":")
    if kind == ERROR and rest.strip().startswith(_REFUSED_ERRORS):
        return (
            "The sandbox has refused it: a scorer has no network, starts no process, and reads installed packages and"
            " its own file alone. Put what it needs into the file, and import packages at its top."
        )
    return _WORDS[kind][1] if kind in _WORDS else _WORDS[ERROR][1]


def _commonest(failures: Iterable[str]) -> str:
    """A failure of the most common kind; the last one, whose text is as good as any."""
    listed = list(failures)
    kind, _ = Counter(failure.partition(":")[0] for failure in listed).most_common(1)[0]
    return next(failure for failure in reversed(listed) if failure.partition(":")[0] == kind)
