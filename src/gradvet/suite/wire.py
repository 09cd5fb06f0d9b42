"""Values over a pipe: each is a pickle behind its length."""

from __future__ import annotations

import pickle
import struct
from typing import IO, Any

HEADER = struct.Struct("<Q")


def send(stream: IO[bytes], value: Any) -> None:
    content = pickle.dumps(value)
    stream.write(HEADER.pack(len(content)) + content)
    stream.flush()


def receive(stream: IO[bytes]) -> Any:
    """The next value; EOFError where the other end is gone."""
    return pickle.loads(_exactly(stream, HEADER.unpack(_exactly(stream, HEADER.size))[0]))


def _exactly(stream: IO[bytes], size: int) -> bytes:
    content = stream.read(size)
    if len(content) < size:
        raise EOFError
    return content
