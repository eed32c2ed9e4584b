"""A test server that is closed leaves no thread behind: one that spins would take a core from every later test."""

from __future__ import annotations

import threading
import time

from tests.faults.servers import Answering


def test_closed_server_leaves_no_thread() -> None:
    before = set(threading.enumerate())
    server = Answering(500, "no")
    assert len(set(threading.enumerate()) - before) == 1
    server.server_close()
    deadline = time.monotonic() + 5
    while set(threading.enumerate()) - before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert set(threading.enumerate()) - before == set()
