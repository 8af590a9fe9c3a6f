# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""`relax conformance`: what it prints and how it ends. What the checks find is tested beside them."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from relax.backends.conformance import media
from relax.entrypoints.conformance import main, model_folder

KNOWN = {"/server_info": {"version": "1", "weight_version": "default"}, "/model_info": {}, "/health": {}}


class Little(BaseHTTPRequestHandler):
    """Knows /server_info, /model_info and /health, and nothing else."""

    def do_GET(self) -> None:
        body = json.dumps(KNOWN.get(self.path, {"error": "unknown"})).encode()
        self.send_response(200 if self.path in KNOWN else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.do_GET()

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def url():
    server = HTTPServer(("127.0.0.1", 0), Little)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_line_a_check_and_a_result(url, capsys):
    words = ["--only", "route-is-not", "id-is-echoed", "plain-forward", "weights-come-from"]
    assert main([url, *words]) == 4
    *lines, last = capsys.readouterr().out.splitlines()
    verdicts = {line.split("  ")[0].strip(): line for line in lines if line.startswith(("hon", "fail", "not asked"))}
    assert verdicts["honoured"].split()[1:] == ["control", "an-unknown-route-is-not-found"]
    assert "HTTP 404" in verdicts["fails"] and "the-request-id-is-echoed" in verdicts["fails"]
    assert "--update-weights" in verdicts["not asked"]
    result = json.loads(last.removeprefix("RESULT "))
    assert (result["passed"], result["failed"], result["not_asked"]) == (1, 2, 1)


def test_when_all_is_honoured_the_exit_code_is_zero(url, capsys):
    assert main([url, "--only", "an-unknown-route"]) == 0
    assert '"failed": 0' in capsys.readouterr().out


def test_a_server_that_is_not_there_is_told(capsys):
    assert main(["http://127.0.0.1:9"]) == 5
    assert capsys.readouterr().err.startswith("EngineLost: engine http://127.0.0.1:9 lost in /server_info")


@pytest.mark.parametrize(
    ("words", "told"), [([], "give the URL"), (["http://x", "--only", "zebra"], "no check has that in its name")]
)
def test_wrong_words_are_answered_with_what_to_do(words, told, capsys):
    assert main(words) == 2
    assert told in capsys.readouterr().err


def test_the_list_needs_no_server(capsys):
    assert main(["--list", "--only", "media/"]) == 0
    shown = [line.split()[:2] for line in capsys.readouterr().out.splitlines()]
    assert shown == [["media", check.name] for check in media.CHECKS] and len(shown) >= 8


def test_the_servers_own_folder_is_taken_where_it_is_readable(tmp_path):
    assert model_folder(None, str(tmp_path)) is None
    (tmp_path / "config.json").write_text("{}")
    assert model_folder(None, str(tmp_path)) == tmp_path
    assert model_folder(Path("given"), str(tmp_path)) == Path("given")
