"""``python -m harness.server``: a local MLflow server on PostgreSQL, for many pilots that write at once.

Everything lives in one directory: the database's files, the artifacts, the logs, a password made at the first start.
The server runs until Ctrl-C or SIGTERM, and a later start goes on with what is there. For a database, an artifact store
or a user management of your own, start ``mlflow server`` yourself: the pilots only need its URI.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.launch import dying_with_parent
from harness.nodes import free_ports

USER, DATABASE = "pilot", "mlflow"
SYSTEM_USER = "postgres"
"""Who runs PostgreSQL where we are root, as which it refuses to run (Debian's package makes this user)."""
START_S = 120.0
POLL_S = 0.1


class CannotStart(Exception):
    """What is missing, or what went wrong, in a line."""


def postgres_programs() -> Path | None:
    """Directory of initdb and postgres: on PATH, or where Debian keeps them apart, the newest version."""
    if found := shutil.which("initdb"):
        return Path(found).parent
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    return versions[-1].parent if versions else None


def missing() -> list[str]:
    """What has to be installed, each with how."""
    lacks = []
    if postgres_programs() is None:
        lacks.append("PostgreSQL (apt-get install postgresql)")
    if importlib.util.find_spec("psycopg2") is None:
        lacks.append("psycopg2 (pip install '.[cluster]')")
    return lacks


class Postgres:
    """A PostgreSQL of our own, on loopback with a password, in ``folder``."""

    def __init__(self, folder: Path, port: int | None = None) -> None:
        """Make the database where there is none, and start it.

        Raises:
            CannotStart: programs are missing, or the server did not come up.
        """
        programs = postgres_programs()
        if programs is None:
            raise CannotStart(f"missing: {', '.join(missing())}")
        self._programs, self.folder = programs, folder
        self._as = {"user": SYSTEM_USER, "group": SYSTEM_USER, "extra_groups": []} if os.geteuid() == 0 else {}
        self.port = port or free_ports(1)[0]
        folder.mkdir(parents=True, exist_ok=True)
        self._password = self._read_password()
        if not (folder / "data" / "PG_VERSION").exists():
            self._make()
        options = [f"--port={self.port}", "--listen_addresses=127.0.0.1", "--unix_socket_directories="]
        self.process = self._start([str(programs / "postgres"), "-D", str(folder / "data"), *options], "postgres.log")
        self._wait()
        self._make_database()

    @property
    def uri(self) -> str:
        return f"postgresql+psycopg2://{USER}:{self._password}@127.0.0.1:{self.port}/{DATABASE}"

    def connect(self, database: str = DATABASE) -> Any:
        """A psycopg2 connection."""
        import psycopg2

        return psycopg2.connect(
            host="127.0.0.1", port=self.port, user=USER, password=self._password, dbname=database, connect_timeout=5
        )

    def stop(self) -> None:
        """End it in order: SIGINT breaks off its clients' transactions."""
        stop(self.process, signal.SIGINT)

    def _read_password(self) -> str:
        file = self.folder / "password"
        if not file.exists():
            file.touch(mode=0o600)
            file.write_text(secrets.token_hex(16))
            self._own(file)
        return file.read_text().strip()

    def _make(self) -> None:
        data = self.folder / "data"
        shutil.rmtree(data, ignore_errors=True)  # of an initdb that was cut off
        data.mkdir(mode=0o700)
        self._own(data)
        self._run("initdb", "-D", str(data), f"--username={USER}", "--auth=scram-sha-256", "--encoding=UTF8",
                  "--locale=C", f"--pwfile={self.folder / 'password'}", "--no-instructions")  # fmt: skip

    def _own(self, path: Path) -> None:
        if self._as:
            user = pwd.getpwnam(SYSTEM_USER)
            os.chown(path, user.pw_uid, user.pw_gid)

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [str(self._programs / program), *arguments], capture_output=True, text=True, cwd="/", **self._as
        )
        if done.returncode:
            last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
            raise CannotStart(f"{program}: {last[0] if last else f'exit code {done.returncode}'}")

    def _start(self, command: list[str], log: str) -> subprocess.Popen[bytes]:
        with (self.folder / log).open("ab") as output:
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, cwd="/",
                start_new_session=True, **self._as,
            )  # fmt: skip

    def _wait(self) -> None:
        import psycopg2

        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and self.process.poll() is None:
            with contextlib.suppress(psycopg2.OperationalError):
                self.connect("postgres").close()
                return
            time.sleep(POLL_S)
        self.stop()
        raise CannotStart(f"PostgreSQL did not start: {self.folder / 'postgres.log'}")

    def _make_database(self) -> None:
        with contextlib.closing(self.connect("postgres")) as connection:
            connection.autocommit = True
            with connection.cursor() as cursor:
                cursor.execute("select 1 from pg_database where datname = %s", (DATABASE,))
                if cursor.fetchone() is None:
                    cursor.execute(f"create database {DATABASE}")


class MlflowServer:
    """``mlflow server`` on a database, with its artifacts in ``folder``, served to clients that cannot see that."""

    def __init__(
        self, folder: Path, backend: str, *, host: str = "127.0.0.1", port: int | None = None, workers: int = 2
    ) -> None:
        """Start it and wait until it answers.

        Raises:
            CannotStart: it did not come up.
        """
        self.port = port or free_ports(1)[0]
        self.uri = f"http://127.0.0.1:{self.port}"
        artifacts, log = folder / "artifacts", folder / "mlflow.log"
        artifacts.mkdir(parents=True, exist_ok=True)
        names = [] if host == "127.0.0.1" else ["--allowed-hosts", "*"]  # it else refuses what is not asked on loopback
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "mlflow", "server", "--host", host, "--port", str(self.port)),
                    *("--workers", str(workers), "--serve-artifacts"),
                    *("--artifacts-destination", artifacts.resolve().as_uri(), *names),
                ],
                env=os.environ | {"MLFLOW_BACKEND_STORE_URI": backend, "MLFLOW_DISABLE_TELEMETRY": "true"},
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                start_new_session=True, preexec_fn=dying_with_parent(),
            )  # fmt: skip
        deadline = time.monotonic() + START_S
        while not self.answers():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise CannotStart(f"mlflow server did not start: {log}")
            time.sleep(POLL_S)

    def answers(self) -> bool:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.uri}/health", timeout=2.0) as answer:
            return answer.status == 200
        return False

    def stop(self) -> None:
        """End it and its workers."""
        stop(self.process, signal.SIGTERM)


def stop(process: subprocess.Popen[bytes], number: signal.Signals, seconds: float = 15.0) -> None:
    """Ask a process to end, and after a while end all of its session."""
    if process.poll() is None:
        process.send_signal(number)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=seconds)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m harness.server", description=__doc__)
    parser.add_argument("--dir", type=Path, default=Path("runs/.server"), help="where everything lives")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at; 0.0.0.0: every machine may connect")
    parser.add_argument("--port", type=int, default=5000)
    parser.add_argument("--workers", type=int, default=4, help="processes that answer requests")
    options = parser.parse_args(arguments)
    if lacks := missing():
        print(f"harness.server: missing: {', '.join(lacks)}", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGINT))
    with contextlib.ExitStack() as ends:
        try:
            database = Postgres(options.dir.resolve())
            ends.callback(database.stop)
            server = MlflowServer(
                options.dir.resolve(), database.uri, host=options.host, port=options.port, workers=options.workers
            )
            ends.callback(server.stop)
            print(f"MLflow on PostgreSQL in {options.dir}; for pilots on this machine:", flush=True)
            print(
                f"  export MLFLOW_TRACKING_URI={server.uri}     then: python -m harness ... tracking=server", flush=True
            )
            server.process.wait()
            print(f"harness.server: mlflow server has ended: {options.dir / 'mlflow.log'}", file=sys.stderr)
        except CannotStart as error:
            print(f"harness.server: {error}", file=sys.stderr)
        except KeyboardInterrupt:
            return 0
    return 1


if __name__ == "__main__":
    sys.exit(main())
