"""``nki.jit`` and ``nki.simulate``: from a kernel and its arguments to results.

Arguments are numpy arrays or torch CPU tensors, contiguous. A kernel may write into them: they are updated in place,
and one that the kernel returns comes back as the very object that was passed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from kernels.sim import dtypes
from kernels.sim.errors import require
from kernels.sim.machine import Launch, executed, inside_kernel
from kernels.sim.memory import Buffer, Memory
from kernels.sim.tensor import NkiTensor, wrap


class Kernel:
    """A function decorated with ``@nki.jit``; ``kernel[lnc]`` says on how many cores it runs."""

    def __init__(self, function: Callable[..., Any], lnc: int = 1) -> None:
        self.function = function
        self.lnc = lnc
        functools.update_wrapper(self, function)

    def __getitem__(self, grid: int | tuple[int]) -> Kernel:
        return Kernel(self.function, int(grid[0] if isinstance(grid, tuple) else grid))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if inside_kernel():
            return self.function(*args, **kwargs)
        raise RuntimeError(f"there is no Neuron device here: run nki.simulate({self.__name__})(...)")


def jit(function: Callable[..., Any] | None = None, **_: Any) -> Any:
    """Mark a function as a kernel; used with or without parentheses."""
    return Kernel if function is None else Kernel(function)


def simulate(kernel: Kernel | Callable[..., Any]) -> Callable[..., Any]:
    """A callable that runs ``kernel``, or ``kernel[lnc]``, here.

    Raises (when called):
        NkiValidationError: the kernel does what the hardware does not allow.
    """
    chosen = kernel if isinstance(kernel, Kernel) else Kernel(kernel)

    def run(*args: Any, **kwargs: Any) -> Any:
        launch = Launch(chosen.lnc)
        passed = Arguments(launch)
        inputs = [passed.wrap(value) for value in args]
        named = {key: passed.wrap(value) for key, value in kwargs.items()}
        result = launch.run(lambda: chosen.function(*inputs, **named))
        passed.write_back()
        executed[chosen.__name__] += 1
        return passed.unwrap(result)

    return run


class Arguments:
    """The arrays of one call, their simulated memory, and the way back."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._passed: list[tuple[Any, Memory]] = []
        self._torch = False

    def wrap(self, value: Any) -> Any:
        """An HBM tensor for an array; anything else as it is."""
        is_torch = _is_torch(value)
        if not is_torch and not isinstance(value, np.ndarray):
            return value
        self._torch |= is_torch
        dtype, shape = dtypes.name_of(value.dtype), tuple(value.shape)
        flat = _elements(value, dtype)
        tensor = wrap(flat, dtype, shape, Buffer.shared_hbm if self._launch.lnc == 2 else Buffer.private_hbm)
        tensor.memory.share(self._launch)
        self._passed.append((value, tensor.memory))
        return tensor

    def write_back(self) -> None:
        """Update the arrays whose simulated memory is a copy."""
        for value, memory in self._passed:
            if memory.dirty and memory.dtype == "bfloat16":
                if _is_torch(value):
                    value.copy_(_torch_from(memory.flat, memory.shape))
                else:
                    value[...] = memory.flat.reshape(memory.shape).astype(value.dtype)

    def unwrap(self, result: Any) -> Any:
        if isinstance(result, (tuple, list)):
            return type(result)(self.unwrap(item) for item in result)
        if not isinstance(result, NkiTensor):
            return result
        require(not result.buffer.on_chip, f"a kernel returns HBM tensors, not {result!r}")
        for value, memory in self._passed:
            if result.memory is memory and result.is_base:
                return value
        array = np.array(result.where.load(result.memory.flat))
        if self._torch:
            tensor = _torch_from(array, array.shape)
            return tensor.bfloat16() if result.dtype == "bfloat16" else tensor
        if result.dtype == "bfloat16":
            raise TypeError("numpy has no bfloat16 to return: pass torch tensors")
        return array


def _elements(value: Any, dtype: str) -> np.ndarray:
    if _is_torch(value):
        require(value.device.type == "cpu" and value.is_contiguous(), "a contiguous CPU tensor was expected")
        plain = value.detach()
        return (plain.float() if dtype == "bfloat16" else plain).numpy().reshape(-1)
    require(value.flags.c_contiguous, "a contiguous array was expected")
    return (value.astype(np.float32) if dtype == "bfloat16" else value).reshape(-1)


def _is_torch(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] == "torch" and hasattr(value, "detach")


def _torch_from(flat: np.ndarray, shape: tuple[int, ...]) -> Any:
    import torch

    return torch.from_numpy(np.ascontiguousarray(flat).reshape(shape))
