"""What the simulator raises."""


class NkiValidationError(Exception):
    """A kernel does what the hardware, or the documented API, does not allow. The official package uses this name."""


class UninitialisedError(NkiValidationError):
    """A matmul asked to accumulate on PSUM that nothing has written."""


class RaceError(NkiValidationError):
    """Two cores touched the same HBM element, at least one of them writing, with no barrier between."""


def require(condition: bool, message: str) -> None:
    """Raise :class:`NkiValidationError` unless ``condition`` holds."""
    if not condition:
        raise NkiValidationError(message)
