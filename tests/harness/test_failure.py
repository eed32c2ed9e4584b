"""The first failing rank and its error in one line (no torch)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.failure import MAX_REASON, exit_text, explain, shorten
from harness.logs import Event
from harness.watch import End

FAILED = End(exit_code=1)
GLOO = "RuntimeError: gloo: Connection closed by peer"


def error_file(root: Path, rank: int, message: str, timestamp: int) -> None:
    place = root / "none_abc" / "attempt_0" / str(rank)
    place.mkdir(parents=True)
    content = {"message": message, "extraInfo": {"py_callstack": f"Traceback of {rank}", "timestamp": str(timestamp)}}
    (place / "error.json").write_text(json.dumps({"message": content}))


def child_failed(rank: int, code: int) -> Event:
    return Event(kind="child_failed", line=1, data={"local_rank": rank, "exitcode": code, "pid": 1})


def test_earliest_error_file_wins_and_brings_its_traceback(tmp_path: Path) -> None:
    error_file(tmp_path, 0, GLOO, 200)
    error_file(tmp_path, 1, "ValueError: bad data", 100)
    found = explain(FAILED, [child_failed(0, 1)], tmp_path)
    assert (found.reason, found.detail) == ("rank 1: ValueError: bad data", "Traceback of 1")


def test_a_signal_comes_before_the_errors_it_caused(tmp_path: Path) -> None:
    error_file(tmp_path, 0, GLOO, 100)
    assert explain(FAILED, [child_failed(1, -9)], tmp_path).reason == "rank 1: killed by SIGKILL"


def test_the_signal_by_which_torchrun_ends_the_others_explains_nothing(tmp_path: Path) -> None:
    ended = [child_failed(0, -15)]
    assert explain(FAILED, ended, tmp_path).reason == "rank 0: killed by SIGTERM"
    assert explain(FAILED, [*ended, child_failed(1, -11)], tmp_path).reason == "rank 1: killed by SIGSEGV"
    error_file(tmp_path, 1, "ValueError: bad data", 100)
    assert explain(FAILED, ended, tmp_path).reason == "rank 1: ValueError: bad data"


SUMMARY = """\
[0]:
  time      : 2026-11-30_06:05:51
  host      : localhost
  rank      : 1 (local_rank: 1)
  exitcode  : -15 (pid: 9889)
  error_file: <N/A>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  rank      : 0 (local_rank: 0)
  exitcode  : -9 (pid: 9888)  (SIGKILL)
"""


def test_torchrun_s_summary_counts(tmp_path: Path) -> None:
    ranks = tmp_path / "ranks"
    (tmp_path / "train.log").write_text(SUMMARY)
    assert explain(FAILED, [child_failed(1, -15)], ranks).reason == "rank 0: killed by SIGKILL"
    (tmp_path / "train.log").write_text(SUMMARY.replace("  rank", "[rank0]:  rank"))  # a rank that prints the like
    assert explain(FAILED, [child_failed(1, -15)], ranks).reason == "rank 1: killed by SIGTERM"


def test_exit_without_exception_says_what_was_printed(tmp_path: Path) -> None:
    place = tmp_path / "none_abc" / "attempt_0" / "0"
    place.mkdir(parents=True)
    (place / "stdout.log").write_text("[titan] something\n")
    (place / "stderr.log").write_text(
        "╭─ Unrecognized options ───╮\n│ Unrecognized options: --x │\n│ For help, run x │\n╰───╯\n"
    )
    found = explain(FAILED, [child_failed(0, 2)], tmp_path)
    assert found.reason == "rank 0: exit code 2: Unrecognized options: --x"
    (place / "stderr.log").write_text("usage: x\nx: error: no such option\n\n")
    (place / "stdout.log").unlink()
    found = explain(FAILED, [child_failed(0, 2)], tmp_path)
    assert found.reason == "rank 0: exit code 2: x: error: no such option"


def test_harness_own_cause_comes_first(tmp_path: Path) -> None:
    error_file(tmp_path, 0, GLOO, 100)
    assert explain(End(1, "stalled at step 3"), [], tmp_path).reason == "stalled at step 3"


def test_log_and_exit_code_as_last_resorts(tmp_path: Path) -> None:
    event = Event(kind="exception", line=3, rank=5, data={"type": "KeyError", "message": "'x'"})
    assert explain(FAILED, [event], tmp_path).reason == "rank 5: KeyError: 'x'"
    assert explain(End(-9), [], tmp_path).reason == "torchrun: killed by SIGKILL"


def test_torn_error_file_is_passed_over(tmp_path: Path) -> None:
    error_file(tmp_path, 0, GLOO, 100)
    (tmp_path / "none_abc" / "attempt_0" / "0" / "error.json").write_text('{"message": {"mess')
    assert explain(FAILED, [], tmp_path).reason == "torchrun: exit code 1"


def test_reason_is_one_short_printable_line() -> None:
    assert shorten("a\x1b[31m\nb\tc") == "a [31m b c"
    assert len(shorten("x" * 1000)) == MAX_REASON


EXITS = [(0, "exit code 0"), (-15, "killed by SIGTERM"), (-99, "killed by signal 99"), (None, "did not end")]


@pytest.mark.parametrize(("code", "text"), EXITS)
def test_exit_text(code: int | None, text: str) -> None:
    assert exit_text(code) == text
