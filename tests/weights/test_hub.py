"""Weights by their id on the hub: the cache first, then the network (no torch)."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from harness.manifest import make_manifest
from harness.plan import ConfigError
from harness.preflight import describe_weights, refuse_impossible
from harness.shapes import ModelShape
from tests.weights.checkpoints import write_config, write_sparse
from tests.weights.test_initial import narrow, plan, pretrained

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the hub, and no network."""
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return tmp_path / "hub"


def publish(cache: Path, shape: ModelShape, repository: str = "org/tiny") -> Path:
    """Lay a model into the cache as the hub's library does: blobs, links to them below the commit, a branch."""
    home = cache / ("models--" + repository.replace("/", "--"))
    write_sparse(home / "blobs", shape)
    snapshot = home / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    for file in ("config.json", "model.safetensors"):
        (snapshot / file).symlink_to(f"../../blobs/{file}")
    (home / "refs").mkdir()
    (home / "refs" / "main").write_text(COMMIT)
    return snapshot


def test_a_hub_id_is_found_in_the_cache_and_its_commit_recorded(tmp_path: Path, cache: Path) -> None:
    snapshot = publish(cache, narrow())
    for revision in (None, "main", COMMIT):
        made = plan(tmp_path, init=pretrained("org/tiny", revision=revision))
        refuse_impossible(made)
        assert (made.initial.directory, made.initial.commit) == (snapshot, COMMIT)
        assert made.initial.describe() == "weights from org/tiny at 0123456789ab"
    record = make_manifest(made, run_name="", command=[], env={}, argv=[])["init"]
    assert (record["repository"], record["commit"]) == ("org/tiny", COMMIT)
    (snapshot / "model.safetensors").unlink()
    assert describe_weights(plan(tmp_path, init=pretrained("org/tiny"))).verdict == "skipped"


def test_a_hub_id_that_cannot_be_had_says_what_to_type(tmp_path: Path, cache: Path) -> None:
    with pytest.raises(ConfigError) as error:
        plan(tmp_path, init=pretrained("org/tiny", revision="v1"))
    first, second = str(error.value).splitlines()
    assert first.startswith("init.path=org/tiny init.revision=v1 is no directory here, not in the Hugging Face cache")
    assert "hf download org/tiny --revision v1; or name a directory: init.path=DIR" in second


def test_without_the_hubs_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ConfigError, match="is not installed\n  pip install huggingface_hub, or name a directory"):
        plan(tmp_path, init=pretrained("org/tiny"))


def test_a_dry_run_downloads_nothing(tmp_path: Path, cache: Path) -> None:
    made = plan(tmp_path, init=pretrained("org/tiny"), dry_run=True)
    assert (made.initial.directory, made.initial.place) == (None, "org/tiny")
    found = describe_weights(made)
    assert (found.verdict, found.text) == (
        "skipped",
        "weights from org/tiny: not in the cache, downloaded when a run starts",
    )


def test_config_is_fetched_and_compared_before_the_weights(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a network: the small files first, gigabytes only for weights whose config.json fits."""
    import huggingface_hub

    asked: list[list[str]] = []

    def download(
        repository: str, revision: str | None = None, local_files_only: bool = False, allow_patterns=()
    ) -> str:
        if local_files_only and not asked:
            raise huggingface_hub.errors.LocalEntryNotFoundError("not there")
        place = cache / COMMIT
        if not local_files_only:
            asked.append(list(allow_patterns))
            place.mkdir(parents=True, exist_ok=True)
            if "*.safetensors" in allow_patterns:
                write_sparse(place, narrow())
            else:
                write_config(place, narrow())
        return str(place)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    made = plan(tmp_path, init=pretrained("org/tiny"))
    assert [("*.safetensors" in patterns) for patterns in asked] == [False]
    refuse_impossible(made)
    assert [("*.safetensors" in patterns) for patterns in asked] == [False, True]
    assert json.loads((cache / COMMIT / "config.json").read_text())["hidden_size"] == 64
