# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""A small server with the interface of the Hugging Face Hub, on loopback."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

Files = Mapping[str, bytes]
COMMIT = "c0ffee" + "0" * 34


class HubServer:
    """Repositories by kind and name; `fetched` lists the files that were asked for."""

    def __init__(self, repositories: Mapping[tuple[str, str], Files]) -> None:
        self.repositories = repositories
        self.fetched: list[str] = []
        self.url = ""

    def answer(self, handler: BaseHTTPRequestHandler, *, body: bool) -> None:
        path = unquote(urlsplit(handler.path).path).strip("/").split("/")
        if path[:1] == ["api"]:
            if path[1] in ("models", "datasets"):
                self._api(handler, path[1].removesuffix("s"), path[2:])
            else:
                _send_json(handler, {})
            return
        kind = "dataset" if path[0] == "datasets" else "model"
        owner, name, _, commit, *file = path[1:] if kind == "dataset" else path
        assert commit == COMMIT
        content = self.repositories[kind, f"{owner}/{name}"]["/".join(file)]
        if body:
            self.fetched.append("/".join(file))
        tag = hashlib.sha1(content).hexdigest()
        _send(handler, content if body else b"", {"X-Repo-Commit": COMMIT, "ETag": f'"{tag}"'}, len(content))

    def _api(self, handler: BaseHTTPRequestHandler, kind: str, rest: list[str]) -> None:
        if not rest:  # the search
            _send_json(handler, [{"id": name} for of, name in self.repositories if of == kind])
            return
        files = self.repositories.get((kind, "/".join(rest[:2])))
        if files is None:
            _send_json(handler, {"error": "Repository not found"}, 404, {"X-Error-Code": "RepoNotFound"})
        elif "tree" in rest:
            tree = [{"type": "file", "path": n, "size": len(c), "oid": n} for n, c in files.items()]
            _send_json(handler, tree)
        else:
            facts = {"id": "/".join(rest[:2]), "sha": COMMIT, "siblings": [{"rfilename": name} for name in files]}
            _send_json(handler, facts | {"private": False, "gated": False, "downloads": 0, "likes": 0, "tags": []})


def _send_json(
    handler: BaseHTTPRequestHandler, value: object, status: int = 200, headers: Mapping[str, str] = {}
) -> None:
    body = json.dumps(value).encode()
    _send(handler, body, {"Content-Type": "application/json", **headers}, len(body), status)


def _send(
    handler: BaseHTTPRequestHandler, body: bytes, headers: Mapping[str, str], length: int, status: int = 200
) -> None:
    handler.send_response(status)
    for name, value in headers.items():
        handler.send_header(name, value)
    handler.send_header("Content-Length", str(length))
    handler.end_headers()
    handler.wfile.write(body)


@contextmanager
def serving(repositories: Mapping[tuple[str, str], Files]) -> Iterator[HubServer]:
    hub = HubServer(repositories)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            hub.answer(self, body=True)

        def do_HEAD(self) -> None:
            hub.answer(self, body=False)

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
