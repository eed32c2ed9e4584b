"""Numbers read from bytes, and how far two tensors are apart."""

from __future__ import annotations

import math
import resource
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from harness.checkpoint import values
from harness.checkpoint.values import count_nonfinite, decode, distance, nonfinite, raw_pieces
from harness.weights import SINGLE, read_header
from tests.weights.checkpoints import encode, write_file


def test_bfloat16_and_eight_bit_floats_mean_what_torch_says() -> None:
    torch = pytest.importorskip("torch")
    codes = torch.arange(256, dtype=torch.uint8)
    for ours, theirs in {"F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2}.items():
        expected = codes.view(theirs).float().numpy()
        np.testing.assert_array_equal(decode(codes.numpy().tobytes(), ours), expected)
        assert count_nonfinite(codes.numpy().tobytes(), ours) == np.count_nonzero(~np.isfinite(expected))
    codes = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    for ours, theirs in {"BF16": torch.bfloat16, "F16": torch.float16}.items():
        expected = codes.view(theirs).float().numpy()
        np.testing.assert_array_equal(decode(codes.numpy().tobytes(), ours), expected)
        assert count_nonfinite(codes.numpy().tobytes(), ours) == np.count_nonzero(~np.isfinite(expected))


def pair(tmp_path: Path, one: np.ndarray, other: np.ndarray, dtypes: tuple[str, str] = ("BF16", "BF16")):
    found = []
    for name, value, dtype in zip("ab", (one, other), dtypes, strict=True):
        (tmp_path / name).mkdir()
        write_file(tmp_path / name / SINGLE, {"x": np.zeros(3, np.float32), "w": value}, dtype)
        found.append((tmp_path / name, read_header(tmp_path / name / SINGLE)["w"]))
    return found


@pytest.mark.parametrize("dtypes", [("BF16", "BF16"), ("BF16", "F32"), ("F32", "F16"), ("F64", "BF16")])
def test_distance_over_many_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtypes: tuple[str, str]) -> None:
    monkeypatch.setattr(values, "raw_pieces", lambda *arguments: raw_pieces(*arguments, size=64))
    one = (np.arange(1000, dtype=np.float32) % 50 / 2).reshape(10, 100)
    other = one.copy()
    other[9, 99], other[0, 0] = one[9, 99] - 4.0, 0.25
    first, second = pair(tmp_path, one, other, dtypes)
    apart = distance(first, second)
    assert (apart.max_abs, apart.scale, apart.nonfinite) == (4.0, 24.5, (0, 0))
    assert apart.relative == pytest.approx(4 / 24.5)
    assert not apart.within(3.9)
    assert apart.within(4.0)
    assert distance(first, first).max_abs == 0.0


def test_nothing_equals_nan_not_even_itself(tmp_path: Path) -> None:
    value = np.ones(10, np.float32)
    value[3] = np.nan
    first, second = pair(tmp_path, value, value)
    apart = distance(first, second)
    assert apart.nonfinite == (1, 1)
    assert math.isnan(apart.max_abs)
    assert not apart.within(math.inf)


def test_zeros_of_both_signs_are_equal(tmp_path: Path) -> None:
    first, second = pair(tmp_path, np.zeros(4, np.float32), -np.zeros(4, np.float32))
    assert distance(first, second).within(0.0)


def test_a_file_that_shrinks_while_it_is_read(tmp_path: Path) -> None:
    first, _ = pair(tmp_path, np.ones(10, np.float32), np.ones(10, np.float32))
    with (tmp_path / "a" / SINGLE).open("r+b") as stream:
        stream.truncate(first[1].end - 2)
    with pytest.raises(ValueError, match="it is being changed"):
        nonfinite(*first)


def test_memory_does_not_grow_with_the_tensor(tmp_path: Path) -> None:
    """400 MB of zeros in holes: what is added to this process's peak is a few pieces."""
    file = tmp_path / SINGLE
    write_file(file, {"w": np.zeros(4, np.float32)}, "F32")
    tensor = read_header(file)["w"]
    large = replace(tensor, shape=(10**8,), end=tensor.begin + 4 * 10**8)
    with file.open("r+b") as stream:
        stream.truncate(large.end)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert nonfinite(tmp_path, large) == 0
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000


def test_encode_is_exact_for_eighths() -> None:
    eighths = (np.arange(-32, 33) / 8).astype(np.float32)
    np.testing.assert_array_equal(decode(encode(eighths, "BF16"), "BF16"), eighths)
