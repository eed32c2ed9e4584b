"""Twelve planted secrets, in environment, configuration, URI and log: found nowhere, byte by byte."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from harness.privacy import MASK
from tests.faults.contents import content
from tests.faults.pilots import Pilot, assert_gone, assert_rows_complete, log_of, start_pilot

pytestmark = [pytest.mark.titan, pytest.mark.faults]

# Put together here, so that no scanner takes this file for a leak.
IN_ENVIRONMENT = {
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMIK7MDENG" + "bPxRfiCYEXAMPLEKEY",
    "HF_TOKEN": "hf_" + "QwErTyUiOpAsDfGhJkLzXcVbNm012345",
    "MLFLOW_TRACKING_PASSWORD": "correct-horse-battery" + "-staple",
    "MY_SERVICE_SECRET": "s3rv1ce" + "S3cretValue",
}
IN_CONFIG = {"NEURON_REGISTRY_TOKEN": "registry" + "Tok3nValue99"}
IN_URI = "ur1P4ssw0rd" + "InTheAddress"
IN_LOG = {
    "AWS key id": "AKIA" + "IOSFODNN7EXAMPLE",
    "GitHub": "ghp_" + "a1B2c3D4e5F6" * 3,
    "bearer": "abcDEF123456" + "ghiJKL789012",
    "web token": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dBjftJeZ4CVP" + "mB92K27uhbUJU1p1r",
    "private key": "MIIEpAIBAAKCAQEA7" + "fG3hJkL0PqRsTuVwXyZ",
    "error": "hf_" + "InTheTracebackOfAnError0123456789",
}
ALL = [*IN_ENVIRONMENT.values(), *IN_CONFIG.values(), IN_URI, *IN_LOG.values()]

TEXT = f"""\
innocent first line
boto3 uses {IN_LOG["AWS key id"]} with {IN_ENVIRONMENT["AWS_SECRET_ACCESS_KEY"]}
git clone https://x:{IN_LOG["GitHub"]}@github.com/org/repo
> Authorization: Bearer {IN_LOG["bearer"]}
session={IN_LOG["web token"]}
connecting to http://tracker:{IN_URI}@127.0.0.1:9/ as {IN_ENVIRONMENT["MLFLOW_TRACKING_PASSWORD"]}
loaded {json.dumps({"secret": IN_ENVIRONMENT["MY_SERVICE_SECRET"], "registry": IN_CONFIG["NEURON_REGISTRY_TOKEN"]})}
-----BEGIN RSA PRIVATE KEY-----
{IN_LOG["private key"]}
-----END RSA PRIVATE KEY-----
innocent last line"""


def holders(directory: Path) -> list[str]:
    """Files below ``directory`` that hold one of the secrets, in their bytes or their names."""
    found = []
    for file in directory.rglob("*"):
        data = file.read_bytes() if file.is_file() else b""
        found += [f"{file}: {secret}" for secret in ALL if secret.encode() in data or secret in file.name]
    return found


def start(tmp_path: Path, cache: Path, database: Path, plant: str, *more: str) -> Pilot:
    text, runs = tmp_path / "planted.txt", tmp_path / "runs"
    text.write_text(TEXT)
    runs.mkdir()
    shutil.copy(database, runs / "mlflow.db")
    env = IN_ENVIRONMENT | {"PLANT_TEXT": str(text), "PLANT_ERROR": f"401 for token {IN_LOG['error']}"}
    config = [f"platform.env.{name}={value}" for name, value in IN_CONFIG.items()]
    flags = f"train.flags=[--override.imports,tests.faults.plants.{plant}]"
    return start_pilot(runs, flags, "train.steps=5", *config, *more, cache=cache, env=env)


def test_twelve() -> None:
    assert len(set(ALL)) == 12


def test_the_search_finds_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "a").write_text(f"x{IN_URI}y")
    assert holders(tmp_path) == [f"{tmp_path / 'a'}: {IN_URI}"]


def test_no_secret_of_a_training_is_written(tmp_path: Path, prepared_cache: Path, empty_database: Path) -> None:
    pilot = start(tmp_path, prepared_cache, empty_database, "talking_rope")
    assert pilot.wait() == 0, pilot.output
    run = pilot.run
    assert_gone(run)
    assert len(assert_rows_complete(run)) == 5
    assert holders(pilot.runs) == []
    log = log_of(run)
    assert log.count(b"innocent first line") == log.count(b"innocent last line") == 2
    assert run.file("ranks/1.log").read_bytes().count(b"innocent last line") == 2
    assert b"boto3 uses [redacted] with [redacted]\n" in log
    assert run.manifest()["environment"]["HF_TOKEN"] == MASK
    assert run.config()["platform"]["env"]["NEURON_REGISTRY_TOKEN"] == MASK
    assert content(pilot.runs / "mlflow.db", run)["status"] == "FINISHED"


def test_no_secret_of_a_failure_or_an_address_is_written(
    tmp_path: Path, prepared_cache: Path, empty_database: Path
) -> None:
    address = f"tracking.uri=http://tracker:{IN_URI}@127.0.0.1:9"
    pilot = start(tmp_path, prepared_cache, empty_database, "failing_rope", address)
    assert pilot.wait() == 1, pilot.output
    run = pilot.run
    assert_gone(run)
    assert run.status().reason == "rank 1: RuntimeError: 401 for token [redacted]"
    assert "[redacted]" in run.file("error.txt").read_text()
    assert list(run.file("ranks").glob("*/**/error.json")) != []
    assert holders(pilot.runs) == []
    assert [secret for secret in ALL if secret in pilot.output] == []
    assert "127.0.0.1:9 does not answer" in pilot.output
