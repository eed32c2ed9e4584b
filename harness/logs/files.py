"""Log files of every wrapping: plain, gzip, zstd, standard input; read in pieces."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from harness.logs.reader import LogReader
from harness.logs.records import Record
from harness.logs.sources import refine, sources_beside

PIECE = 1 << 18
_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"


def open_log(path: str | Path) -> BinaryIO:
    """``path`` opened for reading, decompressed if it is gzip or zstd (told by its first bytes); ``-`` is stdin."""
    raw = sys.stdin.buffer if str(path) == "-" else open(path, "rb")  # noqa: SIM115  (it is what is returned)
    head = raw.peek(4)[:4]  # type: ignore[union-attr]
    if head.startswith(_GZIP):
        import gzip

        return gzip.GzipFile(fileobj=raw)  # type: ignore[return-value]
    if head == _ZSTD:
        import zstandard

        return zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True)  # type: ignore[return-value]
    return raw  # type: ignore[return-value]


def pieces(path: str | Path, size: int = PIECE) -> Iterator[bytes]:
    """The bytes of ``path`` in pieces; of a pipe, whatever has arrived.

    Raises ``OSError`` where the file cannot be read, or its compressed data are damaged or cut, after what can be read.
    """
    with open_log(path) as stream:
        read = getattr(stream, "read1", stream.read)
        while True:
            try:
                data = read(size)
            except (EOFError, zlib.error) as error:
                raise OSError(f"{path}: the compressed data end early or are damaged: {error}") from error
            if not data:
                return
            yield data


def read_files(
    paths: Iterable[str | Path] | str | Path,
    metrics_rank: int | None = None,
    *,
    every_rank: bool = False,
    better: bool = True,
) -> Iterator[Record]:
    """Rows, events and rejected lines of one or more files, read in order as one log, streaming.

    Line numbers go on over the files. A file that does not end in a line feed is given one, so that the last line of
    one file and the first of the next do not run together. With ``better``, rows take their values at full precision
    from TensorBoard events and JSONL metrics beside the files (``harness.logs.sources``), where they agree.
    """
    names = [paths] if isinstance(paths, str | Path) else list(paths)
    records = _read(names, LogReader(metrics_rank, every_rank=every_rank))
    sources = [source for name in names if better and str(name) != "-" for source in sources_beside(Path(name))]
    return refine(records, sources) if sources else records


def _read(names: list[str | Path], reader: LogReader) -> Iterator[Record]:
    last = b"\n"
    for name in names:
        if last != b"\n":
            last = b"\n"
            yield from reader.feed(last)
        try:
            for data in pieces(name):
                last = data[-1:]
                yield from reader.feed(data)
        except OSError:
            yield from reader.close()
            raise
    yield from reader.close()
