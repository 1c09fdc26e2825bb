"""Limit of open files, and how many links it allows."""

from __future__ import annotations

import contextlib
import resource

_WANTED = 16_384
"""Open files that the largest node needs: 4 for each of 1,024 links, and more in its daemon, with room to spare."""

_RESERVED = 640
"""Files for the spare streams of both directions, the disk, sockets to the role and to the daemon."""

_FILES_PER_LINK = 4
"""Two streams in each direction."""

_LEAST_LINKS = 32


def raise_open_files() -> int:
    """Raise this process's limit of open files as far as the system allows; returns it. Children inherit it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = _WANTED if hard == resource.RLIM_INFINITY else min(_WANTED, hard)
    if soft == resource.RLIM_INFINITY or soft >= allowed:
        return _WANTED if soft == resource.RLIM_INFINITY else soft
    with contextlib.suppress(ValueError, OSError):  # macOS refuses more than its kern.maxfilesperproc
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
        return allowed
    return soft


def links_for(open_files: int, most: int) -> int:
    """Number of links for this limit of open files, at most `most`."""
    return max(_LEAST_LINKS, min(most, (open_files - _RESERVED) // _FILES_PER_LINK))
