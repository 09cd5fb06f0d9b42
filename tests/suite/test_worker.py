"""The messages of a worker process; `test_processes` covers the process itself."""

from __future__ import annotations

import io

import pytest

from gradvet.suite.worker import receive, send


def test_values_arrive_in_order() -> None:
    stream = io.BytesIO()
    for value in ({"a": 1}, [2, "b"], None):
        send(stream, value)
    stream.seek(0)
    assert [receive(stream) for _ in range(3)] == [{"a": 1}, [2, "b"], None]


@pytest.mark.parametrize("kept", [0, 3, -1], ids=["nothing", "part of the header", "part of the value"])
def test_closed_stream_is_an_end_of_file(kept: int) -> None:
    stream = io.BytesIO()
    send(stream, "value")
    with pytest.raises(EOFError):
        receive(io.BytesIO(stream.getvalue()[:kept]))
