"""A log's bytes come out as they went in, but for secrets, however they are cut (no torch)."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.privacy import known_secrets, redact_bytes
from harness.scrub import KEPT_BACK, LIMIT, Scrubber, scrub_files

TOKEN = b"hf_" + b"aBcDeFgHiJkLmNoPqRsTuVwXyZ012345"
LOGS = sorted((Path(__file__).resolve().parents[3] / "shared" / "logs").glob("*.log"))
KEY = b"-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA\nabcdefgh\n-----END RSA PRIVATE KEY-----\n"


def scrubbed(data: bytes, cuts: list[int] | None = None, prefix: bytes = b"") -> bytes:
    scrubber, out, start = Scrubber(prefix), b"", 0
    for cut in sorted(cuts or []):
        out += scrubber.feed(data[start:cut])
        start = cut
    return out + scrubber.feed(data[start:]) + scrubber.close()


TELLING = (b"uses " + TOKEN, b"api_key = abcdefgh", b"http://u:pa55@host/", b"step: 1  loss: 7.6", b"token", b"\r")
NOISE = st.binary(max_size=30).map(lambda data: data.replace(b"\n", b""))
LINES = st.lists(st.one_of(NOISE, st.sampled_from(TELLING)), max_size=12)


@settings(deadline=None)
@given(LINES, st.lists(st.integers(0, 400), max_size=5))
def test_is_a_line_by_line_redaction_however_it_is_cut(lines: list[bytes], cuts: list[int]) -> None:
    data = b"\n".join(lines)
    assert scrubbed(data, cuts) == b"\n".join(redact_bytes(line) for line in lines)


def test_bytes_without_secrets_stay_as_they_are() -> None:
    data = bytes(random.Random(1).choices(range(256), k=200_000))
    assert scrubbed(data, [1, 777, 65_537]) == data


def test_private_key_is_hidden_with_the_lines_between() -> None:
    out = scrubbed(b"before\n" + KEY + b"after\n")
    assert out == b"before\n" + b"[redacted]\n" * 4 + b"after\n"
    assert scrubbed(b"before\n" + KEY + b"after\n", [12, 45, 60]) == out


@pytest.mark.parametrize("place", [100, LIMIT - KEPT_BACK, LIMIT - 20, LIMIT, 3 * LIMIT - KEPT_BACK - 10])
def test_secret_anywhere_in_an_endless_line(place: int) -> None:
    words = (b"x" * 11 + b" ") * (4 * LIMIT // 12)
    data = words[: place // 12 * 12] + b"password: correct-horse " + TOKEN + b" " + words[place // 12 * 12 :]
    cuts = list(range(0, len(data), 4096))
    assert scrubbed(data, cuts) == data.replace(TOKEN, b"[redacted]").replace(b"correct-horse", b"[redacted]")


def test_prefix_of_every_line_once() -> None:
    assert scrubbed(b"a\n\nb" + b"x" * 3 * LIMIT + b"\nc", [1, 50_000, 70_000, 140_000], b"[rank0]:") == (
        b"[rank0]:a\n[rank0]:\n[rank0]:b" + b"x" * 3 * LIMIT + b"\n[rank0]:c"
    )


def test_known_value_without_any_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_SERVICE_SECRET", "plainwordsonly")
    known_secrets.cache_clear()
    try:
        assert scrubbed(b"it is plainwordsonly\n") == b"it is [redacted]\n"
    finally:
        monkeypatch.undo()
        known_secrets.cache_clear()


@pytest.mark.skipif(not LOGS, reason="the collected logs are not here")
def test_collected_logs_keep_every_step_line() -> None:
    """Real logs: what is redacted are signatures in addresses and a token, never a number."""
    changed = 0
    for log in LOGS:
        data = log.read_bytes()
        for before, after in zip(data.split(b"\n"), scrubbed(data).split(b"\n"), strict=True):
            if before != after:
                changed += 1
                assert b"step:" not in before
                assert any(word in before for word in (b"X-Amz-", b"hf_token=", b"Signature="))
    assert changed >= 10


def test_files_of_others_are_scrubbed_in_place(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x " + TOKEN)
    (tmp_path / "b").write_bytes(b"nothing\xff")
    assert scrub_files([tmp_path / "a", tmp_path / "b", tmp_path / "absent"]) == [tmp_path / "a"]
    assert (tmp_path / "a").read_bytes() == b"x [redacted]"
    assert (tmp_path / "b").read_bytes() == b"nothing\xff"
