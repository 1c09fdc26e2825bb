"""The report of `p2prl doctor --bundle`: what helps to find a fault, without what tells who or where you are. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from p2prl.cli.commands.doctor_checks import Finding

MOST_LOG_LINES = 200
"""Lines of a crash log, from its end: a traceback with its chain."""

_HEX = "[0-9a-fA-F]"
_IPV6 = (
    rf"(?<![\w:.])(?:(?:{_HEX}{{1,4}}:){{7}}{_HEX}{{1,4}}"
    rf"|(?:{_HEX}{{1,4}}:)*{_HEX}{{0,4}}::(?:{_HEX}{{1,4}}:)*{_HEX}{{0,4}})(?![\w:])"
)

_PATTERNS: tuple[tuple[str, str], ...] = (
    (r"p2prl://\S+", "<link>"),
    (r"https?://\S+", "<address>"),
    (r"/(?:ip4|ip6|dns|dns4|dns6|dnsaddr|unix)/\S+", "<address>"),
    (r"\b[\w.+-]+@[\w-]+(?:\.[\w-]+)+\b", "<mail>"),
    (r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?![\w.]*\d)", "<address>"),
    (_IPV6, "<address>"),
    (r"\b(?:[0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}\b", "<address>"),
    (r"\b(?:12D3KooW|Qm)[1-9A-HJ-NP-Za-km-z]{20,}", "<peer>"),
    (r"\b[0-9a-fA-F]{32,}\b", "<number>"),
    (r"(?<![\w<])(?:/(?:home|Users|root|mnt|media|data|var|tmp|private|srv|opt|work)(?:/[^\s\"':,)]*)?)", "<path>"),
    (r"\b[A-Za-z]:\\[^\s\"']*", "<path>"),
)
"""What is replaced, in this order: links before the addresses in them."""

_PACKAGE = re.compile(r"(?:/[^\s\"']*)?/(p2prl|torch|transformers|site-packages)/([^\s\"',]+)")
"""Paths of a traceback keep what lies inside a package."""


def scrubbed(text: str, secrets: Mapping[str, str]) -> str:
    """`text` without addresses, links, keys, paths and what `secrets` names: its keys give way to its values."""
    kept: list[str] = []

    def unnamed(part: str) -> str:
        for secret in sorted(secrets, key=len, reverse=True):
            if len(secret) > 1:
                part = re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", secrets[secret], part)
        return part

    def keep(match: re.Match[str]) -> str:
        kept.append(unnamed(f"{match.group(1)}/{match.group(2)}"))
        return f"\x00_{len(kept) - 1}_\x00"

    text = unnamed(_PACKAGE.sub(keep, text.replace("\x00", "")))
    for pattern, name in _PATTERNS:
        text = re.sub(pattern, name, text)
    return re.sub("\x00_(\\d+)_\x00", lambda match: kept[int(match.group(1))], text)


def bundle_text(
    found: Sequence[Finding],
    facts: Mapping[str, object],
    logs: Mapping[str, str],
    *,
    secrets: Mapping[str, str],
) -> str:
    """The report: findings, facts by name, and the ends of crash logs by their worker folder."""
    lines = ["p2prl doctor report. Keys, addresses, names and paths were taken out.", ""]
    for finding in found:
        lines.append(f"{finding.outcome:<5} {finding.name}: {finding.text}")
        lines += [f"      {finding.cause}"] if finding.cause else []
    lines += ["", *(f"{name}: {value}" for name, value in sorted(facts.items()))]
    for name, text in logs.items():
        lines += ["", f"--- {name}", *text.splitlines()[-MOST_LOG_LINES:]]
    return scrubbed("\n".join(lines), secrets) + "\n"
