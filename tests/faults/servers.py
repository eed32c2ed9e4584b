"""Tracking servers that are down, slow, broken or deaf: a real ``mlflow server``, and what stands between it and us."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.conftest import environment

START_S = 120.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class MlflowServer:
    """``mlflow server`` on loopback, which can be killed and started again on the same database and port."""

    def __init__(self, directory: Path) -> None:
        self.database, self.artifacts, self.log = (
            directory / "mlflow.db",
            directory / "artifacts",
            directory / "server.txt",
        )
        self.port = free_port()
        self.uri = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        return self._process is not None

    def start(self) -> None:
        """Return when it answers."""
        arguments = ["--host", "127.0.0.1", "--port", str(self.port), "--workers", "1"]
        arguments += ["--backend-store-uri", f"sqlite:///{self.database}"]
        arguments += ["--artifacts-destination", str(self.artifacts)]
        settings = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "mlflow", "server", *arguments],
                stdout=log, stderr=subprocess.STDOUT, env=environment() | settings,
                start_new_session=True,
            )  # fmt: skip
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            try:
                with urllib.request.urlopen(f"{self.uri}/health", timeout=2):
                    return
            except OSError:
                time.sleep(0.1)
        raise TimeoutError(self.log.read_text())

    def kill(self) -> None:
        """SIGKILL to the server and its workers."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None


class Background(ThreadingHTTPServer):
    """A server on a free port of loopback that answers from a thread of its own until it is closed."""

    daemon_threads = True

    def __init__(self, handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self.uri = f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def server_close(self) -> None:
        self.shutdown()  # a loop that is left running on a closed socket spins, and takes a core from all later tests
        super().server_close()


class Proxy(Background):
    """Passes requests on; each third one is dropped, before or after it reached the server, or all are put off."""

    def __init__(self, target_port: int, *, drop_third: bool = False, delay_s: float = 0.0) -> None:
        self.target_port, self.drop_third, self.delay_s = target_port, drop_third, delay_s
        self.requests = self.dropped = 0
        self.lock = threading.Lock()
        super().__init__(_Passing)

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # clients that are gone


class _Passing(BaseHTTPRequestHandler):
    server: Proxy

    def log_message(self, *_: object) -> None:
        pass

    def _body(self) -> bytes:
        if "chunked" not in (self.headers.get("Transfer-Encoding") or ""):
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _pass_on(self) -> None:
        body = self._body()
        with self.server.lock:
            self.server.requests += 1
            number = self.server.requests
        drop = self.server.drop_third and number % 3 == 0
        time.sleep(self.server.delay_s)
        if drop and number % 2:
            return self._drop()
        connection = http.client.HTTPConnection("127.0.0.1", self.server.target_port, timeout=30)
        own = ("host", "connection", "content-length", "transfer-encoding")
        headers = {name: value for name, value in self.headers.items() if name.lower() not in own}
        connection.request(self.command, self.path, body, headers)
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        if drop:  # the server has done it, the client does not hear of it
            return self._drop()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("transfer-encoding", "content-length", "connection", "date", "server"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
        return None

    def _drop(self) -> None:
        self.server.dropped += 1
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _pass_on


class Answering(Background):
    """Answers every request with the same status and text: 500s, expired credentials, a login page."""

    def __init__(self, status: int, text: str) -> None:
        self.status, self.text = status, text
        super().__init__(_Same)


class _Same(BaseHTTPRequestHandler):
    server: Answering

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        content = self.server.text.encode()
        self.send_response(self.server.status)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _answer


class Deaf:
    """Accepts connections and never answers."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.uri = f"http://127.0.0.1:{self._socket.getsockname()[1]}"

    def server_close(self) -> None:
        self._socket.close()
