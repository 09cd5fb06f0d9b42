"""Tensors with a number for every element: their real coordinates, and how they are perturbed.

A real number has one coordinate, a complex number two (real, imaginary). Strided tensors and tensor-like objects are
perturbed in place, so that captured references see it.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, TypeGuard

import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor

from gradvet.core.problem import Perturbation
from gradvet.core.vectors import LARGE, Space, unit_rows

WORKING_DTYPE = torch.float64
"""The dtype of every vector that the engine sees."""


def is_working_tensor(value: Any) -> TypeGuard[Tensor]:
    """Whether it is a strided tensor of the working dtype and of no subclass."""
    return type(value) is Tensor and value.dtype is WORKING_DTYPE and value.layout is torch.strided


class Dense:
    """The numbers of a tensor in the order of its indices; complex numbers as (real, imaginary) side by side.

    `home` is the device of the vectors, so that leaves on several devices fit into one vector.
    """

    __slots__ = ("_flat", "device", "dtype", "home", "is_plain", "parts", "shape", "size")

    def __init__(self, shape: torch.Size, dtype: torch.dtype, device: torch.device, home: torch.device) -> None:
        self.shape, self.dtype, self.device, self.home = shape, dtype, device, home
        self.parts = 2 if dtype.is_complex else 1
        self.size = math.prod(shape) * self.parts
        self.is_plain = dtype is WORKING_DTYPE and device == home
        self._flat = self.is_plain and len(shape) == 1

    def flatten(self, value: Any) -> Tensor:
        if self.is_plain and is_working_tensor(value):
            plain = value.detach() if value.requires_grad else value
            return plain if self._flat else plain.flatten()
        tensor = _tensor(value)
        if tensor.layout is not torch.strided:
            tensor = tensor.to_dense()
        if self.parts == 2:
            tensor = torch.view_as_real(tensor.to(torch.complex128).resolve_conj())
        elif tensor.is_complex():
            tensor = tensor.real
        return tensor.reshape(-1).to(self.home, WORKING_DTYPE)

    def unflatten(self, vector: Tensor) -> Tensor:
        # A fresh tensor, no view: forward mode treats views otherwise, and crashes on a misaligned complex one.
        if self.is_plain:
            return vector.clone() if self._flat else vector.view(self.shape).clone()
        if self.parts == 2:
            pairs = vector.clone().view(*self.shape, 2)
            return torch.view_as_complex(pairs).to(self.device, self.dtype, copy=True)
        return vector.view(self.shape).to(self.device, self.dtype, copy=True)

    def shaped(self, vector: Tensor) -> Tensor:
        """The stored numbers of a value, perhaps in the memory of the vector: for reading only."""
        if self._flat:
            return vector
        return vector.view(self.shape) if self.is_plain else self.unflatten(vector)

    def units(self, first: int, last: int) -> Sequence[Tensor]:
        """Some vectors of the basis, `shaped`."""
        if self.size == 1:  # one operation in place of three saves time in checks of few numbers
            return [torch.ones(self.shape, dtype=self.dtype, device=self.device)]
        matrix = unit_matrix(first, last, self.size, self.home)
        return (matrix.view(-1, *self.shape) if self.is_plain else self.unflatten_rows(matrix)).unbind()

    def unflatten_rows(self, matrix: Tensor) -> Tensor:
        """A value for each row, stacked along a first axis, in their own storage."""
        matrix = matrix.clone().to(self.device).view(len(matrix), *self.shape, *([2] if self.parts == 2 else []))
        return (torch.view_as_complex(matrix) if self.parts == 2 else matrix).to(self.dtype)

    def label(self, index: int) -> str:
        number, part = divmod(index, self.parts)
        indices = []
        for length in reversed(self.shape):
            number, position = divmod(number, length)
            indices.append(position)
        place = str(indices[::-1]) if self.shape else ""
        return place + (".real", ".imag")[part] if self.parts == 2 else place


def unit_matrix(first: int, last: int, size: int, home: torch.device) -> Tensor:
    """The vectors of the basis from number `first` up to `last`, in rows."""
    if not first:  # one operation instead of three
        return torch.eye(last, size, dtype=WORKING_DTYPE, device=home)
    rows: Tensor = unit_rows(torch.zeros((last - first, size), dtype=WORKING_DTYPE, device=home), first)
    return rows


def flattened(space: Space, values: Sequence[Any], zeros: Callable[[int], Tensor]) -> Tensor:
    """Values as one vector of a space, perhaps in the memory of the only value; a missing one counts as zero."""
    if len(values) == 1 and values[0] is not None:
        return space.leaves[0].coordinates.flatten(values[0])  # type: ignore[no-any-return]
    pairs = zip(space.leaves, values, strict=True)
    if space.size > LARGE:  # leaf by leaf: a list of all of them would be one more vector
        vector = zeros(space.size)
        for (leaf, value), part in zip(pairs, space.slices, strict=True):
            if value is not None:
                vector[part] = leaf.coordinates.flatten(value)
        return vector
    parts = [zeros(leaf.coordinates.size) if x is None else leaf.coordinates.flatten(x) for leaf, x in pairs]
    return torch.cat(parts) if parts else zeros(0)


def unflattened(space: Space, vector: Tensor) -> list[Any]:
    """One value for each leaf of a space, each in storage of its own."""
    if len(space.leaves) == 1:
        return [space.leaves[0].coordinates.unflatten(vector)]
    pairs = zip(space.leaves, space.slices, strict=True)
    return [leaf.coordinates.unflatten(vector[part]) for leaf, part in pairs]


def dense_coordinates(value: Any, home: torch.device) -> Dense:
    """The coordinates of a tensor or a tensor-like object."""
    return Dense(value.size(), value.dtype, value.device if isinstance(value, Tensor) else home, home)


def _tensor(value: Any) -> Tensor:
    """A tensor with the numbers of a tensor-like value."""
    if isinstance(value, Tensor):
        plain: Tensor = without_operators(value.detach())
        return plain
    return torch.tensor(value.data.tolist(), dtype=value.dtype, device="cpu")


def without_operators(value: Any) -> Any:
    """A tensor of a subclass as one of torch's own class, in the same memory: a subclass may define `*` or `+` anew.

    One that defines what torch's operators do on it (`__torch_dispatch__`) is returned as it is.
    """
    kind = type(value)
    if kind is Tensor or not isinstance(value, Tensor) or value.layout is not torch.strided:
        return value
    if kind.__torch_dispatch__ is not Tensor.__torch_dispatch__:
        return value
    memory = value.resolve_conj().resolve_neg()
    plain = torch.empty(0, dtype=value.dtype, device=value.device)
    return plain.set_(memory.untyped_storage(), memory.storage_offset(), memory.size(), memory.stride())


class Strided:
    """Perturbs the numbers of the caller's tensor in place.

    `independent` says whether perturbing one coordinate leaves the others unchanged.
    """

    __slots__ = ("_base", "_rounding", "coordinates", "independent", "tensor")

    compared: tuple[str, ...] = ("layout", "dtype", "device", "shape")
    """Attributes that a gradient shares with the argument."""

    def __init__(self, tensor: Any, home: torch.device, coordinates: Any = None) -> None:
        self.tensor, self.coordinates = tensor, coordinates
        if coordinates is None:
            self.coordinates = dense_coordinates(tensor, home)
        numbers = self.numbers
        self._base: Any = without_operators(numbers.clone())
        self._rounding: float | None = None
        is_contiguous = isinstance(numbers, Tensor) and numbers.is_contiguous()
        self.independent = is_contiguous or separate(numbers.size(), numbers.stride())

    @property
    def numbers(self) -> Any:
        """The stored numbers. Writing to them changes the tensor and counts no version."""
        return self.tensor.data

    @property
    def base(self) -> Any:
        """A copy of the numbers as they are without a perturbation."""
        if self._base is None:
            self._base = without_operators(self.numbers.clone())
        return self._base

    @property
    def unperturbed(self) -> Any:
        """The numbers as they were found; of a sparse tensor, the tensor."""
        return self.base

    def release(self) -> None:
        """Drop the copy of the numbers, which are not perturbed, until it is needed again."""
        self._base = None

    def rounded(self, vector: Tensor) -> tuple[Tensor, Tensor]:
        """A displacement of the stored numbers as rounding leaves it, and the vector of coordinates of that."""
        rounded = self._rounded(vector)
        return rounded, self.coordinates.flatten(rounded)

    def _rounded(self, vector: Tensor) -> Tensor:
        rounded: Tensor = (self.base + self.coordinates.shaped(vector)).sub_(self.base)
        # Infinite elements cannot be perturbed: inf - inf is NaN.
        return rounded if self.step_rounding(1.0) < torch.inf else torch.nan_to_num(rounded, 0.0, 0.0, 0.0)

    def place(self, displacement: Tensor, scale: float) -> Any:
        """Perturb by scale · displacement; returns the argument for the function."""
        # Added, not assigned: if a tensor is passed twice, both displacements count.
        self.numbers.add_(displacement, alpha=scale)
        return self.tensor

    def points(self, displacements: Tensor) -> Tensor | None:
        """Copies of the argument, each displaced by one row, stacked for `vmap`; None where a layout cannot."""
        stacked: Tensor = self.base + self.coordinates.unflatten_rows(displacements)
        return stacked

    def restore(self) -> None:
        """Restore the argument, bit for bit."""
        self.numbers.copy_(self.base)

    def undo_writes(self) -> bool:
        """Restore the tensor, which is not perturbed; whether something had written to it."""
        if same_numbers(self.numbers, self.base):
            return False
        self.restore()
        return True

    def step_rounding(self, step: float) -> float:
        """The largest relative change of a step of this size by rounding: half a unit of the largest number."""
        if self._rounding is None:
            self._rounding = 0.0
            if self.base.nelement():
                least, most = torch.aminmax(torch.view_as_real(self.base) if self.base.is_complex() else self.base)
                # Both are NaN if there is one.
                self._rounding = torch.finfo(self.base.dtype).eps / 2.0 * max(most.item(), -least.item())
        return self._rounding / step

    def dual(self, tangent: Tensor | None) -> Tensor:
        """The argument for forward mode: detached, with a tangent (a tensor like it) or without."""
        return dual_of(self.tensor.detach(), tangent)

    def mismatches(self, gradient: Any) -> list[tuple[str, str, str]]:
        """(attribute, found, expected) wherever a gradient is not like the argument."""
        if not isinstance(gradient, Tensor) or not isinstance(self.tensor, Tensor):
            return []
        attributes = attrgetter(*self.compared)
        found, expected = attributes(gradient), attributes(self.tensor)
        if found == expected:
            return []
        rows = zip(self.compared, found, expected, strict=True)
        return [(name, str(one), str(other)) for name, one, other in rows if one != other]


class Inputs:
    """The inputs of a function as one vector of a space: they are perturbed together, and always restored."""

    def __init__(self, tensors: Sequence[Any], layouts: Sequence[Strided], space: Space) -> None:
        self.tensors, self.layouts, self.space = tensors, layouts, space
        self._sizes = [layout.coordinates.size for layout in layouts]
        self.point: Tensor | None = None
        """The vector of the inputs as they were found, if it is known."""
        self._is_perturbed = False

    def find_point(self, zeros: Callable[[int], Tensor]) -> Tensor:
        """The vector of the inputs as they were found: a call may write to them. Kept unless it is large."""
        point = flattened(self.space, [layout.unperturbed for layout in self.layouts], zeros)
        point = point.clone() if len(self.layouts) == 1 else point
        self.point = point if self.space.size <= LARGE else None
        return point

    def release(self, *, with_copies: bool) -> None:
        """Drop the point, and the copies of the inputs too if that is asked, until they are needed again."""
        self.point = None
        for layout in self.layouts if with_copies else ():
            layout.release()

    def overwritten(self) -> list[str]:
        """The names of the inputs that a call has written to, which are restored."""
        named = zip(self.layouts, self.space.leaves, strict=True)
        return [leaf.name for layout, leaf in named if layout.undo_writes()]

    def perturbation(self, displacement: Tensor, *, has_vector: bool) -> Perturbation:
        """A displacement as rounding leaves it; without its vector unless that is asked."""
        if len(self.layouts) == 1:  # without `split` and `cat`: saves time in checks of few numbers
            part, vector = self.layouts[0].rounded(displacement)
            return Perturbation([part], vector)
        pieces = zip(self.layouts, displacement.split(self._sizes), strict=True)
        if not has_vector:
            return Perturbation([layout.rounded(piece)[0] for layout, piece in pieces], None)
        parts, vectors = zip(*[layout.rounded(piece) for layout, piece in pieces], strict=True)
        return Perturbation(parts, torch.cat(vectors))

    def unit_steps(self, start: int, stop: int) -> list[Perturbation]:
        """The steps along single coordinates from number `start` up to `stop`."""
        found: list[Perturbation] = []
        for leaf, own in enumerate(self.space.slices):
            first, last = max(start, own.start) - own.start, min(stop, own.stop) - own.start
            for displacement in self.layouts[leaf].coordinates.units(first, last) if first < last else ():
                parts: list[Any] = [None] * len(self.layouts)
                parts[leaf] = displacement
                found.append(Perturbation(parts, None))
        return found

    def perturbed(self, perturbation: Perturbation, scale: float = 1.0) -> Sequence[Any]:
        """The inputs with scale · perturbation added, the tensors themselves where possible; to be restored."""
        self.restore()
        self._is_perturbed = True
        parts = zip(self.layouts, perturbation.parts, self.tensors, strict=True)
        placed = [given if part is None else layout.place(part, scale) for layout, part, given in parts]
        return self.tensors if all(map(operator.is_, placed, self.tensors)) else placed

    def displaced(self, displacement: Tensor, *, has_vector: bool) -> tuple[Sequence[Any], Tensor | None]:
        """The inputs perturbed by a displacement, and the vector of that as rounding leaves it; to be restored."""
        perturbation = self.perturbation(displacement, has_vector=has_vector)
        return self.perturbed(perturbation), perturbation.vector

    def restore(self) -> None:
        """Restore the inputs, bit for bit."""
        for layout in self.layouts if self._is_perturbed else ():
            layout.restore()
        self._is_perturbed = False


def dual_of(primal: Tensor, tangent: Tensor | None) -> Tensor:
    """The dual number of a primal and its tangent; without a tangent the primal itself."""
    dual: Tensor = primal if tangent is None else forward_ad.make_dual(primal, tangent)
    return dual


def same_numbers(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors hold the same numbers; NaN counts as equal to NaN."""
    if is_freed(one) or is_freed(other):
        return False
    return not one.numel() or torch.equal(one, other) or torch.equal(one.nan_to_num(), other.nan_to_num())


def is_zero(gradient: Any) -> bool:
    """Whether a gradient is missing, or a dense tensor of zeros."""
    return gradient is None or (
        type(gradient) is Tensor and gradient.layout is torch.strided and not torch.count_nonzero(gradient)
    )


def is_freed(tensor: Tensor) -> bool:
    """Whether the memory of a strided tensor was freed or made smaller: reading its elements crashes the process."""
    is_plain = tensor.layout is torch.strided and not tensor.is_nested
    if not is_plain or not tensor.numel() or hasattr(type(tensor), "__tensor_flatten__"):
        return False
    available = storage_bytes(tensor)
    if tensor.nbytes == available and tensor.is_contiguous() and not tensor.storage_offset():
        return False
    return _needed_bytes(tensor) > available


def _needed_bytes(tensor: Tensor) -> int:
    """The size of the memory up to the last element of a strided tensor."""
    reach = sum(step * (length - 1) for step, length in zip(tensor.stride(), tensor.size(), strict=True))
    return int(tensor.storage_offset() + reach + 1) * tensor.itemsize


def refill(tensor: Tensor, numbers: Tensor) -> None:
    """Give a tensor these numbers, past autograd. Memory that was freed is allocated again: reversible layers free that
    of their arguments, needed by `test_layer_that_frees_its_argument_passes`.
    """
    if is_freed(tensor):
        tensor.untyped_storage().resize_(_needed_bytes(tensor))
    tensor.data.copy_(numbers)


def storage_bytes(tensor: Tensor) -> int:
    """The size of a tensor's memory; 0 for one of a transform such as vmap, which has none of its own."""
    try:
        return tensor.untyped_storage().nbytes()
    except NotImplementedError:
        return 0


def overlaps(tensor: Tensor) -> bool:
    """Whether elements of a strided tensor may share memory: one cannot be perturbed without the others."""
    return tensor.layout is torch.strided and not separate(tensor.size(), tensor.stride())


def separate(size: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether no two indices share memory, by the usual sufficient test: each stride clears the smaller dimensions."""
    reach = 0
    for step, length in sorted(zip(strides, size, strict=True)):
        if length > 1:
            if step <= reach:
                return False
            reach += step * (length - 1)
    return True
