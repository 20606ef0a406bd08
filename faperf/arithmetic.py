"""Grid arithmetic: `S / 128`, `B * H`, `cdiv(S, 128)`, `58 * 1024`; for real scalars `1 / sqrt(D)`.

Parsed into a tree and walked; never run as code.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from typing import TypeVar

LIMIT = 2**63

_BINARY: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_FUNCTIONS: dict[str, Callable[..., int]] = {"cdiv": lambda a, b: -(-a // b), "min": min, "max": max}
_REAL: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_Number = TypeVar("_Number", int, float)


class ExpressionError(ValueError):
    """What is wrong with an expression, without its place; the caller knows that."""


def evaluate(expression: float | str, names: Mapping[str, int]) -> int:
    """The integer that `expression` gives over `names`. `/` must divide without remainder; `//` and `cdiv` round.

    Raises ExpressionError for anything else: other syntax, an unknown name, a division by zero or with a remainder.
    """
    if isinstance(expression, str):
        return _walked(expression, names, _value)
    if not isinstance(expression, int):
        raise ExpressionError(f"{expression} is no integer")
    if abs(expression) >= LIMIT:
        raise ExpressionError(f"a number of {expression.bit_length()} bits does not fit into 64 bits")
    return expression


def evaluate_real(expression: float | str, names: Mapping[str, int]) -> float:
    """The finite number that `expression` gives over `names`, in float64: + - * / ( ) and sqrt. Raises ExpressionError."""
    try:
        value = _walked(expression, names, _real) if isinstance(expression, str) else float(expression)
    except ExpressionError:
        raise
    except (OverflowError, ValueError) as error:
        raise ExpressionError(f"'{expression}' has no finite value") from error
    if not math.isfinite(value):
        raise ExpressionError(f"'{expression}' has no finite value")
    return value


def _walked(
    expression: str, names: Mapping[str, int], value: Callable[[ast.expr, Mapping[str, int], str], _Number]
) -> _Number:
    try:
        tree = ast.parse(expression.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ExpressionError(f"'{expression}' is not arithmetic") from error
    try:
        return value(tree.body, names, expression)
    except ZeroDivisionError as error:
        raise ExpressionError(f"'{expression}' divides by zero") from error
    except RecursionError as error:
        raise ExpressionError("an expression is nested too deeply") from error


def _named(name: str, names: Mapping[str, int], text: str) -> int:
    if name not in names:
        raise ExpressionError(f"'{text}' names {name}, which the workload lacks (it has {', '.join(names)})")
    return names[name]


def _value(node: ast.expr, names: Mapping[str, int], text: str) -> int:
    match node:
        case ast.Constant(value=int() as number) if not isinstance(number, bool):
            result = number
        case ast.Name(id=name):
            result = _named(name, names, text)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            result = -_value(operand, names, text)
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            dividend, divisor = _value(left, names, text), _value(right, names, text)
            result, remainder = divmod(dividend, divisor)
            if remainder:
                raise ExpressionError(f"'{text}': {dividend} / {divisor} leaves {remainder} (cdiv rounds up, // down)")
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            result = _BINARY[type(op)](_value(left, names, text), _value(right, names, text))
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in _FUNCTIONS:
            if len(arguments) != 2:
                raise ExpressionError(f"'{text}': {name} takes two values")
            result = _FUNCTIONS[name](*(_value(argument, names, text) for argument in arguments))
        case _:
            raise ExpressionError(f"'{text}': only + - * / // % ( ), cdiv, min and max over the workload's names")
    if abs(result) >= LIMIT:
        raise ExpressionError(f"'{text}' does not fit into 64 bits")
    return result


def _real(node: ast.expr, names: Mapping[str, int], text: str) -> float:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return float(number)
        case ast.Name(id=name):
            return float(_named(name, names, text))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_real(operand, names, text)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _REAL:
            return _REAL[type(op)](_real(left, names, text), _real(right, names, text))
        case ast.Call(func=ast.Name(id="sqrt"), args=[operand], keywords=[]):
            return math.sqrt(_real(operand, names, text))
        case _:
            raise ExpressionError(f"'{text}': only + - * / ( ) and sqrt over the workload's names")
