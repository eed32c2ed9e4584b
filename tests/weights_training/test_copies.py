"""Assets beside an export, and a copy that is verified where it arrives (no torch)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness import export
from harness.paths import load_path


def made(place: Path) -> Path:
    place.mkdir()
    (place / "model.safetensors").write_bytes(bytes(range(256)) * 100)
    (place / "config.json").write_text("{}")
    return place


def test_every_file_arrives_with_size_and_hash(tmp_path: Path) -> None:
    import fsspec

    copied = export.copy_verified(made(tmp_path / "export"), "memory://bucket/run")
    assert [(file.name, file.size) for file in copied] == [("config.json", 2), ("model.safetensors", 25_600)]
    assert copied[0].sha256 == "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
    assert fsspec.filesystem("memory").cat("/bucket/run/config.json") == b"{}"


@pytest.mark.parametrize("fault", ["cut short", "changed"])
def test_a_file_that_arrives_otherwise_is_named(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fsspec.implementations.memory import MemoryFileSystem

    def put(self: MemoryFileSystem, local: str, target: str, **unused: object) -> None:
        data = Path(local).read_bytes()
        damaged = data[:-1] if fault == "cut short" else b"?" + data[1:]
        self.pipe_file(target, damaged if target.endswith("safetensors") else data)

    monkeypatch.setattr(MemoryFileSystem, "put_file", put)
    with pytest.raises(OSError, match=r"model.safetensors arrived as 25,(599|600) bytes, SHA-256 \w{12}, not 25,600"):
        export.copy_verified(made(tmp_path / "export"), "memory://bucket/damaged")


@pytest.mark.parametrize("url", ["nosuch://bucket", "s3://bucket/prefix"])
def test_a_place_that_cannot_be_written_to_is_refused_before_launch(url: str) -> None:
    if url.startswith("s3"):
        try:
            import s3fs  # noqa: F401
        except ImportError:
            pass
        else:
            pytest.skip("s3fs is installed")
    with pytest.raises(ValueError, match="export.copy_to=.*cannot be used: "):
        export.refuse_copy(url)
    export.refuse_copy("memory://bucket")


def test_the_exported_config_is_the_source_s_with_what_was_trained(tmp_path: Path) -> None:
    shape = load_path("hf_4b").rehearsal_shape()
    said = {"rope_parameters": {"rope_type": "default", "rope_theta": 1.0}, "eos_token_id": 7, "torch_dtype": "float64"}
    (tmp_path / "config.json").write_text(json.dumps(said | {"sliding_window": None}))
    config = export.export_config(shape, dtype="bfloat16", source=tmp_path)
    assert config["rope_parameters"] == {"rope_type": "default", "rope_theta": 5e6}
    assert "rope_theta" not in config
    assert (config["eos_token_id"], config["dtype"], config["num_hidden_layers"]) == (7, "bfloat16", 36)
    assert "torch_dtype" not in config
    assert config["sliding_window"] is None
    own = export.export_config(shape, dtype="float32", source=None)
    assert (own["rope_theta"], own["dtype"], own["eos_token_id"]) == (5e6, "float32", 0)


def test_assets_lie_beside_the_weights_and_shards_are_gone(tmp_path: Path) -> None:
    dump, run, tokenizer = tmp_path / "dump", tmp_path / "run", tmp_path / "tokenizer"
    (dump / "step-3" / "sharded").mkdir(parents=True)
    (dump / "step-3" / "model.safetensors").write_bytes(b"weights")
    run.mkdir()
    tokenizer.mkdir()
    (tokenizer / "tokenizer.json").write_text("{}")
    (tokenizer / "notes.txt").write_text("none of ours")
    place = export.collect(dump, 3, run)
    export.add_assets(place, load_path("moe_nki").full_shape(), dtype="float32", tokenizer=tokenizer, source=None)
    names = {file.name for file in (run / "export").iterdir()}
    assert names == {"model.safetensors", "config.json", "generation_config.json", "tokenizer.json"}
    assert not dump.exists()
    assert json.loads((place / "generation_config.json").read_text()) == {"bos_token_id": 0, "eos_token_id": 0}
    with pytest.raises(OSError, match="step-4"):
        export.collect(dump, 4, run)
