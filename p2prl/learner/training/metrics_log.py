"""Metrics log: one JSON line per update in `metrics.jsonl`, each step written once (`docs/metrics.md`)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from p2prl.clock import Clock
from p2prl.disk_full import write_error
from p2prl.json_lines import read_json_lines, remove_unfinished_line


class MetricsLog:
    """Appends and reports the metrics of new updates. Updates replayed after a crash are not written again."""

    def __init__(
        self,
        path: Path,
        clock: Clock,
        *,
        on_metrics: Callable[[dict[str, Any]], None],
        on_notice: Callable[[str], None],
    ) -> None:
        self._path = path
        self._clock = clock
        self._on_metrics = on_metrics
        self._on_notice = on_notice
        remove_unfinished_line(path)
        found = read_json_lines(path, required={"step": float})
        if notice := found.notice(path):
            on_notice(notice)
        self._logged_step = int(max((document["step"] for document in found.objects), default=0))
        self._updated_at = clock.now()

    @property
    def logged_step(self) -> int:
        """Updates in the log."""
        return self._logged_step

    def add(self, step: int, metrics: dict[str, Any], notices: Iterable[str]) -> None:
        """Log update number `step`. Adds its time, and the seconds since the update before."""
        now = self._clock.now()
        document = metrics | {"seconds": now - self._updated_at, "time": now}
        self._updated_at = now
        if step <= self._logged_step:
            return
        try:
            with self._path.open("a") as file:
                file.write(json.dumps(document, sort_keys=True) + "\n")
        except OSError as error:
            raise write_error(error, self._path) from error
        self._logged_step = step
        self._on_metrics(document)
        for notice in notices:
            self._on_notice(f"update {step}: {notice}")
