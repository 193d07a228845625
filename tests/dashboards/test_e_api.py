"""Calls to Grafana against a contract written by hand, over real HTTP, to a server that answers in
Grafana's words.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import PackageNotFoundError, files, version
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from optics.errors import Garbled, Missing, Refused, TestbedError, Unreachable, Usage
from orchestrator.cli.main import run
from orchestrator.telemetry import provisioning
from orchestrator.telemetry.grafana import Annotation, GrafanaApi

CONTRACT: dict[str, dict[str, Any]] = json.loads(
    Path(__file__).with_name("contract.json").read_text()
)["calls"]
TYPES = {"string": str, "object": dict, "array": list, "integer": int, "boolean": bool}
TOKEN = "glsa_0123456789abcdefABCDEF"


@dataclass
class Request:
    method: str
    path: str
    token: str
    body: Any

    @property
    def call(self) -> str:
        """The line of the contract it belongs to."""
        for line in CONTRACT:
            method, _, path = line.partition(" ")
            if method == self.method and re.fullmatch(
                re.sub(r"\{\w+\}", "[^/]+", f"/api{path}"), self.path
            ):
                return line
        raise AssertionError(f"{self.method} {self.path} is not in the contract")


@dataclass
class Server:
    """Answers like Grafana 13, unless `emit` has another answer for a call: (status, body)."""

    url: str = ""
    heard: list[Request] = field(default_factory=list)
    emit: dict[str, tuple[int, Any]] = field(default_factory=dict)

    def answer(self, request: Request) -> tuple[int, Any]:
        if request.call in self.emit:
            return self.emit[request.call]
        if CONTRACT[request.call].get("auth", True) and request.token != f"Bearer {TOKEN}":
            return 401, {
                "message": "Invalid API key",
                "messageId": "api-key.invalid",
                "statusCode": 401,
            }
        match request.call:
            case "GET /health":
                return 200, {"database": "ok", "version": "13.2.3", "commit": "none"}
            case "GET /folders/{folder_uid}":
                return 404, {"message": "folder not found", "status": "not-found"}
            case "POST /folders":
                return 200, {"id": 1, "uid": request.body["uid"], "title": request.body["title"]}
            case "GET /datasources/uid/{uid}":
                return 404, {"message": "Data source not found"}
            case "POST /datasources":
                return 200, {"id": 1, "message": "Datasource added", "name": request.body["name"]}
            case "PUT /datasources/uid/{uid}":
                return 200, {"id": 1, "message": "Datasource updated", "name": request.body["name"]}
            case "GET /datasources/uid/{uid}/health":
                return 200, {
                    "status": "OK",
                    "message": "datasource is working. 12 measurements found",
                }
            case "POST /dashboards/db":
                uid = request.body["dashboard"]["uid"]
                return 200, {
                    "id": 1,
                    "uid": uid,
                    "url": f"/d/{uid}/x",
                    "status": "success",
                    "version": 1,
                }
            case "POST /annotations":
                return 200, {"message": "Annotation added", "id": 42}
        raise AssertionError(request.call)


@pytest.fixture
def server() -> Iterator[Server]:
    notified = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            length = int(self.headers.get("Content-Length", 0))
            data = self.rfile.read(length)
            is_json = "json" in self.headers.get("Content-Type", "") and data
            request = Request(
                self.command,
                self.path,
                self.headers.get("Authorization", ""),
                json.loads(data) if is_json else data,
            )
            notified.heard.append(request)
            status, body = notified.answer(request)
            text = (body if isinstance(body, str) else json.dumps(body)).encode()
            self.send_response(status)
            self.send_header(
                "Content-Type", "text/html" if isinstance(body, str) else "application/json"
            )
            self.send_header("Content-Length", str(len(text)))
            if status in (301, 302):
                self.send_header("Location", "https://elsewhere.invalid/")
            self.end_headers()
            self.wfile.write(text)

        do_POST = do_PUT = do_GET

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        notified.url = f"http://127.0.0.1:{http.server_address[1]}"
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield notified
        http.shutdown()
        thread.join()


def against(request: Request) -> list[str]:
    """What of a request is not as the contract says."""
    wanted = {key: kind for key, kind in CONTRACT[request.call].items() if key != "auth"}
    body = request.body or {}
    required = {key for key in wanted if not key.endswith("?")}
    found = [f"{request.call}: no {key}" for key in sorted(required - body.keys())]
    known = {key.removesuffix("?"): kind for key, kind in wanted.items()}
    for key, value in body.items():
        if key not in known:
            found.append(f"{request.call}: {key} is not known")
        elif type(value) is not TYPES[known[key]]:
            found.append(f"{request.call}: {key} is {value!r}")
    return found


def everything(server: Server) -> list[Request]:
    """Every call there is, made."""
    grafana = GrafanaApi(server.url, TOKEN)
    provisioning.push(grafana, influx_url="http://influx:8086", influx_token="secret")
    server.emit["GET /datasources/uid/{uid}"] = (200, {"uid": "testbed-influx", "readOnly": False})
    provisioning.push(grafana, influx_url="http://influx:8086")
    grafana.annotate(Annotation("hello", 1_795_000_000_000))
    return list(server.heard)


def test_every_call_is_as_the_contract_says_and_every_line_of_it_is_called(server: Server) -> None:
    heard = everything(server)
    assert not [wrong for request in heard for wrong in against(request)]
    assert {request.call for request in heard} == set(CONTRACT)
    assert {request.token for request in heard} == {f"Bearer {TOKEN}"}
    assert not any(
        value is None
        for request in heard
        if isinstance(request.body, dict)
        for value in request.body.values()
    )


def test_a_body_that_breaks_the_contract_is_noticed() -> None:
    wrong = Request(
        "POST", "/api/annotations", "", {"tags": ["x"], "text": "y", "time": 1.5, "panelId": None}
    )
    assert len(against(wrong)) == 3


def swagger() -> dict[str, Any]:
    path = (
        Path(os.environ.get("TESTBED_GRAFANA_CONTRACTS", "")) / "grafana-http-api-11.4.swagger.json"
    )
    if not path.is_file():
        pytest.skip(
            "not compared with Grafana's full HTTP contract: TESTBED_GRAFANA_CONTRACTS names no folder of it"
        )
    read: dict[str, Any] = json.loads(path.read_text())
    return read


def test_the_contract_agrees_with_grafanas_own(server: Server) -> None:
    full = swagger()
    for request in everything(server):
        method, _, path = request.call.partition(" ")
        operation = full["paths"][path][method.lower()]
        schemas = [
            each["schema"] for each in operation.get("parameters", []) if each["in"] == "body"
        ]
        assert bool(schemas) == bool(request.body), request.call
        for each in schemas:
            jsonschema.validate(request.body, {**each, "definitions": full["definitions"]})
            named = full["definitions"][each["$ref"].rpartition("/")[2]]["properties"]
            assert request.body.keys() <= named.keys(), request.call


def test_the_library_is_the_maintained_one_and_nothing_overwrote_it() -> None:
    assert version("grafana-api-sdk").startswith("0.9.")
    assert "grafana_api/model.py" in {str(file) for file in files("grafana-api-sdk") or ()}
    for other in ("grafana-api", "grafana-client", "urllib3-future"):
        with pytest.raises(PackageNotFoundError):
            version(other)


def test_what_is_pushed_is_what_is_committed(server: Server) -> None:
    done = provisioning.push(GrafanaApi(server.url, TOKEN))
    sent = {
        r.body["dashboard"]["uid"]: r.body for r in server.heard if r.call == "POST /dashboards/db"
    }
    assert {uid: body["dashboard"] for uid, body in sent.items()} == provisioning.read_dashboards()
    assert all(body["overwrite"] and body["folderUid"] == "testbed" for body in sent.values())
    assert (
        done.pages["testbed-live"] == "/d/testbed-live/x"
        and done.version == "13.2.3"
        and done.source == "none"
    )


def test_a_data_source_from_files_is_left_alone(server: Server) -> None:
    server.emit["GET /datasources/uid/{uid}"] = (200, {"uid": "testbed-influx", "readOnly": True})
    assert (
        provisioning.push(GrafanaApi(server.url, TOKEN), influx_url="http://influx:8086").source
        == "kept"
    )
    assert not [r for r in server.heard if r.method == "PUT"]


def test_a_data_source_that_does_not_work_is_told(server: Server) -> None:
    server.emit["GET /datasources/uid/{uid}/health"] = (
        400,
        {"status": "ERROR", "message": "connection refused"},
    )
    assert provisioning.push(GrafanaApi(server.url, TOKEN)).source_answer == "connection refused"


def refused(server: Server, call: str, status: int, body: Any) -> TestbedError:
    server.emit[call] = (status, body)
    with pytest.raises(TestbedError) as caught:
        provisioning.push(GrafanaApi(server.url, TOKEN), influx_url="http://influx:8086")
    assert server.url in str(caught.value) and TOKEN not in f"{caught.value} {caught.value.hint}"
    return caught.value


def test_a_wrong_token_is_refused_with_what_to_do(server: Server) -> None:
    with pytest.raises(
        Refused, match=r"refused to read the folder: 401, Invalid API key"
    ) as caught:
        provisioning.push(GrafanaApi(server.url, "glsa_wrong"))
    assert "TESTBED_GRAFANA_TOKEN" in caught.value.hint and "glsa_wrong" not in str(caught.value)


def test_every_refusal_names_the_server_the_call_and_grafanas_words(server: Server) -> None:
    error = refused(
        server, "POST /dashboards/db", 400, {"message": "Cannot save provisioned dashboard"}
    )
    assert isinstance(
        error, Refused
    ) and "store the dashboard testbed-demand: 400, Cannot save prov" in str(error)
    assert error.hint == "it came from files: change it there"
    del server.emit["POST /dashboards/db"]
    error = refused(
        server, "POST /datasources", 403, {"message": "You'll need additional permissions"}
    )
    assert "role Editor" in error.hint


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (200, "<html>a login page</html>", Garbled),
        (200, [], Garbled),
        (200, "7", Garbled),
        (302, "moved", Refused),
        (502, "<html>bad gateway</html>", Refused),
        (500, {}, Refused),
    ],
    ids=["page", "empty list", "number", "moved", "gateway", "empty object"],
)
def test_what_is_no_answer_of_grafana_is_an_error_of_ours(
    server: Server, status: int, body: Any, kind: type[Exception]
) -> None:
    assert isinstance(refused(server, "GET /health", status, body), kind)


def test_a_grafana_too_old_is_said(server: Server) -> None:
    error = refused(server, "GET /health", 200, {"version": "9.5.21"})
    assert isinstance(error, Missing) and "is Grafana 9.5.21" in str(error)


def test_nobody_there_is_unreachable_and_asked_once() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(Unreachable, match="wanted to read its version, no answer") as refusal:
            GrafanaApi(url, TOKEN).version()
        assert refusal.value.hint.startswith("start Grafana, or correct --url")
        silent.listen()
        with pytest.raises(Unreachable, match=r"waited 0.2 s"):
            GrafanaApi(url, TOKEN, timeout_s=0.2).version()


@pytest.mark.parametrize(
    "url",
    [
        "grafana.lab:3000",
        "http://",
        "http://a b:3000",
        "http://grafana:99999",
        "http://grafana:x",
        "http://ann:pw@grafana:3000",
        "http://grafana/?x=1",
    ],
)
def test_a_url_that_is_none_or_holds_secrets_is_refused(url: str) -> None:
    with pytest.raises(Usage) as caught:
        GrafanaApi(url, TOKEN)
    assert "pw" not in str(caught.value)


def test_a_token_that_would_break_the_header_is_refused() -> None:
    with pytest.raises(Usage) as caught:
        GrafanaApi("http://grafana:3000", "glsa_x\r\nX-Evil: 1")
    assert "Evil" not in str(caught.value)


# --- the command line


def test_push_and_note_from_the_command_line(
    server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TESTBED_GRAFANA_TOKEN", TOKEN)
    assert (
        run(["telemetry", "grafana", "push", "--url", server.url, "--influx", "http://influx:8086"])
        == 0
    )
    output = capsys.readouterr().out
    assert (
        f"{server.url}/d/testbed-live/x" in output
        and "Grafana 13.2.3" in output
        and TOKEN not in output
    )
    assert (
        run(
            [
                "telemetry",
                "grafana",
                "note",
                "cleaned a connector",
                "--url",
                server.url,
                "--at",
                "2026-11-21T14:03:00+00:00",
                "--json",
            ]
        )
        == 0
    )
    assert json.loads(capsys.readouterr().out)["data"] == {
        "id": 42,
        "time_ms": 1795269780000,
        "end_ms": None,
    }
    assert server.heard[-1].body["tags"] == ["testbed", "testbed-note"]
    assert server.heard[-1].body["timeEnd"] == server.heard[-1].body["time"]


def test_what_is_missing_or_wrong_on_the_command_line_is_named(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    for argv, output in (
        (["push"], "--url is missing"),
        (["push", "--url", server.url], "--token is missing"),
        (["note", " ", "--url", server.url, "--token", TOKEN], "the note is empty"),
        (
            ["note", "x", "--url", server.url, "--token", TOKEN, "--at", "noon"],
            "'noon' is not a time",
        ),
        (
            ["push", "--url", server.url, "--token", TOKEN, "--influx", "influx:8086"],
            "--influx must be http",
        ),
    ):
        assert run(["telemetry", "grafana", *argv]) == 2
        assert output in capsys.readouterr().err
    assert not server.heard


# --- files


def test_provision_writes_what_grafana_reads(tmp_path: Path) -> None:
    import yaml

    out = tmp_path / "out"
    command = [
        sys.executable,
        "-m",
        "orchestrator.cli.main",
        "telemetry",
        "grafana",
        "provision",
        "--out",
        out,
        "--json",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    names = {str(Path(file).relative_to(out)) for file in json.loads(done.stdout)["data"]["files"]}
    assert names == {
        "provisioning/datasources/testbed.yaml",
        "provisioning/dashboards/testbed.yaml",
        *(f"dashboards/{uid}.json" for uid in provisioning.read_dashboards()),
    }
    (source,) = yaml.safe_load((out / "provisioning/datasources/testbed.yaml").read_text())[
        "datasources"
    ]
    assert (
        source["uid"] == provisioning.SOURCE_UID and source["jsonData"]["timeInterval"] == "100ms"
    )
    pushed = provisioning.source_spec(
        "${TESTBED_INFLUX_URL}", "${TESTBED_INFLUX_DB}", "${TESTBED_INFLUX_TOKEN}"
    )
    assert source == pushed
    (provider,) = yaml.safe_load((out / "provisioning/dashboards/testbed.yaml").read_text())[
        "providers"
    ]
    assert (provider["folder"], provider["folderUid"], provider["allowUiUpdates"]) == (
        "Testbed",
        provisioning.FOLDER_UID,
        False,
    )
    # the program keeps what it writes to itself; Grafana's own user must read these
    assert {oct(path.stat().st_mode & 0o777) for path in out.rglob("*") if path.is_file()} == {
        "0o644"
    }
    assert {
        oct(path.stat().st_mode & 0o777) for path in (out, *out.rglob("*")) if path.is_dir()
    } == {"0o755"}


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TestbedError, match=r"file/.*: (Not a directory|File exists)"):
        provisioning.write_provisioning(tmp_path / "file" / "out")
