"""Reading torchtitan logs of every age: bytes in, rows, events and rejected lines out.

``LogReader`` takes a log in pieces of any size, ``read_files`` whole files; ``python -m harness.logs`` prints JSON.
"""

from harness.logs.files import read_files
from harness.logs.kinds import KINDS
from harness.logs.reader import LogReader
from harness.logs.records import Event, Record, Rejected, Row

__all__ = ["KINDS", "Event", "LogReader", "Record", "Rejected", "Row", "read_files"]
