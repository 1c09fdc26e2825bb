"""Metrics for Prometheus: every number of a status file once, labels escaped, and no text but the state."""

from __future__ import annotations

import json
import re
import threading
import urllib.error
import urllib.request

import pytest

from p2prl.cli.commands.metrics import metrics_server
from p2prl.cli.views.prometheus_view import DESCRIBED, family_of, prometheus_text
from tests.unit.house.source_tree import ROOT

WORKER = {
    "role": "volunteer",
    "run": 'a"b\\c\n',
    "seat": "seat-1",
    "state": "sampling",
    "running": True,
    "pid": 7,
    "time": 12.5,
    "peer": "12D3KooW",
    "reach": "/ip4/192.0.2.1/tcp/1",
    "tokens_per_s": 3.5,
    "reward_recent": None,
    "peers": {"learner": 1},
    "groups": {"verified": 2, "rejected": 0},
    "step/wall-time": 4,
    "weight_bytes_sent": 7,
    "evaluation/my task/pass_at_k": 0.5,
    "evaluation/version": 3,
    "reward/my task/mean": 0.25,
    "reward/my task/number/mean": 0.125,
}


def test_every_number_is_one_sample() -> None:
    text = prometheus_text([WORKER, {"role": "learner", "tokens_per_s": float("inf")}])
    samples = dict(re.findall(r"^(p2prl_\w+(?:\{.*\})) (\S+)$", text, re.MULTILINE))
    labels = r'role="volunteer",run="a\"b\\c\n",seat="seat-1"'
    assert samples == {
        f"p2prl_running{{{labels}}}": "1.0",
        f'p2prl_state{{{labels},state="sampling"}}': "1.0",
        f"p2prl_last_report_timestamp_seconds{{{labels}}}": "12.5",
        f"p2prl_tokens_per_s{{{labels}}}": "3.5",
        f'p2prl_peers{{{labels},role_of_peers="learner"}}': "1",
        f'p2prl_groups{{{labels},state="verified"}}': "2",
        f'p2prl_groups{{{labels},state="rejected"}}': "0",
        f"p2prl_step_wall_time{{{labels}}}": "4",
        f"p2prl_weight_bytes_sent_total{{{labels}}}": "7",
        f'p2prl_evaluation_pass_at_k{{{labels},task="my task"}}': "0.5",
        f"p2prl_evaluation_version{{{labels}}}": "3",
        f'p2prl_reward_mean{{{labels},task="my task"}}': "0.25",
        f'p2prl_reward_part_mean{{{labels},task="my task",part="number"}}': "0.125",
        'p2prl_running{role="learner",run="",seat=""}': "0.0",
        'p2prl_tokens_per_s{role="learner",run="",seat=""}': "+Inf",
    }
    assert text.count("# TYPE p2prl_running gauge") == 1
    assert "# TYPE p2prl_weight_bytes_sent_total counter" in text
    names = re.findall(r"^# TYPE (\w+) ", text, re.MULTILINE)
    assert re.findall(r"^# HELP (\w+) \S", text, re.MULTILINE) == names == sorted(set(names))
    assert {sample.partition("{")[0] for sample in samples} == set(names)
    assert "192.0.2.1" not in text
    assert "12D3KooW" not in text
    assert prometheus_text([]) == ""


def test_a_description_stays_on_its_line_whatever_a_key_holds() -> None:
    """A line feed in HELP would begin a line that is no sample, and the scrape would fail as a whole."""
    text = prometheus_text([{"a\nb\\c": 1, 'd"e': 2}])
    lines = text.splitlines()
    assert r"# HELP p2prl_a_b_c The status file's a\nb\\c (docs/metrics.md)." in lines
    assert "# HELP p2prl_d_e The status file's d\"e (docs/metrics.md)." in lines, "quotation marks stay in HELP"
    assert all(re.match(r"# (HELP|TYPE) \w+ \S|p2prl_\w+\{.*\} \S+$", line) for line in lines)


def test_the_bucket_of_staleness_is_a_label() -> None:
    text = prometheus_text([{"stale/1-4/ess": 0.5, "stale/257+/ess": 0.25}])
    assert dict(re.findall(r'^p2prl_stale_ess\{.*bucket="([^"]+)"\} (\S+)$', text, re.MULTILINE)) == {
        "1-4": "0.5",
        "257+": "0.25",
    }


def test_metrics_answer_this_machine_alone_and_at_one_path() -> None:
    with metrics_server(0, lambda: "p2prl_running 1\n") as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{server.server_address[1]}"

        def status(path: str, host: str | None = None) -> int:
            request = urllib.request.Request(url + path, headers={} if host is None else {"Host": host})
            try:
                with urllib.request.urlopen(request, timeout=60) as answer:
                    assert answer.read() == b"p2prl_running 1\n"
                    return int(answer.status)
            except urllib.error.HTTPError as error:
                with error:
                    return error.code

        try:
            assert status("/metrics") == 200
            assert status("/metrics", "localhost:9464") == 200
            assert status("/metrics", "evil.example:9464") == 421
            assert status("/") == 404
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("panel", json.loads((ROOT / "docs" / "grafana.json").read_text())["panels"])
def test_the_dashboard_asks_for_keys_of_status_files(panel: dict[str, object]) -> None:
    documented = set(re.findall(r"`([a-z_]+)`", (ROOT / "docs" / "metrics.md").read_text()))
    (target,) = panel["targets"]  # type: ignore[misc]
    (name,) = re.findall(r"p2prl_([a-z_]+)", target["expr"])  # type: ignore[has-type]
    assert name.removesuffix("_total") in documented | {"last_report_timestamp_seconds"}
    assert f"p2prl_{name}" == family_of(name.removesuffix("_total")).name


def test_every_number_of_a_workers_status_file_has_a_description_of_its_own() -> None:
    """Of a learner's, whose keys are those of metrics.jsonl, the description may name the page."""
    page = (ROOT / "docs" / "metrics.md").read_text()
    sections = [part for part in page.split("\n## ") if re.match(r"status.json of a (volunteer|validator)", part)]
    assert len(sections) == 2
    rows = re.findall(r"^\| (`[^|]+) \| ([^|]*) \|", "\n".join(sections), re.MULTILINE)
    counted = {key for keys, unit in rows if unit for key in re.findall(r"`(\w+)`", keys)}
    assert len(counted) > 25
    assert counted - {"time", "fetching"} <= DESCRIBED


def test_what_a_learner_foresaw_and_what_came_are_gauges_with_descriptions() -> None:
    figures = {"plan/realised": 0.71, "plan/predicted_utilisation": 0.8, "plan/low": 0.7, "plan/high": 0.9}
    text = prometheus_text([{"role": "learner", **figures, "plan/error": -0.04}])
    samples = dict(re.findall(r"^p2prl_plan_(\w+)\{.*\} (\S+)$", text, re.MULTILINE))
    assert samples == {
        "realised": "0.71", "predicted_utilisation": "0.8", "low": "0.7", "high": "0.9", "error": "-0.04",
    }  # fmt: skip
    assert {f"plan/{name}" for name in samples} <= DESCRIBED
