"""A tracking server in every bad state: the training goes on, one line says so, and a sync makes it whole."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness.rundir import RunDir
from harness.sync import sync as sync_runs
from tests.faults.contents import content, losses, status_of
from tests.faults.pilots import Pilot, assert_gone, assert_rows_complete, standin, start_pilot
from tests.faults.servers import Answering, Deaf, MlflowServer, Proxy, free_port

pytestmark = [pytest.mark.titan, pytest.mark.faults]
FLUSH = "tracking.flush_s=0.5"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, empty_database: Path) -> Iterator[MlflowServer]:
    directory = tmp_path_factory.mktemp("server")
    shutil.copy(empty_database, directory / "mlflow.db")
    server = MlflowServer(directory)
    yield server
    server.kill()


def assert_finished(pilot: Pilot, steps: int) -> RunDir:
    """The training did not notice anything."""
    assert pilot.wait() == 0, pilot.output
    run = pilot.run
    assert (run.status().state, len(assert_rows_complete(run))) == ("finished", steps)
    assert_gone(run)
    return run


def assert_whole(database: Path, run: RunDir) -> None:
    assert status_of(database, run)[0] == "FINISHED"
    assert losses(database, run) == [(row["step"], row["loss"]) for row in run.rows()]


def assert_told(pilot: Pilot, *, warnings: tuple[int, ...] = (1,)) -> None:
    """One line when it failed first, and at the end what is missing and how to send it."""
    assert pilot.output.count("tracking: ") in warnings, pilot.output
    assert "still to be sent" in pilot.output
    assert re.search(r"python -m harness\.sync \S+   sends them", pilot.output)
    assert "Traceback" not in pilot.output


def sync(run: RunDir, uri: str) -> int:
    return sync_runs([run], uri, everything=True)


def same_content_as_fresh(database: Path, run: RunDir, tmp_path: Path, empty_database: Path) -> None:
    """Nothing doubled, nothing missing: what is there equals a run that was sent once, undisturbed."""
    fresh = tmp_path / "fresh" / "mlflow.db"
    fresh.parent.mkdir()
    shutil.copy(empty_database, fresh)
    assert sync(run, f"sqlite:///{fresh}") == 0
    sent, undisturbed = content(database, run), content(fresh, run)
    for both in (sent, undisturbed):
        both.pop("artifacts")  # a server keeps them behind its own scheme
    assert sent == undisturbed


def test_server_down_before_killed_during_and_back_later(
    server: MlflowServer, tmp_path: Path, prepared_cache: Path, empty_database: Path
) -> None:
    """Two real rehearsals, one without a server and one whose server is killed; and one whose server comes back."""
    down = start_pilot(tmp_path / "down" / "runs", f"tracking.uri={server.uri}", FLUSH, cache=prepared_cache)
    down_run = assert_finished(down, 10)
    assert_told(down)
    server.start()

    killed = start_pilot(tmp_path / "killed" / "runs", f"tracking.uri={server.uri}", FLUSH, "train.steps=150",
                         cache=prepared_cache)  # fmt: skip
    killed.until(lambda run: run.sent().get("servers", [{}])[0].get("rows", 0) >= 5, "rows in MLflow")
    server.kill()
    killed_run = assert_finished(killed, 150)
    assert_told(killed)
    assert status_of(server.database, killed_run)[0] == "RUNNING"
    assert 5 <= len(losses(server.database, killed_run)) < 150

    back = start_pilot(tmp_path / "back" / "runs", f"tracking.uri={server.uri}", FLUSH, *standin(400, 0.1),
                       cache=prepared_cache)  # fmt: skip
    back.until_logged(b"step:  5  loss")
    server.start()
    assert back.wait() == 1  # the stand-in reports no checks
    back_run = back.run
    assert "still to be sent" not in back.output, back.output
    assert len(losses(server.database, back_run)) == 400
    assert_whole(server.database, back_run)
    for run in (down_run, killed_run):
        assert sync(run, server.uri) == 0
        assert_whole(server.database, run)
        before = content(server.database, run)
        assert sync(run, server.uri) == 0
        assert content(server.database, run) == before
        assert {"train.log", "rows.jsonl", "summary.json", "checks.json"} <= {
            Path(file).name for file in server.artifacts.rglob("*") if file.is_file()
        }
    same_content_as_fresh(server.database, killed_run, tmp_path, empty_database)


def test_every_third_request_dropped(
    server: MlflowServer, tmp_path: Path, prepared_cache: Path, empty_database: Path
) -> None:
    ensure(server)
    with Proxy(server.port, drop_third=True) as proxy:
        to_proxy = f"tracking.uri={proxy.uri}"
        pilot = start_pilot(tmp_path / "runs", *standin(200, 0.1), to_proxy, FLUSH, cache=prepared_cache)
        assert pilot.wait() == 1  # the stand-in reports no checks
        if "still to be sent" in pilot.output:
            assert sync(pilot.run, proxy.uri) == 0
        assert proxy.dropped >= 5
    assert_whole(server.database, pilot.run)
    assert len(losses(server.database, pilot.run)) == 200
    same_content_as_fresh(server.database, pilot.run, tmp_path, empty_database)


def test_slow_server_is_waited_for(server: MlflowServer, tmp_path: Path, prepared_cache: Path) -> None:
    ensure(server)
    with Proxy(server.port, delay_s=2.0) as proxy:
        to_proxy = f"tracking.uri={proxy.uri}"
        pilot = start_pilot(tmp_path / "runs", *standin(200, 0.1), to_proxy, FLUSH, cache=prepared_cache)
        assert pilot.wait() == 1
    assert "still to be sent" not in pilot.output, pilot.output
    assert_whole(server.database, pilot.run)


def ensure(server: MlflowServer) -> None:
    if not server.running:
        server.start()


BROKEN: dict[str, Callable[[], object]] = {
    "500": lambda: Answering(500, "<h1>Internal Server Error</h1>"),
    "expired credentials": lambda: Answering(401, '{"error_code": "UNAUTHENTICATED", "message": "token expired"}'),
    "login page": lambda: Answering(200, "<html><body onload='alert(1)'>log in</body></html>"),
    "deaf": Deaf,
    "nobody": lambda: None,
}


@pytest.fixture(scope="module")
def met_broken(tmp_path_factory: pytest.TempPathFactory, prepared_cache: Path) -> Iterator[dict[str, Pilot]]:
    """A pilot for each, all at once. The stand-in trains, for so long that also a tracker on a busy machine tries."""
    root, pilots = tmp_path_factory.mktemp("broken"), {}
    servers = {name: make() for name, make in BROKEN.items()}
    for name, server in servers.items():
        uri = getattr(server, "uri", f"http://127.0.0.1:{free_port()}")
        runs = root / name.replace(" ", "-") / "runs"
        pilots[name] = start_pilot(runs, *standin(200, 0.1), f"tracking.uri={uri}", FLUSH, cache=prepared_cache)
    yield pilots
    for server in servers.values():
        if server is not None:
            server.server_close()


@pytest.mark.parametrize("broken", BROKEN)
def test_server_that_never_works(
    broken: str, met_broken: dict[str, Pilot], tmp_path: Path, empty_database: Path
) -> None:
    pilot = met_broken[broken]
    assert pilot.wait() == 1  # the stand-in reports no checks
    run = pilot.run
    assert (run.status().state, len(assert_rows_complete(run))) == ("finished", 200)
    assert_gone(run)
    assert_told(pilot, warnings=(0, 1) if broken == "deaf" else (1,))  # it may not have given up on the deaf one yet
    if broken == "expired credentials":
        assert "token expired" in pilot.output
    shutil.copy(empty_database, tmp_path / "mlflow.db")
    assert sync(run, f"sqlite:///{tmp_path / 'mlflow.db'}") == 0
    assert_whole(tmp_path / "mlflow.db", run)
