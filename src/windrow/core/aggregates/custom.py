"""Monoids: aggregates of one's own.

A subclass of `Monoid` says how the values of one slice become a state, how two states become one, and how a state
becomes a result. It is then an aggregate like any other, in Python and in SQL text, and shares slices with them:

    class HarmonicMean(wr.Monoid):
        state = {"n": pl.Int64, "inverse": pl.Float64}

        def lift(self, x):                     # the values of one slice, a Polars Series
            return {"n": len(x), "inverse": (1 / x).sum()}

        def merge(self, a, b):                 # many pairs of states at once, a Series for each field
            return {"n": a["n"] + b["n"], "inverse": a["inverse"] + b["inverse"]}

        def lower(self, state):                # many states at once
            return state["n"] / state["inverse"]

    HarmonicMean.of("speed")     "harmonic_mean(speed)"

Python is called once per slice and then once per level of a tree over all windows, never per event. A state is data
of a declared type; whoever reads it finds the class by its name.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import polars as pl

from windrow.core.aggregates.functions import FUNCTIONS, Aggregate, Function
from windrow.core.aggregates.reader import SYNONYMS
from windrow.core.expressions import parse as expressions
from windrow.core.expressions.border import border
from windrow.core.expressions.parse import parse
from windrow.core.operators.base import Operator
from windrow.core.operators.custom import MONOIDS, NO_DATA, Fold, OrderedFold, types_within

_WORDS = {"and", "between", "case", "cast", "else", "in", "is", "like", "not", "or", "then", "when", "where"}
_PLAIN: dict[str, tuple[type, ...]] = {"float": (float, int), "int": (int,), "bool": (bool,), "str": (str,)}


class Monoid:
    """The base class of aggregates of your own; see `docs/own.md` for examples.

    state:        the type of a state, or a dict of field → type: Polars or Arrow types, nested ones too
    commutative:  False if the order of events matters: slices then come to `lift` in order, and `merge` gets the
                  earlier state first
    invertible:   True if there is an `unmerge`, which makes many overlapping windows cheaper; for states that are
                  exact, because what is taken off a sum of floats leaves its error behind
    name:         what it is called in SQL text; by default the class's name in snake case

    lift(self, x, …)              the values of one slice, a Series for each input, without rows in which one is null
                                  and never empty → the state, as plain values; None for none
    merge(self, a, b)             states side by side, a before b; a Series each, or a dict of Series → the same
    lower(self, state)            states → their results, one Series; a window without a state has no result (null)
    unmerge(self, whole, before)  the states s for which merge(before, s) is whole

    The parameters of `__init__` are those of the aggregate: numbers, strings and booleans, each annotated so.
    """

    state: ClassVar[Any]
    commutative: ClassVar[bool] = True
    invertible: ClassVar[bool] = False
    name: ClassVar[str]
    columns: ClassVar[dict[str, pl.DataType]]  # the state's columns

    lift: Callable[..., Any]
    merge: Callable[..., Any]
    lower: Callable[..., Any]
    unmerge: Callable[..., Any]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for needed in ("state", "lift", "merge", "lower", *(["unmerge"] if cls.invertible else [])):
            if not hasattr(cls, needed):
                raise TypeError(f"{cls.__name__} is a Monoid without {needed!r}")
        single = not isinstance(cls.state, Mapping)
        declared = {"state": cls.state} if single else dict(cls.state)
        if not declared or not all(isinstance(name, str) and name for name in declared):
            raise TypeError(f"{cls.__name__}: state must be a type, or a dict of names and types, not {cls.state!r}")
        cls.columns = {name: _type(f"{cls.__name__}.{name}", dtype) for name, dtype in declared.items()}
        cls.name = cls.__dict__.get("name") or re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).lower()
        _register(cls)

    @classmethod
    @border
    def of(cls, *inputs: Any, **params: Any) -> Aggregate:
        """The aggregate over these inputs, which are SQL text, with these parameters: `Ema.of("speed", alpha=0.2)`."""
        try:
            given = signature(cls).bind(*inputs, **params)
        except TypeError as error:
            raise TypeError(f"{cls.__name__}.of: {error}") from None
        given.apply_defaults()
        names = input_names(cls)
        for name in names:
            if not isinstance(given.arguments[name], str):
                raise ValueError(f"{cls.name}: {name} must be SQL text, not {given.arguments[name]!r}")
        params = {name: _plain(cls, name, value) for name, value in given.arguments.items() if name not in names}
        cls(**params)  # its own checks
        return Aggregate(cls.name, tuple(parse(given.arguments[name]) for name in names), tuple(params.items()))


# --- what a class declares ------------------------------------------------------------------------------------------


def input_names(cls: type[Monoid]) -> list[str]:
    """The inputs: the parameters of `lift`."""
    given = list(inspect.signature(cls.lift).parameters.values())[1:]
    if not given or any(each.kind not in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD) for each in given):
        raise TypeError(f"{cls.__name__}.lift must name its inputs, as in lift(self, x)")
    return [each.name for each in given]


def signature(cls: type[Monoid]) -> inspect.Signature:
    """Inputs, then parameters, with the kinds that text is read by; only later than the class, for dataclasses."""
    inputs = [
        inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation="str") for name in input_names(cls)
    ]
    init = cls.__init__
    given = [] if init is object.__init__ else list(inspect.signature(init).parameters.values())[1:]
    params = []
    for parameter in given:
        kind = getattr(parameter.annotation, "__name__", parameter.annotation)
        if kind not in _PLAIN or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise TypeError(
                f"{cls.__name__}: parameter {parameter.name!r} must be annotated as float, int, bool or str"
            )
        read = "text" if kind == "str" else kind
        params.append(parameter.replace(kind=inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=read))
    try:
        return inspect.Signature([*inputs, *params])
    except ValueError as error:  # a name twice, or a default before one without
        raise TypeError(f"{cls.__name__}: {error}") from None


def _plain(cls: type[Monoid], name: str, value: Any) -> Any:
    """A parameter's value, if it is of its kind."""
    read: str = signature(cls).parameters[name].annotation
    kind = "str" if read == "text" else read
    if not isinstance(value, _PLAIN[kind]) or (isinstance(value, bool) and kind != "bool"):
        raise ValueError(f"{cls.name}: {name} must be {kind}, not {value!r}")
    return _PLAIN[kind][0](value)


def _type(what: str, declared: Any) -> pl.DataType:
    """A Polars type; Arrow's own are translated."""
    try:
        if type(declared).__module__.startswith("pyarrow"):
            dtype = pl.Series(sys.modules["pyarrow"].array([], declared)).dtype
        else:
            dtype = declared() if isinstance(declared, type) else declared
    except Exception as error:
        raise TypeError(f"{what}: {declared!r} is not a whole type: {error}") from None
    if not isinstance(dtype, pl.DataType) or any(isinstance(inner, NO_DATA) for inner in types_within(dtype)):
        raise TypeError(
            f"{what}: a state is data of an Arrow type, such as pl.Float64 or pl.List(pl.Int64), not {dtype}"
        )
    return dtype


def _register(cls: type[Monoid]) -> None:
    """Make the class known by its name, to SQL text and to whoever reads a description."""
    name = cls.name
    if not re.fullmatch(r"[a-z_][a-z0-9_]*", name):
        raise TypeError(f"{cls.__name__}: {name!r} is not a name in lower case")
    other = MONOIDS.get(name)
    again = other is not None and (other.__module__, other.__qualname__) == (cls.__module__, cls.__qualname__)
    if not again and (name in FUNCTIONS or name in SYNONYMS or name in _kinds(Operator)):
        whose = f"{other.__module__}.{other.__qualname__}" if other else "windrow itself"
        raise TypeError(f"{cls.__name__}: the name {name!r} is taken by {whose}; set another `name`")
    if name in _WORDS or name.upper() in expressions.FUNCTIONS:
        raise TypeError(f"{cls.__name__}: {name!r} is a word of SQL; set another `name`")
    signature(cls)
    operator = Fold if cls.commutative else OrderedFold
    FUNCTIONS[name] = Function(
        _Make(cls),
        lambda aggregate: (operator(aggregate.inputs, aggregate.function, aggregate.params),),
        lambda _, states: states[0].lower(),
    )
    MONOIDS[name] = cls


def _kinds(operator: type[Operator]) -> set[str]:
    """What operators are called: their states' columns are."""
    kinds = {operator.kind} if "kind" in operator.__dict__ else set()
    return kinds.union(*map(_kinds, operator.__subclasses__()))


@dataclass(frozen=True)
class _Make:
    """`of`, with the signature that text is read by."""

    of: type[Monoid]

    @property
    def __signature__(self) -> inspect.Signature:
        return signature(self.of)

    def __call__(self, *given: Any, **named: Any) -> Aggregate:
        return self.of.of(*given, **named)
