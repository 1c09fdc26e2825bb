"""A Hugging Face hub on this machine: the calls of one upload, over HTTP, as huggingface_hub makes them."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "hf_test"


class FakeHub(ThreadingHTTPServer):
    """Repositories in memory. Only `TOKEN` may log in, and only to write to repositories of `owner`."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.created: list[dict[str, Any]] = []
        self.files: dict[str, bytes] = {}
        """Contents of the one repository, by path."""
        self.large: dict[str, bytes] = {}
        """Large files, by SHA-256."""
        self.messages: list[str] = []
        """Messages of the commits."""
        self.refuses_large = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: FakeHub

    def do_GET(self) -> None:
        if self.path.startswith("/api/whoami"):
            if self.headers.get("Authorization") == f"Bearer {TOKEN}":
                self._answer(200, {"name": "owner", "type": "user"})
            else:
                self._answer(401, {"error": "Invalid credentials"})
        elif self.path.startswith("/api/models/owner/model"):
            self._answer(200, {"id": "owner/model", "siblings": [], "sha": "0" * 40})
        else:
            self._answer(404, {"error": "Repository not found"})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path == "/api/repos/create":
            wanted = json.loads(body)
            if wanted.get("organization") != "owner":
                self._answer(403, {"error": "You don't have the rights to create a model under this namespace"})
                return
            self.server.created.append(wanted)
            self._answer(200, {"url": f"{self.server.url}/owner/{wanted['name']}"})
        elif "/preupload/" in self.path:
            files = [
                {"path": f["path"], "uploadMode": "lfs" if f["path"].endswith(".safetensors") else "regular",
                 "shouldIgnore": False} for f in json.loads(body)["files"]
            ]  # fmt: skip
            self._answer(200, {"files": files})
        elif self.path.endswith("/info/lfs/objects/batch"):
            objects = [
                {**o, "actions": {"upload": {"href": f"{self.server.url}/lfs/{o['oid']}"}}}
                for o in json.loads(body)["objects"]
            ]
            self._answer(200, {"transfer": "basic", "objects": objects})
        elif "/commit/" in self.path:
            self._commit([json.loads(line) for line in body.splitlines()])
        else:
            self._answer(200, {})

    def do_PUT(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        if self.server.refuses_large:
            self._answer(400, {"error": "no more space for you"})
            return
        self.server.large[self.path.removeprefix("/lfs/")] = data
        self._answer(200, {})

    def _commit(self, lines: list[dict[str, Any]]) -> None:
        for line in lines:
            value = line["value"]
            if line["key"] == "header":
                self.server.messages.append(value["summary"])
            elif line["key"] == "file":
                self.server.files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                self.server.files[value["path"]] = self.server.large[value["oid"]]
        address = f"{self.server.url}/owner/model/commit/{'0' * 40}"
        self._answer(200, {"success": True, "commitOid": "0" * 40, "commitUrl": address, "hookOutput": ""})

    def _answer(self, status: int, document: dict[str, Any]) -> None:
        data = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass


@contextmanager
def fake_hub() -> Iterator[FakeHub]:
    """A hub that serves until the end of the block."""
    hub = FakeHub()
    thread = threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        thread.join()
        hub.server_close()
