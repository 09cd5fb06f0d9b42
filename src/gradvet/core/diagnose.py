"""What kind of wrong: a pattern in the entries that disagree, and where to look for the mistake."""

from __future__ import annotations

import math

import array_api_compat

from gradvet.core.spaces import Array

ALIKE = 1e-3
"""Ratios and entries that differ by less than this, relative to their size, count as equal."""


def diagnose(numerical: Array, derivative: Array, tolerance: float) -> str:
    """One sentence about a block of outputs × inputs whose two versions disagree."""
    xp = array_api_compat.array_namespace(numerical)
    if not bool(xp.all(xp.isfinite(derivative))):
        if bool(xp.all(xp.isfinite(numerical))):
            return "The derivative is not finite where the function has a finite slope: look for 0/0 or 0·inf in it."
        return "Both the derivative and the function's differences are not finite at this point."
    if not bool(xp.all(xp.isfinite(numerical))):
        return "The function itself is not finite close to this point: choose inputs inside its domain."
    wrong = xp.abs(derivative - numerical) > tolerance + ALIKE * xp.abs(numerical)
    if not bool(xp.any(wrong)):
        return ""
    return (
        _absent(derivative, numerical, tolerance)
        or _factor(derivative, numerical, wrong)
        or _transposed(derivative, numerical, tolerance)
        or _place(wrong)
    )


def _absent(derivative: Array, numerical: Array, tolerance: float) -> str:
    xp = array_api_compat.array_namespace(numerical)
    if not bool(xp.any(derivative != 0.0)):
        return (
            "The derivative is zero everywhere although the function varies: look for a detach, a returned None, "
            "or an input that the derivative forgets."
        )
    if float(xp.max(xp.abs(numerical))) <= tolerance:
        return "The function does not vary with this input, yet its derivative is not zero."
    return ""


def _factor(derivative: Array, numerical: Array, wrong: Array) -> str:
    xp = array_api_compat.array_namespace(numerical)
    a, n = derivative[wrong], numerical[wrong]
    weight = float(xp.sum(n * n))
    if not weight or (a.shape[0] < 2 and wrong.shape[0] * wrong.shape[1] > 1):
        return ""
    ratio = float(xp.sum(a * n)) / weight
    if float(xp.max(xp.abs(a - ratio * n))) > ALIKE * float(xp.max(xp.abs(a))) + 1e-300:
        return ""
    where = "everywhere" if bool(xp.all(wrong | (numerical == 0.0))) else "in all the wrong entries"
    if math.isclose(ratio, -1.0, rel_tol=ALIKE):
        return f"The sign is wrong {where}: the derivative is the negative of the function's slope."
    if abs(ratio) < ALIKE:
        return "The wrong entries are zero: look for a term, a row or a branch that the derivative leaves out."
    return f"The ratio is {ratio:.6g} {where}: look for a wrong constant factor."


def _transposed(derivative: Array, numerical: Array, tolerance: float) -> str:
    xp = array_api_compat.array_namespace(numerical)
    if derivative.shape[0] != derivative.shape[1]:
        return ""
    if bool(xp.all(xp.abs(derivative.T - numerical) <= tolerance + ALIKE * xp.abs(numerical))):
        return "The derivative is the transpose of the function's Jacobian: look for swapped operands or axes."
    return ""


def _place(wrong: Array) -> str:
    xp = array_api_compat.array_namespace(wrong)
    rows, columns = xp.any(wrong, axis=1), xp.any(wrong, axis=0)
    wrong_rows, wrong_columns = int(xp.count_nonzero(rows)), int(xp.count_nonzero(columns))
    if wrong_columns == 1 and len(columns) > 1:
        return "Only one input element is affected: look at how the derivative treats that element or its boundary."
    if wrong_rows == 1 and len(rows) > 1:
        return "Only one output element is affected: look at how the derivative treats that element or its boundary."
    if wrong_columns < len(columns) and bool(xp.all(columns[len(columns) - wrong_columns :])):
        return f"Only the last {wrong_columns} input elements are affected: look for a tail that is handled apart."
    return "No simple pattern (factor, sign, transpose, single row or column) explains the wrong entries."
