"""Kernels by name: registering them, keeping them in files, and reading expressions such as `rbf + linear`.

A new kernel is one file with a class below `@register_kernel`; see docs/extending/kernel.py.
"""

import ast
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from integrand.errors import InputError
from integrand.kernels.base import Kernel, LeafKernel, Product, Sum
from integrand.priors import (
    at_least,
    at_most,
    between,
    describe_value,
    on_variance,
    prior_named,
    rescaled,
    restore_value,
    standardised,
)
from integrand.registry import Registry

_KERNELS: Registry[type[LeafKernel]] = Registry("kernel")
_COMBINATIONS = {"Sum": Sum, "Product": Product}
_EXAMPLE = "rbf(active=0) + periodic(period=1)*rbf"
# Functions of priors that expressions know beside the priors themselves.
_OF_PRIORS: dict[str, Callable[..., Any]] = {
    f.__name__: f for f in (on_variance, standardised, between, at_most, at_least, rescaled)
}

K = TypeVar("K", bound=type[LeafKernel])


def register_kernel(cls: type[LeafKernel] | None = None, *, alias: Sequence[str] = ()) -> Any:
    """Class decorator: the kernel can be saved, loaded, resumed, and named on the command line.

    Its name in files is that of the class. On the command line it is that name in any case, or an alias.
    """

    def add(cls: K) -> K:
        if not (isinstance(cls, type) and issubclass(cls, LeafKernel)):
            raise InputError(f"register_kernel takes a class derived from LeafKernel or StationaryKernel, not {cls!r}")
        if cls.__name__ in _COMBINATIONS:
            raise InputError(f"a kernel cannot be called {cls.__name__!r}: that is a combination of kernels")
        _KERNELS.register(cls, cls, cls.__name__, alias)
        return cls

    return add if cls is None else add(cls)


def registered_kernels() -> dict[str, type[LeafKernel]]:
    """All registered kernels by their names in files."""
    return dict(_KERNELS)


def kernel_named(name: str) -> type[LeafKernel]:
    """The class of a kernel, by name or alias in any case of letters."""
    return _KERNELS.named(name)


def describe_kernel(kernel: Kernel) -> dict[str, Any]:
    """A kernel tree as JSON. An unregistered kernel is an UnregisteredError that says how to register it."""
    if isinstance(kernel, (Sum, Product)):
        parts = [describe_kernel(part) for part in kernel.parts]
        return {"type": type(kernel).__name__, "name": kernel.name, "parts": parts}
    name = _KERNELS.name_of(type(kernel))
    fields = {f.name: describe_value(getattr(kernel, f.name)) for f in dataclasses.fields(kernel)}
    return {"type": name, **_KERNELS.hint(name), "fields": fields}


def restore_kernel(description: Mapping[str, Any]) -> Kernel:
    """The kernel tree that `describe_kernel` described."""
    name = description["type"]
    if isinstance(name, str) and name in _COMBINATIONS:
        parts = tuple(restore_kernel(part) for part in description["parts"])
        return _COMBINATIONS[name](parts=parts, name=description["name"])
    cls = _KERNELS.restored(name, description.get("module"))
    return cls(**{field: restore_value(value) for field, value in description["fields"].items()})


def parse_kernel(text: str) -> Kernel:
    """The kernel that an expression describes: names, `+`, `*`, parentheses, fields by name, `.named('trend')`.

    Fields hold numbers, tuples, True, False, texts, None, priors such as `gamma(2, 1)`, `between(2, 15)` and
    `standardised(gamma(2, 1))`, or one of these for each column: `{'temp': uniform(2, 15), 'hr': 24}`. What
    `repr` prints of a kernel is such an expression. Nothing in it is executed.

    Examples
    --------
    >>> parse_kernel("rbf(active=0) + periodic(period=1)*rbf")
    RBF(active=(0,)) + Periodic(period=1) * RBF(scale=1)
    """
    try:
        return _kernel(ast.parse(text.strip(), mode="eval").body)
    except InputError as error:
        raise InputError(f"the kernel {_shown(text)} cannot be used: {error}") from None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise InputError(f"the kernel {_shown(text)} cannot be read: write for example {_EXAMPLE}") from None


def parse_value(text: str) -> Any:
    """The number or prior that an expression describes, such as `3.5` or `between(2, 15)`. Nothing is executed."""
    try:
        return _value(ast.parse(text.strip(), mode="eval").body)
    except InputError as error:
        raise InputError(f"{_shown(text)} cannot be used: {error}") from None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise InputError(f"{_shown(text)} cannot be read: write a number, or a prior such as at_most(0.5)") from None


def _shown(text: str) -> str:
    return repr(text if len(text) <= 100 else f"{text[:100]}...")


def _kernel(node: ast.expr) -> Kernel:
    match node:
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _kernel(left) + _kernel(right)
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return _kernel(left) * _kernel(right)
        case ast.Name(id=name):
            return kernel_named(name)()
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=keywords):
            fields, positional = [f.name for f in dataclasses.fields(kernel_named(name))], kernel_named(name).positional
            given = [ast.keyword(field, a) for field, a in zip(positional, map(_column, arguments), strict=False)]
            if len(arguments) > len(positional):
                raise InputError(f"give the fields of {name} by name ({', '.join(fields)}), such as {name}(scale=1)")
            for unknown in (k.arg for k in keywords if k.arg not in fields):
                raise InputError(f"{name} has no field {unknown!r}: it has {', '.join(fields)}")
            return _call(kernel_named(name), name, [], [*given, *keywords])
        case ast.Call(func=ast.Attribute(value=inner, attr="named"), args=[ast.Constant(value=str(name))], keywords=[]):
            return _kernel(inner).named(name)
    raise InputError(
        f"it holds {_shown(ast.unparse(node))}, but only kernels, +, *, parentheses and .named('name') are allowed"
    )


def _column(node: ast.expr) -> ast.expr:
    """A column whose name stands without quotes."""
    return ast.Constant(node.id) if isinstance(node, ast.Name) else node


def _value(node: ast.expr) -> Any:
    """What stands behind `field=`: a constant, a prior, or several of them in a tuple or by column."""
    match node:
        case ast.Constant(value=bool() | int() | float() | str() | None as value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return -value
        case ast.Tuple(elts=entries) | ast.List(elts=entries):
            return tuple(_value(entry) for entry in entries)
        case ast.Dict(keys=keys, values=values) if all(
            isinstance(key, ast.Constant) and isinstance(key.value, str) for key in keys
        ):
            pairs = zip(keys, values, strict=True)
            return {key.value: _value(entry) for key, entry in pairs if isinstance(key, ast.Constant)}
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=keywords) if name.lower() in _OF_PRIORS:
            return _call(_OF_PRIORS[name.lower()], name, arguments, keywords)
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=keywords):
            return _call(prior_named(name), name, arguments, keywords)
    shown = _shown(ast.unparse(node))
    quotes = f" (the name of a column stands in quotes, {node.id!r})" if isinstance(node, ast.Name) else ""
    needed = "a number, a tuple of numbers or a prior such as gamma(2, 1)"
    raise InputError(f"it holds {shown} where {needed} is needed{quotes}")


def _call(make: Callable[..., Any], name: str, arguments: list[ast.expr], keywords: list[ast.keyword]) -> Any:
    values = [_value(argument) for argument in arguments]
    try:
        return make(*values, **{str(k.arg): _value(k.value) for k in keywords})
    except InputError:
        raise
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{name}: {error}") from None
