"""Secrets are recognised by name and by shape, and ordinary text is left alone."""

from __future__ import annotations

import pytest

from harness.privacy import MASK, is_secret_name, redact, redact_text

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
}


@pytest.mark.parametrize("secret", SECRETS.values(), ids=SECRETS.keys())
def test_shapes(secret: str) -> None:
    redacted = redact_text(f"before {secret} after")
    assert MASK in redacted
    assert redacted.startswith("before")
    assert redacted.endswith("after")
    value = secret.split(" ")[-1].split("=")[-1].split('"')[-2 if '"' in secret else -1].split("@")[0].split("//")[-1]
    assert value not in redacted


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
    ],
)
def test_ordinary_text_is_untouched(text: str) -> None:
    assert redact_text(text) == text
