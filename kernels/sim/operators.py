"""The operator tokens of nki.language (``op=nl.add``) and what they compute, in float32 as the engines do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Operator:
    """One token. ``bitwise`` ones act on integer bits; the others on float32, or on 32-bit integers exactly."""

    name: str
    compute: Callable[..., np.ndarray]
    operands: int
    bitwise: bool = False

    def __repr__(self) -> str:
        return f"nl.{self.name}"


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return (np.float32(1) / (np.float32(1) + np.exp(-x))).astype(np.float32)


def _binary(*names: str, bitwise: bool = False) -> dict[str, Operator]:
    return {name: Operator(name, getattr(np, name), 2, bitwise) for name in names}


def _unary(**functions: Callable[[np.ndarray], np.ndarray]) -> dict[str, Operator]:
    return {name: Operator(name, function, 1) for name, function in functions.items()}


BINARY = {
    **_binary("add", "subtract", "multiply", "divide", "maximum", "minimum", "power"),
    **_binary("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"),
    **_binary("bitwise_and", "bitwise_or", "bitwise_xor", bitwise=True),
}
UNARY = _unary(
    copy=lambda x: x,
    exp=np.exp,
    sqrt=np.sqrt,
    rsqrt=lambda x: np.float32(1) / np.sqrt(x),
    square=np.square,
    sigmoid=_sigmoid,
    silu=lambda x: x * _sigmoid(x),
    tanh=np.tanh,
    relu=lambda x: np.maximum(x, np.float32(0)),
    sin=np.sin,
    cos=np.cos,
)
"""On the device these come from tables with an error of their own, which is not modelled."""


def evaluate(operator: Operator, *operands: np.ndarray | float, exact_integers: bool = False) -> np.ndarray:
    """Apply an operator the way the Vector and Scalar engines do.

    Args:
        exact_integers: every operand is a 32-bit integer, so the GpSimd engine computes without float32.
    """
    if not (operator.bitwise or exact_integers):
        operands = tuple(np.asarray(operand, dtype=np.float32) for operand in operands)
    with np.errstate(all="ignore"):
        result = np.asarray(operator.compute(*operands))
    return result if operator.bitwise or exact_integers else result.astype(np.float32)
