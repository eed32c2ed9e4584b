"""The cores of one logical NeuronCore: which one runs, what they share, what they may hold, what they executed.

At LNC=2 two cores run the same kernel, each in its own thread, one at a time and in a chosen order: a core runs until
it ends or waits at a barrier. That is deterministic, and an access that depends on timing is caught by what it touches
(``Ownership``), not by luck.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np

from kernels.sim.errors import NkiValidationError, RaceError, require

SBUF_BYTES_PER_PARTITION = 192 * 1024
"""Trainium2 NeuronCore-v3: 24 MiB SBUF over 128 partitions (AWS Trainium2 architecture guide)."""
PSUM_BYTES_PER_PARTITION = 16 * 1024
"""Trainium2 NeuronCore-v3: 2 MiB PSUM over 128 partitions, in 8 banks of 2 KiB per partition."""

executed: Counter[str] = Counter()
"""Completed launches by kernel name, since the process started."""
instructions: Counter[str] = Counter()
"""Executed instructions by name, over all cores and launches."""

_thread = threading.local()
_core_order: tuple[int, ...] = (0, 1)


@contextmanager
def core_order(*order: int) -> Iterator[None]:
    """Run the cores of an LNC=2 launch in this order inside the block: ``core_order(1, 0)``."""
    global _core_order
    require(sorted(order) == [0, 1], f"core_order{order}: (0, 1) or (1, 0) was expected")
    before, _core_order = _core_order, order
    try:
        yield
    finally:
        _core_order = before


class Access(Protocol):
    """Some elements of a flat buffer, in the shape of a view."""

    def load(self, flat: np.ndarray) -> np.ndarray: ...

    def store(self, flat: np.ndarray, values: Any) -> None: ...


class Core:
    """One physical NeuronCore of a launch."""

    def __init__(self, launch: Launch, index: int) -> None:
        self.launch = launch
        self.index = index
        self.shared_allocations = 0
        self.live = {"sbuf": 0, "psum": 0}
        """Bytes per partition of the tiles that the kernel still refers to."""

    def hold(self, region: str, nbytes: int) -> None:
        """Account for a new on-chip tile of ``nbytes`` per partition."""
        self.live[region] += nbytes
        limit = SBUF_BYTES_PER_PARTITION if region == "sbuf" else PSUM_BYTES_PER_PARTITION
        require(
            self.live[region] <= limit,
            f"{region} holds {self.live[region]} bytes per partition in live tiles, the core has {limit}",
        )

    def release(self, region: str, nbytes: int) -> None:
        self.live[region] -= nbytes


class Launch:
    """One call of a kernel on one or two cores."""

    def __init__(self, lnc: int) -> None:
        require(lnc in (1, 2), f"kernel[{lnc}]: 1 or 2 cores were expected")
        self.lnc = lnc
        self.shared: list[Any] = []
        """Tensors allocated in shared HBM by the kernel, in program order."""
        self.owned: list[Ownership] = []
        self._order = _core_order if lnc == 2 else (0,)
        self._state = ["ready"] * lnc
        self._turn = threading.Condition()
        self._running: int | None = None
        self._failure: BaseException | None = None

    def run(self, body: Callable[[], Any]) -> Any:
        """Run ``body`` on every core; returns what core 0 returned."""
        results: list[Any] = [None] * self.lnc

        def on_core(index: int) -> None:
            outer = getattr(_thread, "core", None)
            _thread.core = Core(self, index)
            try:
                self._wait_for_turn(index)
                results[index] = body()
            except BaseException as error:
                self._failure = self._failure or error
            finally:
                _thread.core = outer
                self._leave(index, "done")

        self._hand_over()
        threads = [threading.Thread(target=on_core, args=(index,)) for index in range(1, self.lnc)]
        for thread in threads:
            thread.start()
        on_core(0)
        for thread in threads:
            thread.join()
        if self._failure is not None:
            raise self._failure
        return results[0]

    def barrier(self, core: Core) -> None:
        """Wait until every core is here; what was written before may be read by all after."""
        if self.lnc == 1:
            return
        self._leave(core.index, "waiting")
        self._wait_for_turn(core.index)

    def _leave(self, index: int, state: str) -> None:
        with self._turn:
            self._state[index] = state
            if all(s == "waiting" for s in self._state):
                self._state = ["ready"] * self.lnc
                for ownership in self.owned:
                    ownership.clear()
            elif set(self._state) == {"waiting", "done"} and self._failure is None:
                self._failure = NkiValidationError("core_barrier: one core waits, the other has ended")
            self._hand_over()

    def _hand_over(self) -> None:
        with self._turn:
            self._running = next((core for core in self._order if self._state[core] == "ready"), None)
            self._turn.notify_all()

    def _wait_for_turn(self, index: int) -> None:
        with self._turn:
            self._turn.wait_for(lambda: self._running == index or self._failure is not None)
            if self._failure is not None:
                raise NkiValidationError("the other core failed")


class Ownership:
    """Who wrote and who read each element of a shared HBM tensor since the last barrier."""

    def __init__(self, size: int) -> None:
        self.writer = np.full(size, -1, dtype=np.int8)
        self.readers = np.zeros(size, dtype=np.int8)
        """Bit ``c`` is set where core ``c`` has read."""

    def clear(self) -> None:
        self.writer.fill(-1)
        self.readers.fill(0)

    def read(self, access: Access, core: int) -> None:
        if (access.load(self.writer) == 1 - core).any():
            raise RaceError(f"core {core} reads HBM that core {1 - core} writes, with no barrier between")
        access.store(self.readers, access.load(self.readers) | np.int8(1 << core))

    def write(self, access: Access, core: int) -> None:
        other = 1 - core
        if (access.load(self.writer) == other).any() or (access.load(self.readers) & np.int8(1 << other)).any():
            raise RaceError(f"core {core} writes HBM that core {other} touches, with no barrier between")
        access.store(self.writer, np.int8(core))


def current_core() -> Core:
    """The core this thread simulates.

    Raises:
        NkiValidationError: no kernel is running.
    """
    core = getattr(_thread, "core", None)
    require(core is not None, "nki.isa and nki.language work inside a kernel: run it with nki.simulate(kernel)(...)")
    return core


def inside_kernel() -> bool:
    return getattr(_thread, "core", None) is not None
