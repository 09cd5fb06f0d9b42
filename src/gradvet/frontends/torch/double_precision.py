"""Runs a function in double precision whatever it casts, captures or draws: operators are intercepted one by one.

Contains the mode and the record of random draws. Whether the result is a wider version is decided in `wider_version`.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from gradvet.frontends.torch import private

RANDOM_OPERATORS = frozenset(
    (
        *("bernoulli", "binomial", "cauchy", "exponential", "geometric", "log_normal", "multinomial", "native_dropout"),
        *("normal", "poisson", "rand", "rand_like", "randint", "randint_like", "randn", "randn_like", "random"),
        *("randperm", "uniform"),
    )
)
"""Operators that only draw. Fused attention is tagged as random too, and its result is computed from its inputs."""

NORMAL_OF_TENSORS = frozenset(f"aten::normal.{kind}" for kind in ("Tensor_float", "float_Tensor", "Tensor_Tensor"))
"""Operators that add a tensor of means to what they draw, or multiply it by a tensor of deviations."""

STRICT_FUNCTIONS = frozenset(
    {
        torch.conv1d,
        torch.conv2d,
        torch.conv3d,
        torch.conv_transpose1d,
        torch.conv_transpose2d,
        torch.conv_transpose3d,
        functional.scaled_dot_product_attention,
        functional.multi_head_attention_forward,
    }
)
"""Functions that refuse arguments of different formats before they call an operator. Needed by
`test_functions_that_compare_formats_before_they_call_an_operator_have_a_wider_version`."""

AUTOCAST_DEVICES = ("cpu", "cuda")


def _grouped_product(
    a: Tensor, b: Tensor, offs: Tensor | None = None, bias: Tensor | None = None, out_dtype: Any = None
) -> Tensor:
    """The products of groups of rows or columns, which `offs` ends, as mixtures of experts use them."""
    if bias is not None:
        raise RuntimeError("a grouped product with a bias has no version in double precision")
    if offs is None:
        return a @ b
    ends = offs.tolist()
    parts = [slice(*pair) for pair in zip([0, *ends], ends, strict=False)]
    if a.dim() == b.dim():
        return torch.stack([a[:, part] @ b[part] for part in parts])
    if a.dim() > b.dim():
        return torch.cat([a[group] @ b[:, part] for group, part in enumerate(parts)], dim=-1)
    result = a.new_zeros(a.shape[0], b.shape[-1])
    for group, part in enumerate(parts):
        result[part] = a[part] @ b[group]
    return result


STAND_INS: Mapping[str, Callable[..., Any]] = {"aten::_grouped_mm.": _grouped_product}
"""Operators of torch that refuse double precision, in plain products. Needed by
`test_mixture_of_experts_with_grouped_products_passes`."""


def wide_dtype(dtype: torch.dtype, wide: torch.dtype = torch.float64) -> torch.dtype:
    """A format of at least the precision of `wide`, complex if the given one is; integers and booleans as they are."""
    if not (dtype.is_complex or dtype.is_floating_point) or torch.finfo(dtype).eps <= torch.finfo(wide).eps:
        return dtype
    return wide.to_complex() if dtype.is_complex else wide


def widened(value: Any) -> Any:
    """A value with all its tensors and dtypes in double precision; the same object where nothing changes."""
    if isinstance(value, (Tensor, torch.dtype)):
        dtype = value.dtype if isinstance(value, Tensor) else value
        wide = wide_dtype(dtype)
        if wide is dtype:
            return value
        return value.to(wide) if isinstance(value, Tensor) else wide
    if isinstance(value, (list, tuple)):
        items = [widened(item) for item in value]
        if all(one is other for one, other in zip(items, value, strict=True)):
            return value
        return type(value)(items) if type(value) in (list, tuple) else type(value)(*items)
    return value


def is_strided(value: Any) -> bool:
    """Whether this is a tensor whose elements lie at strides in memory."""
    return isinstance(value, Tensor) and value.layout is torch.strided


def largest_eps(value: Any) -> float:
    """The largest eps of the floating-point and complex tensors in nested sequences; 0 if there is none."""
    if isinstance(value, Tensor):
        return float(torch.finfo(value.dtype).eps) if value.is_floating_point() or value.is_complex() else 0.0
    if isinstance(value, (list, tuple)):
        return max(map(largest_eps, value), default=0.0)
    return 0.0


@dataclass(frozen=True, slots=True)
class _Traits:
    """Facts about an operator from its schema."""

    name: str
    draws: bool
    writes: tuple[tuple[int, str], ...]
    """Position and name of the arguments that it writes to."""
    is_view: bool
    has_dtype: bool
    flag: int | None
    """Position of the argument that asks for float32 results of half-precision inputs."""
    body: Callable[..., Any] | None
    """The Python function that an operator of the user runs."""

    @classmethod
    @functools.cache
    def of(cls, operator: Any) -> _Traits:
        schema = private.schema_of(operator)
        arguments = list(schema.arguments)
        base = schema.name.removeprefix("aten::")
        names = [argument.name for argument in arguments]
        writes = tuple((i, a.name) for i, a in enumerate(arguments) if a.alias_info and a.alias_info.is_write)
        return cls(
            f"{schema.name}.{schema.overload_name}",
            torch.Tag.nondeterministic_seeded in operator.tags
            and base.removesuffix("_") in RANDOM_OPERATORS
            and bool(writes) == base.endswith("_"),
            writes,
            any(value.alias_info is not None and not value.alias_info.is_write for value in schema.returns),
            "dtype" in names,
            names.index("half_to_float") if "half_to_float" in names else None,
            private.operator_body(operator),
        )


_Draw = tuple[tuple[torch.dtype, ...], torch.dtype]
"""The dtypes of a draw: of its tensor arguments in order, and of its result."""


@dataclass(slots=True)
class Formats:
    """In which formats a function rounds its results and draws random numbers.

    Draws are kept by operator and state of the generator: from the same state the same operator draws the same numbers
    in the same format, and others in another format. Needed by `test_the_wider_version_draws_the_same_numbers`.
    """

    rounding: float = 0.0
    """The eps of the coarsest format in which an operator returned a result, views of captured tensors left out."""
    _draws: dict[tuple[str, bytes], _Draw] = field(default_factory=dict)

    @property
    def has_draws(self) -> bool:
        return bool(self._draws)

    @classmethod
    def of(cls, function: Callable[..., Any], arguments: Sequence[Any]) -> Formats:
        """The formats of one call of the function; none if operators cannot be intercepted."""
        formats = cls()
        mode = private.operator_mode(formats._recorded)
        if mode is not None:
            with mode:
                function(*arguments)
        return formats

    def of_draw(self, name: str, state: bytes) -> _Draw | None:
        """The formats in which the operator drew from this state."""
        return self._draws.get((name, state))

    def _recorded(self, operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        traits = _Traits.of(operator)
        if not traits.draws:
            result = operator(*args, **kwargs)
            if not traits.is_view:
                self.rounding = max(self.rounding, largest_eps(result))
            return result
        state = _generator_state(args, kwargs)
        dtypes = tuple(value.dtype for value in (*args, *kwargs.values()) if isinstance(value, Tensor))
        result = operator(*args, **kwargs)
        first = result[0] if isinstance(result, (tuple, list)) else result
        self._draws[traits.name, state] = dtypes, first.dtype
        return result


def _generator_state(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
    """The state of the generator from which an operator with these arguments draws."""
    generator = next((value for value in (*args, *kwargs.values()) if isinstance(value, torch.Generator)), None)
    if generator is not None:
        state = generator.get_state()
    else:
        place = next((value.device for value in args if isinstance(value, Tensor)), kwargs.get("device"))
        device = torch.device(place or "cpu")
        state = torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()
    return state.numpy().tobytes()


def _with_wide_arguments(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The result of a function of torch, with wider arguments if it would refuse the given ones."""
    if func in STRICT_FUNCTIONS:
        args, kwargs = widened(args), {name: widened(value) for name, value in kwargs.items()}
    return func(*args, **kwargs)


class DoublePrecision:
    """A mode in which every operator computes in double precision and draws in the formats of a record.

    Tensors of lower precision are widened when they enter an operator, or a function that compares their formats first;
    casts to lower formats are left out, autocast is off. An operator that would write into a tensor of lower precision
    raises `RuntimeError`.
    """

    def __init__(self, formats: Formats) -> None:
        self._formats = formats
        self._mode = private.operator_mode(self._run)
        self._stand_ins: set[Any] = set()
        """The memory of copies whose views were taken: a write to them would be lost."""
        self.coarsest = 0.0
        """The largest eps of results that an operator returned in lower precision although its inputs were double."""
        self.was_refused = False
        self._takes_narrow = False
        self._noted: list[tuple[str, torch.Size, Any]] | None = None
        """Where tensors of lower precision that operators take are noted: the operator, their shapes and sums."""

    def rounds_outside(self, evaluate: Callable[[float], object]) -> bool:
        """Whether values are rounded to lower precision outside of torch, as by NumPy, and come back.

        Then they differ after a relative step, which `evaluate` takes. Needed by
        `test_stop_that_rounds_outside_of_torch_is_named`.
        """
        taken: list[Any] = []
        for step in (0.0, 2.0**-9) if self._takes_narrow else ():
            self._noted = []
            evaluate(step)
            taken.append(self._noted)
        self._noted = None
        same = itertools.takewhile(lambda pair: pair[0][:2] == pair[1][:2], zip(*taken, strict=False))
        return any(here != there for here, there in same)

    @property
    def is_available(self) -> bool:
        return self._mode is not None

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, called in the mode."""

        def in_double_precision(*values: Any) -> Any:
            with self.active():
                return function(*values)

        return in_double_precision

    @contextmanager
    def active(self) -> Iterator[None]:
        """Enter the mode, unless it is entered already."""
        if self._mode is None or self._mode.is_open:
            yield
            return
        with _without_autocast(), _default_double():
            try:
                with self._mode, private.FunctionMode(_with_wide_arguments):
                    yield
            finally:
                self._stand_ins.clear()

    def _run(self, operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        traits = _Traits.of(operator)
        if traits.writes:
            self._refuse_narrow_writes(traits, args, kwargs)
        if traits.draws:
            formats = self._formats.of_draw(traits.name, _generator_state(args, kwargs))
            if formats is not None:
                return widened(_drawn(operator, traits, formats, args, kwargs))
        if traits.name == "aten::view.dtype":
            return widened(operator(*args))  # integers as numbers, or the bits of a number, in the format that is asked
        given = [widened(value) for value in args]
        narrow = [one for one, other in zip(args, given, strict=True) if one is not other and is_strided(one)]
        self._takes_narrow |= bool(narrow)
        if self._noted is not None:
            self._noted += [(traits.name, one.shape, one.nan_to_num().sum().item()) for one in narrow]
        words = {name: widened(value) for name, value in kwargs.items()}
        if traits.is_view and traits.name != "aten::lift_fresh.":
            copies = [one for one, other in zip(given, args, strict=True) if one is not other and is_strided(one)]
            self._stand_ins.update(map(private.storage_reference, copies))
        if traits.flag is not None and traits.flag < len(given):
            given[traits.flag] = False
        if traits.body is not None:
            with self._mode:  # type: ignore[union-attr]
                return self._kept(traits.body(*given, **words))
        return self._kept(STAND_INS.get(traits.name, operator)(*given, **words))

    def _kept(self, result: Any) -> Any:
        wide = widened(result)
        if wide is not result:
            self.coarsest = max(self.coarsest, largest_eps(result))
        return wide

    def _refuse_narrow_writes(self, traits: _Traits, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        for position, name in traits.writes:
            value = args[position] if position < len(args) else kwargs.get(name)
            for tensor in value if isinstance(value, (list, tuple)) else [value]:
                if isinstance(tensor, Tensor) and self._stands_for_narrow(tensor):
                    self.was_refused = True
                    raise RuntimeError(f"{traits.name} writes into a tensor of lower precision")

    def _stands_for_narrow(self, tensor: Tensor) -> bool:
        """Whether a tensor has lower precision, or is a view of the copy that replaces one that has."""
        if tensor.dtype is not wide_dtype(tensor.dtype):
            return True
        return bool(self._stand_ins) and is_strided(tensor) and private.storage_reference(tensor) in self._stand_ins


def _drawn(operator: Any, traits: _Traits, formats: _Draw, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The draw in the recorded formats."""
    dtypes = iter(formats[0])

    def narrow(value: Any) -> Any:
        return value.to(next(dtypes, value.dtype)) if isinstance(value, Tensor) else value

    if traits.name.startswith("aten::native_dropout."):
        # The mask alone is drawn: the other result is computed from the input.
        x, probability = args[0], args[1]
        mask = operator(torch.ones_like(x, dtype=formats[0][0]), *args[1:], **kwargs)[1]
        kept = 0.0 if probability == 1.0 else 1.0 / (1.0 - probability)
        return (widened(x) * mask * kept if args[2] is not False else widened(x)), mask
    if traits.name in NORMAL_OF_TENSORS:
        # The result depends on mean and deviation: standard numbers alone are drawn.
        pair = (*args[:2], 1.0)[:2]
        standard = [
            torch.full_like(x, constant, dtype=next(dtypes)) if isinstance(x, Tensor) else constant
            for x, constant in zip(pair, (0.0, 1.0), strict=True)
        ]
        mean, deviation = map(widened, pair)
        return widened(operator(*standard, *args[2:], **kwargs)) * deviation + mean
    if traits.writes:
        own = args[0] if args else kwargs["self"]
        fresh = torch.empty_like(own, dtype=next(dtypes, own.dtype))
        operator(fresh, *map(narrow, args[1:]), **{name: narrow(value) for name, value in kwargs.items()})
        return own.copy_(fresh)
    words = {name: narrow(value) for name, value in kwargs.items()}
    if traits.has_dtype:
        words["dtype"] = formats[1]
    return operator(*map(narrow, args), **words)


@contextmanager
def _default_double() -> Iterator[None]:
    """Factory functions without a dtype, and quotients of integers, are double precision."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def _without_autocast() -> Iterator[None]:
    """Autocast off, and no cast of a parameter kept: a kept one would be used in both precisions."""
    enabled = [device for device in AUTOCAST_DEVICES if torch.is_autocast_enabled(device)]
    keeps = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    for device in enabled:
        torch.set_autocast_enabled(device, False)
    try:
        yield
    finally:
        for device in enabled:
            torch.set_autocast_enabled(device, True)
        torch.set_autocast_cache_enabled(keeps)
