"""Log lines without addresses, hosts or paths of this machine: a log may be pasted into a public report."""

from __future__ import annotations

import json
import logging
import os
import re
import time
from pathlib import Path
from typing import Any

from p2prl.plain_text import cleaned
from p2prl.user_home import user_home

_MULTIADDR = re.compile(r"/(?:ip4|ip6|dns|dns4|dns6|dnsaddr)/[^\s'\",;)\]}]+")
_URL_HOST = re.compile(r"(?<=://)(?!\[redacted)[^\s/'\"?#@]+")
_IPV4 = re.compile(r"(?<![\d.])(?:\d{1,3}\.){3}\d{1,3}(?::\d{1,5})?(?![\d.]*\d)")
_IPV6 = re.compile(
    r"(?<![\w:])\[?(?=[0-9a-fA-F:]*::|(?:[0-9a-fA-F]{1,4}:){7})"  # a time of day has two colons, apart
    r"(?:[0-9a-fA-F]{0,4}:){2,7}[0-9a-fA-F]{0,4}\]?(?::\d{1,5})?(?!\w|:[\w:])"
)
_SOURCE = re.compile(rf"(?:.*/site-packages|{re.escape(str(Path(__file__).parents[1]))})/((?:[\w.-]+/)*[\w.-]+\.py)")
"""Program files: what leads to the packages is this machine's own, the rest is the same everywhere."""
_PATH = re.compile(r"(?<![\w/:.\]])~?/(?:[\w.@+~-]+/)+[\w.@+~-]*")
_QUOTED_PATH = re.compile(r"(?<=[\"'])~?/[^\"'\n]*/[^\"'\n]*(?=[\"'])")
"""In quotation marks, as tracebacks and errors of files have it, where it may hold spaces."""

LOG_FORMAT_VARIABLE = "P2PRL_LOG"
"""Environment variable that chooses the form of log lines: `json`, or plain text by default."""


def redacted(text: str) -> str:
    """The text with addresses, hosts and absolute paths replaced by what they were.

    The last part of a path stays, and of a program's file what is below its packages; the home folder becomes `~`.
    """
    text = _MULTIADDR.sub("[address]", text)
    text = _URL_HOST.sub("[host]", text)
    text = _without_home(text)
    for pattern in (_QUOTED_PATH, _PATH):
        text = pattern.sub(lambda found: f"[path]/{_rest_of(found[0])}", text)
    text = _IPV4.sub("[address]", text)
    return _IPV6.sub("[address]", text)


def _without_home(text: str) -> str:
    """The text with `~` for the home folder where it stands alone, and without a name in it that has spaces."""
    home = user_home()
    if home is None or not home.name:
        return text
    text = re.sub(rf"{re.escape(str(home))}/?(?![\w./-])", "~", text)
    return text.replace(f"{home}/", "/home/") if " " in str(home) else text


def _rest_of(path: str) -> str:
    source = _SOURCE.fullmatch(path)
    return source[1] if source else path.rstrip("/").rpartition("/")[2]


class RedactingFormatter(logging.Formatter):
    """Formats a record as one line of text or JSON, tracebacks included, and redacts it.

    What strangers wrote may be in it, and a terminal may show it: control characters are left out.
    """

    def __init__(self, *, as_json: bool) -> None:
        super().__init__("%(name)s: %(message)s")
        self._as_json = as_json

    def format(self, record: logging.LogRecord) -> str:
        if not self._as_json:
            return redacted(super().format(record))
        document = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": redacted(cleaned(record.getMessage())),
        }
        if record.exc_info:
            document["traceback"] = redacted(self.formatException(record.exc_info))
        return json.dumps(document, ensure_ascii=False)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """The message, on one line."""
        return cleaned(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802 - logging's name
        """The traceback, each line cleaned."""
        return "\n".join(map(cleaned, super().formatException(ei).split("\n")))


def log_to_stderr(level: int = logging.WARNING) -> None:
    """Send this process's log to standard error, redacted, in the form that the environment asks for."""
    handler = logging.StreamHandler()
    handler.setFormatter(_formatter())
    logging.basicConfig(level=level, handlers=[handler])


def redact_unhandled() -> None:
    """Redact the warnings and errors of a process that sets no handler: Python prints them to standard error.

    That handler looks the stream up for each line, so a live panel that stands in for it stays whole.
    """
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_formatter())


def _formatter() -> RedactingFormatter:
    return RedactingFormatter(as_json=os.environ.get(LOG_FORMAT_VARIABLE) == "json")
