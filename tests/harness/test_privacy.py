"""Secrets are recognised by name and by shape, and ordinary text is left alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.privacy import (
    _REMEMBERED,
    MASK,
    is_secret_name,
    known_secrets,
    redact,
    redact_bytes,
    redact_text,
    remember,
)

SECRETS = {
    "aws key id": "AKIA" + "IOSFODNN7EXAMPLE",
    "hugging face": "hf_" + "aBcDeFgHiJkLmNoPqRsTuVwXyZ012345",
    "github": "ghp_" + "a1" * 18,
    "databricks": "dapi" + "0123456789abcdef" * 2,
    "json web token": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dBjftJeZ4CVPmB92K27uhbUJU1p1r",
    "uri": "http://user:pa55word@tracking:5000",
    "bearer": "Authorization: Bearer abcdefghijklmnop",
    "assignment": "AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    "json": '{"mlflow_tracking_password": "hunter2hunter2"}',
    "short password": "password: abcd",
    "escaped json": '\\"api_key\\": \\"abcdefgh\\"',
    "signed address": "https://bucket/key?X-Amz-Signature=0123456789abcdef&x=1",
    "address with an at sign in it": "postgresql://user:p@ssword@host/db",
    "gitlab": "glpat-" + "aBcDeFgHiJkLmNoPqRsT",
}


@pytest.mark.parametrize("secret", SECRETS.values(), ids=SECRETS.keys())
def test_shapes(secret: str) -> None:
    redacted = redact_text(f"before {secret} after")
    assert MASK in redacted
    assert redacted.startswith("before")
    assert redacted.endswith("after")
    value = secret.split(" ")[-1].split("=")[1 if "&" in secret else -1].split("&")[0].replace("\\", "")
    value = value.split('"')[-2 if '"' in value else -1].rsplit("@")[0].split("//")[-1]
    assert value not in redacted
    assert redact_bytes(f"before {secret} after".encode()) == redacted.encode()


@pytest.mark.parametrize("name", ["HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "MLFLOW_TRACKING_PASSWORD", "WANDB_API_KEY"])
def test_secret_names(name: str) -> None:
    assert is_secret_name(name)
    assert redact({name: "x", "safe": {name: "y"}}) == {name: MASK, "safe": {name: MASK}}


@pytest.mark.parametrize("name", ["TOKENIZERS_PARALLELISM", "hf_tokenizer", "tokenizer", "num_tokens", "seed", "path"])
def test_harmless_names(name: str) -> None:
    assert redact({name: "value"}) == {name: "value"}


@pytest.mark.parametrize(
    "text",
    [
        "step: 10  loss:  6.75557  grad_norm:  0.7065  memory:  0.50GiB(2.10%)  tps: 22,514  tflops: 0.02  mfu: 17.76%",
        "Loading tokenizer from tokenizer.json",
        "https://host/path?x=1",
        "sqlite:////data/runs/mlflow.db",
        "65536 tokens per DP rank, key: attention",
        "flops_per_token: 37578559488, max_tokens=100000, token: 12345",
        "pad_token: <|endoftext|>, eos_token='abcdefgh', HF_TOKEN=None",
        "Basic configuration done; a token: the thing",
        "http://localhost:5000/#/experiments/1?x=a@b",
    ],
)
def test_ordinary_text_is_untouched(text: str) -> None:
    assert redact_text(text) == text


def test_value_after_an_option_whose_name_is_secret() -> None:
    command = ["torchrun", "--wandb.api_key", "abc", "--train.steps", "10", "--token=abcdefgh", "--x"]
    assert redact(command) == ["torchrun", "--wandb.api_key", MASK, "--train.steps", "10", f"--token={MASK}", "--x"]


def test_numbers_are_no_secrets() -> None:
    assert redact({"flops_per_token": 12, "pad_token": "<pad>", "nested": [{"num_tokens": 3}]}) == {
        "flops_per_token": 12,
        "pad_token": "<pad>",
        "nested": [{"num_tokens": 3}],
    }


def test_remembered_values_are_hidden_wherever_they_stand(tmp_path: Path) -> None:
    key_file = tmp_path / "key.pem"
    key_file.touch()
    env = {"A_TOKEN": "plainwordsonly", "B_KEY": "short", "C_KEY": "12345678", "D_KEY": str(key_file)}
    config = {"platform": {"env": env}, "tracking": {"uri": "http://me:theirpassword@host:5000"}}
    try:
        remember(config)
        said = f"plainwordsonly theirpassword short 12345678 {key_file}"
        assert redact_text(said) == f"{MASK} {MASK} short 12345678 {key_file}"
    finally:
        _REMEMBERED.clear()
        known_secrets.cache_clear()
