"""Generated points (copies of the user's tensors with zeros, ones, ties, other scales and signs) and generated shapes.

They lie in the regions of `domain=`. A point may have several forms, for functions that are not defined at the first.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gradvet.core.frontend import Point, examples, is_strategy
from gradvet.errors import InvalidProblemError
from gradvet.frontends.torch import private
from gradvet.frontends.torch.binding import Binding
from gradvet.frontends.torch.preservation import MAX_SEARCHED_OBJECTS, reachable_objects
from gradvet.frontends.torch.problem import TorchProblem

Change = Callable[[Tensor, torch.Generator], Tensor]


def _half(x: Tensor, generator: torch.Generator) -> Tensor:
    """About half of the entries at random: the first always, and of several never the last."""
    chosen = torch.randint(2, x.shape, generator=generator, dtype=torch.bool, device="cpu")
    if x.numel():
        entries = chosen.view(-1)
        entries[-1].fill_(False)
        entries[0].fill_(True)
    return chosen if x.is_cpu else chosen.to(x.device)


def _zeros(x: Tensor, generator: torch.Generator) -> Tensor:
    """Zeros in half of a vector; in other tensors the first row and about a quarter of the rest."""
    chosen = _half(x, generator)
    if x.dim() > 1 and len(x) > 1:
        chosen = chosen & _half(x, generator)
        chosen[0] = True
    return x.masked_fill(chosen, 0.0)


def _signs(x: Tensor) -> Tensor:
    real = x.real if x.is_complex() else x
    return torch.copysign(real.new_ones(()), real).to(x.dtype)


def _ties(x: Tensor, generator: torch.Generator) -> Tensor:
    """Every second entry is a copy of the one before it."""
    every_second = x.reshape(-1)[::2]
    return torch.stack((every_second, every_second), 1).view(-1)[: x.numel()].view(x.shape)


def _integers(x: Tensor, generator: torch.Generator) -> Tensor:
    return torch.view_as_complex(torch.view_as_real(x).round()) if x.is_complex() else x.round()


def _counts(x: Tensor, generator: torch.Generator) -> Tensor:
    """The next integers away from zero."""
    whole = _integers(x, generator)
    return torch.where(whole == 0, _signs(x), whole)


def _times(factor: float) -> Change:
    return lambda x, generator: factor * x


def _ones_and_ties(x: Tensor, generator: torch.Generator) -> Tensor:
    """Half are 1 or -1, the rest come in equal pairs."""
    return torch.where(_half(x, generator), _signs(x), _ties(x, generator))


def _far(x: Tensor, generator: torch.Generator) -> Tensor:
    """Eight times as large; with the other sign where there are both signs, so that neither sign is unusual."""
    real = x.real if x.is_complex() else x
    low, high = torch.aminmax(real) if real.numel() else (0.0, 0.0)
    return (-8.0 if float(low) < 0.0 < float(high) else 8.0) * x


SMALL_CHANGES: Mapping[str, Sequence[Change]] = {
    "zeros": (_zeros,),
    "ones and ties": (_ones_and_ties,),
    "eight times larger": (_far, _times(8.0)),
    "a thousand times larger": (_times(1024.0),),
    "the origin": (lambda x, generator: torch.zeros_like(x),),
}
"""The forms of each point by name, the preferred one first."""

MORE: Mapping[str, Sequence[Change]] = {
    "integers": (_integers, _counts),
    "other sign": (_times(-1.0),),
    "64 times larger": (_times(64.0),),
    "a million times smaller": (_times(2.0**-20), _times(2.0**-8)),
    "pairs": (_ties,),
    "all ones": (lambda x, generator: torch.ones_like(x),),
    "all minus ones": (lambda x, generator: -torch.ones_like(x),),
    "all equal": (lambda x, generator: torch.full_like(x, x.reshape(-1)[0].item()) if x.numel() else x,),
}
"""Points of a thorough search in addition."""


MAX_EXAMPLES = 64
"""Numbers that are drawn from a strategy of numbers; larger tensors repeat them."""

Region = Any
"""An interval `(low, high)` with None for no bound; a function of candidate values that returns which are inside (a
mask, or one truth value) or other values of the same shape (a sampler); or a Hypothesis strategy of numbers or tensors.
"""


def _regions_of(given: Any, names: Sequence[str]) -> dict[int, Region]:
    """The regions by position of the argument, from one per input in their order, by name or number, or one for all."""
    if given is None:
        return {}
    if isinstance(given, Mapping):
        return {_place(key, names): region for key, region in given.items()}
    if not isinstance(given, list):
        return dict.fromkeys(range(len(names)), given)
    if len(given) > len(names):
        raise InvalidProblemError(f"domain= has {len(given)} entries for {len(names)} inputs: give one each")
    return {place: region for place, region in enumerate(given) if region is not None}


def _inside(region: Region, candidate: Tensor, own: Tensor) -> Tensor | None:
    """The candidate with numbers outside of the region replaced by the user's; None if all are outside."""
    if is_strategy(region):
        return own if own.shape == candidate.shape else None
    if isinstance(region, tuple):
        if candidate.is_complex():
            raise InvalidProblemError("an interval is for real inputs; give a function for a complex one")
        low, high = (-math.inf if region[0] is None else region[0], math.inf if region[1] is None else region[1])
        return _kept(candidate, (candidate >= low) & (candidate <= high), own)
    answer = region(candidate)
    if isinstance(answer, Tensor) and answer.dtype is not torch.bool:
        if answer.shape != candidate.shape:
            raise InvalidProblemError(
                f"the sampler of domain= must give values of the shape {tuple(candidate.shape)} that it receives, "
                f"found {tuple(answer.shape)}"
            )
        return answer.detach().to(candidate.dtype)
    if isinstance(answer, Tensor) and answer.dim():
        return _kept(candidate, answer, own)
    return candidate if bool(answer) else None


def _kept(candidate: Tensor, allowed: Tensor, own: Tensor) -> Tensor | None:
    if bool(allowed.all()):
        return candidate
    if candidate.shape != own.shape:
        return None
    return torch.where(allowed, candidate, own) if bool(allowed.any()) else None


def _drawn_from(strategy: Any, like: Tensor, seed: int) -> Tensor:
    """A tensor from a strategy of tensors, or numbers from a strategy of numbers."""
    first = examples(strategy, min(MAX_EXAMPLES, max(1, like.numel())), seed)
    whole = [torch.as_tensor(value, device=like.device) for value in first]
    for tensor in whole:
        if tensor.dim() and tensor.shape == like.shape:
            return tensor.detach().to(like.dtype).clone()
    numbers = torch.stack([tensor.reshape(-1)[0] for tensor in whole if tensor.numel()]).to(like.dtype)
    index = torch.arange(like.numel(), device=like.device) % len(numbers)
    return numbers[index].reshape(like.shape)


def _place(key: Any, names: Sequence[str]) -> int:
    if isinstance(key, int) and 0 <= key < len(names):
        return key
    if key in names:
        return names.index(key)
    raise InvalidProblemError(f"domain= names {key!r}, but the inputs are: {', '.join(names)}")


class PointSource:
    """Makes points from the point of a problem: the same ones for the same seed."""

    def __init__(self, problem: TorchProblem, function: Any, domain: Any, seed: int) -> None:
        self.problem, self.binding, self.function = problem, problem.binding, function
        self.regions = _regions_of(domain, self.binding.names)
        self.strategies = [place for place, region in self.regions.items() if is_strategy(region)]
        """The positions of arguments that have a strategy."""
        self.generator = torch.Generator("cpu").manual_seed(seed)

    @property
    def places(self) -> list[int]:
        """Positions of the arguments to change: checked inputs, or parameters of a single layer if there are none.

        A model whose weights are all a thousand times larger does not occur in training.
        """
        checked = [i for i in self.binding.checked if self.binding.arguments[i].layout is torch.strided]
        inputs = [i for i in checked if not isinstance(self.binding.arguments[i], nn.Parameter)]
        is_model = isinstance(self.function, nn.Module) and any(True for _ in self.function.children())
        return inputs if inputs or is_model else checked

    def changed(self, change: Change, places: Sequence[int]) -> Binding | None:
        """The binding with some arguments changed; None if that leaves their regions or changes nothing."""
        arguments, fresh = list(self.binding.arguments), False
        for place in places:
            own = arguments[place].detach()
            candidate = change(own, self.generator)
            value = _inside(self.regions[place], candidate, own) if place in self.regions else candidate
            if value is None:
                return None
            fresh = fresh or not torch.equal(value, own)
            arguments[place] = value.clone().requires_grad_()
        return self.binding.at(arguments) if fresh else None

    def example(self) -> Binding:
        """The binding with an example in place of every argument that has a strategy."""
        arguments = list(self.binding.arguments)
        for place in self.strategies:
            seed = int(torch.randint(2**31, (), generator=self.generator, device="cpu"))
            drawn = _drawn_from(self.regions[place], arguments[place].detach(), seed)
            arguments[place] = drawn.requires_grad_(arguments[place].requires_grad)
        return self.binding.at(arguments)


def generated_points(source: PointSource, thorough: bool) -> Iterator[Point]:
    """Points with all inputs changed at once or, in further forms, one alone."""
    places = source.places
    if not places:
        return
    each = [[place] for place in places] if len(places) > 1 else []
    for name, forms in {**_edges(source), **SMALL_CHANGES, **(MORE if thorough else {})}.items():
        yield Point(name, _forms(source, forms, [places, *each[:2]]))
        for place in places if each and thorough else []:
            yield Point(f"{name} in {source.binding.names[place]}", _forms(source, forms, [[place]]))
    for number in range((8 if thorough else 2) if source.strategies else 0):
        yield Point(f"example {number + 1}", iter([source.example()]))


def _forms(source: PointSource, forms: Sequence[Change], where: Sequence[Sequence[int]]) -> Iterator[Binding]:
    for places, change in itertools.product(where, forms):
        if (binding := source.changed(change, places)) is not None:
            yield binding


def _edges(source: PointSource) -> dict[str, Sequence[Change]]:
    """The ends of the intervals that the user gave."""
    intervals = [source.regions.get(place) for place in source.places]
    given = {end for interval in intervals if isinstance(interval, tuple) for end in interval if end is not None}
    ends = sorted(float(end) for end in given if math.isfinite(end))

    def at(end: float) -> Change:
        return lambda x, generator: torch.where(_half(x, generator), torch.full_like(x, end), x)

    return {f"the edge {end:g} of the domain": (at(end),) for end in ends}


MAX_ELEMENTS = 1 << 20
"""Elements up to which an argument may grow: many dimensions of length 1 together would need any amount of memory."""

Dimensions = Sequence[tuple[int, int]]
"""Pairs of an argument's position and a dimension of it."""


def generated_shapes(source: PointSource, thorough: bool, *, empty: bool = True) -> Iterator[Point]:
    """Other lengths along dimensions that are independent of others, or along all if `thorough`; 0 if `empty`."""
    binding = source.binding
    for number, length in enumerate(_lengths(binding) if thorough else _free_lengths(source)):
        together = _dimensions(binding, length)
        aligned = [(place, dimension) for place, dimension in together if dimension == together[0][1]]
        choices = [together, aligned] if thorough and aligned != together else [together]
        places = sorted({place for place, _ in together})
        for other in _others(length, empty=thorough or (empty and not number)):
            name = f"length {other} instead of {length}"
            yield Point(name, _resized(source, choices, other))
            for place in places if thorough and len(places) > 1 else []:
                alone = [dimension for dimension in together if dimension[0] == place]
                yield Point(f"{name} in {binding.names[place]}", _resized(source, [alone], other))


def _free_lengths(source: PointSource) -> list[int]:
    """Of the first input: the first dimension, and if there is no other input, the last one.

    Native code may crash on inconsistent lengths. So nothing is changed if there are integers, which may be indices and
    offsets, and a length of several arguments is kept if another length is a multiple or a divisor of it.
    """
    tensors = [tensor for tensor in source.binding.arguments if _is_free(tensor) and tensor.dim()]
    first = next((tensor for tensor in tensors if tensor.requires_grad and all(tensor.shape)), None)
    if first is None or _refers_to_integers(source) or _makes_integers(source.problem):
        return []
    if len(tensors) == 1:
        return list(dict.fromkeys((first.shape[0], first.shape[-1])))
    length = first.shape[0]
    shared = len({place for place, _ in _dimensions(source.binding, length)}) > 1
    others = {size for tensor in tensors for size in tensor.shape} - {0, 1, length}
    derived = any(size % length == 0 or length % size == 0 for size in others)
    return [] if shared and derived else [length]


def _refers_to_integers(source: PointSource) -> bool:
    """Whether the arguments or the function refer to tensors or arrays of integers."""
    objects = reachable_objects(*source.binding.arguments, source.function, limit=MAX_SEARCHED_OBJECTS)
    return any(map(_is_of_integers, objects))


def _makes_integers(problem: TorchProblem) -> bool:
    """Whether the function makes tensors of integers from no other tensor, such as `torch.tensor([1, 2])`.

    `arange` is left out: its length usually follows that of the inputs. Calls the function. Needed by
    `test_lengths_that_integers_inside_the_function_may_refer_to_are_left_alone`.
    """
    made = False

    def notice(function: Any, given: Sequence[Any], result: Any) -> None:
        nonlocal made
        if isinstance(result, Tensor) and function is not torch.arange and _is_of_integers(result):
            made = made or not any(isinstance(value, Tensor) for value in given)

    problem.cost.forwards += 1
    with private.observing(notice):
        problem.function(*problem.arguments)
    return made


def _is_of_integers(thing: Any) -> bool:
    return str(getattr(thing, "dtype", "")).removeprefix("torch.").startswith(("int", "uint"))


def _others(length: int, *, empty: bool) -> list[int]:
    """One, the nearest of the other parity, and none."""
    nearest = length - 1 if length > 2 else 3
    return [other for other in dict.fromkeys((nearest, 1, *([0] if empty else []))) if other != length]


def _lengths(binding: Binding) -> list[int]:
    """Lengths of dimensions of inputs that may be changed, in the order of the first tensor that is checked."""
    own = [binding.arguments[i] for i in binding.checked if _is_free(binding.arguments[i])]
    return list(dict.fromkeys(int(length) for tensor in own for length in tensor.shape if length))


def _dimensions(binding: Binding, length: int) -> Dimensions:
    """All dimensions of this length."""
    return [
        (place, dimension)
        for place, tensor in enumerate(binding.arguments)
        if _is_free(tensor)
        for dimension, size in enumerate(tensor.shape)
        if size == length
    ]


def _resized(source: PointSource, choices: Sequence[Dimensions], other: int) -> Iterator[Binding]:
    for dimensions in choices:
        arguments: list[Any] = list(source.binding.arguments)
        for place, dimension in dimensions:
            arguments[place] = _with_length(arguments[place], dimension, other)
            if arguments[place] is None:
                break
        else:
            given = {place: source.regions[place] for place, _ in dimensions if place in source.regions}
            if all(_inside(region, arguments[place], arguments[place]) is not None for place, region in given.items()):
                yield source.binding.at(arguments)


def _is_free(value: Any) -> bool:
    return isinstance(value, Tensor) and value.layout is torch.strided and not isinstance(value, nn.Parameter)


def _with_length(tensor: Tensor, dimension: int, other: int) -> Tensor | None:
    """The first entries along a dimension, repeated with a factor of 0.75 if there are too few; None if too large."""
    length = tensor.shape[dimension]
    if other > length and tensor.numel() // max(length, 1) * other > MAX_ELEMENTS:
        return None
    index = torch.arange(other, device=tensor.device) % max(length, 1)
    found = tensor.detach().index_select(dimension, index)
    if other > length and (found.is_floating_point() or found.is_complex()):
        fresh = found.narrow(dimension, length, other - length)
        fresh.mul_(0.75)
    return found.contiguous().requires_grad_(tensor.requires_grad)
