"""Log files of every wrapping: plain, gzip, zstd, standard input; read in pieces."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from harness.logs.reader import LogReader
from harness.logs.records import Record

PIECE = 1 << 18
_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"


def open_log(path: str | Path) -> BinaryIO:
    """``path`` opened for reading, decompressed if it is gzip or zstd (told by its first bytes); ``-`` is stdin."""
    if str(path) == "-":
        raw: BinaryIO = sys.stdin.buffer
        head = raw.peek(4)[:4]  # type: ignore[attr-defined]
    else:
        raw = open(path, "rb")  # noqa: SIM115  (closed with the stream that is returned)
        head = raw.peek(4)[:4]  # type: ignore[attr-defined]
    if head.startswith(_GZIP):
        import gzip

        return gzip.GzipFile(fileobj=raw)  # type: ignore[return-value]
    if head == _ZSTD:
        import zstandard

        return zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True)  # type: ignore[return-value]
    return raw


def pieces(path: str | Path, size: int = PIECE) -> Iterator[bytes]:
    """The bytes of ``path`` in pieces; of a pipe, whatever has arrived."""
    stream = open_log(path)
    read = getattr(stream, "read1", stream.read)
    while data := read(size):
        yield data


def read_files(
    paths: Iterable[str | Path] | str | Path,
    metrics_rank: int | None = None,
    *,
    every_rank: bool = False,
) -> Iterator[Record]:
    """Rows, events and rejected lines of one or more files, read in order as one log, streaming.

    Line numbers go on over the files. A file that does not end in a line feed is given one, so that the last line of
    one file and the first of the next do not run together.
    """
    reader = LogReader(metrics_rank, every_rank=every_rank)
    names = [paths] if isinstance(paths, str | Path) else list(paths)
    last = b"\n"
    for index, path in enumerate(names):
        if index and last != b"\n":
            yield from reader.feed(b"\n")
        for data in pieces(path):
            last = data[-1:]
            yield from reader.feed(data)
    yield from reader.close()
