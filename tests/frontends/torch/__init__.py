"""Tests of the torch frontend."""

import pytest

from gradvet.frontends.torch import private

needs_private_names = pytest.mark.skipif(private.PUBLIC_ONLY, reason="private names are switched off")
