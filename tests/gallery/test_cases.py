"""All cases of the gallery load. What they claim is proved by `test_gallery_itself.py`, which `make gallery` runs."""

from __future__ import annotations

from tests.gallery import RIGHT, WRONG


def test_all_cases_load_and_have_unique_names() -> None:
    cases = (*WRONG, *RIGHT)
    for case in cases:
        function, inputs = case.build()
        assert callable(function)
        assert isinstance(inputs, tuple)
    assert len({case.name for case in cases}) == len(cases)
