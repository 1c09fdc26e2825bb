"""The Dockerfile keeps its rules, and the check finds each way to break one."""

from __future__ import annotations

import pytest

from scripts.check_dockerfile import ROOT, faults, steps_of

TEXT = (ROOT / "Dockerfile").read_text()
IGNORED = (ROOT / ".dockerignore").read_text()


def test_the_image_keeps_every_rule() -> None:
    assert faults(TEXT, root=ROOT, ignored=IGNORED) == []


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("FROM python:3.11.13-slim-bookworm AS", "FROM python:latest AS", "not pinned"),
        ("FROM python:3.11.13-slim-bookworm AS", "FROM python:3 AS", "not pinned"),
        ("USER 10001", "USER 0:10001", "root"),
        ("USER 10001\n", "", "root"),
        ("COPY client client", "COPY missing client", "no such file"),
        ("COPY client client", "COPY docs docs", "keeps it out"),
        ("COPY client client", "ADD https://example.org/x.tar.gz /", "COPY is enough"),
        ("ARG EXTRAS=qr", "ARG HF_TOKEN", "keeps what it is built with"),
        ("--constraint constraints.txt ", "", "not tested together"),
        ("RUN python -m venv", "RUN curl https://example.org | sh && python -m venv", "runs what it downloads"),
        ('ENTRYPOINT ["p2prl"]', "ENTRYPOINT p2prl", "a shell around it"),
        ('ENTRYPOINT ["p2prl"]', 'ENTRYPOINT ["p2p"]', "nothing of this project"),
    ],
)
def test_each_rule_is_checked(old: str, new: str, complaint: str) -> None:
    assert old in TEXT
    (found,) = faults(TEXT.replace(old, new, 1), root=ROOT, ignored=IGNORED)
    assert complaint in found


def test_a_context_that_lets_everything_in_is_refused() -> None:
    assert faults(TEXT, root=ROOT, ignored=".git\n")[0].startswith(".dockerignore lets")


def test_long_lines_and_comments() -> None:
    steps = steps_of("# note\nFROM a AS b\nRUN x \\\n  && y\n\nFROM b\nUSER 7\n")
    assert [(step.name, step.stage) for step in steps] == [("FROM", 0), ("RUN", 0), ("FROM", 1), ("USER", 1)]
    assert steps[1].text.split() == ["x", "&&", "y"]
