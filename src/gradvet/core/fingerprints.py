"""One wrong entry names itself: what it leaves in a few products has the proportions of its own random weights.

If only column j of the difference Δ is wrong, then v·Δu = (v·Δ_j) u_j for every direction u. Along several directions
the products are in the proportion of the entries u_j, and hardly any other column has entries in that proportion. The
same goes for a row and the codirections. So products that are there anyway name the row and the column; whether the
entry is wrong is for a comparison to say.
"""

from __future__ import annotations

from collections.abc import Sequence

from gradvet.core.arithmetic import namespace
from gradvet.core.spaces import Array

VECTORS = 3
"""So many directions, and as many codirections, tell one of a million entries from the others."""

ALIKE = 1e-6
"""By how much the cosine between two proportions that are the same may fall short of one."""


def bearer(vectors: Sequence[Array], products: Array) -> int | None:
    """The index whose weights in the vectors are in the proportion of each row of the products; None if none is.

    The products have a column for each vector.
    """
    xp = namespace(products)
    squares = xp.sum(products * products, axis=1)
    top = int(xp.argmax(squares))
    pattern = products[top, :] / squares[top] ** 0.5
    along = products @ pattern
    # What is not a number is in no proportion to anything.
    if not float(xp.max(squares - along * along)) <= ALIKE * float(squares[top]):
        return None
    weights = xp.stack(list(vectors))
    cosines = xp.abs(pattern @ weights) / xp.sqrt(xp.sum(weights * weights, axis=0))
    best = int(xp.argmax(cosines))
    return best if float(cosines[best]) >= 1.0 - ALIKE else None
