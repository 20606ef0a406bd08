"""What a kernel computes: its parameters, tensors, FLOPs and bytes. One module an operation.

A user's own operation is named in pyproject.toml, `[tool.faperf] operations = {name = "module:ATTRIBUTE"}`; that is the
project's own configuration, never a manifest's, so that a manifest alone runs no code.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import msgspec

from faperf.errors import ConfigError
from faperf.operations.attention_forward import AttentionForward
from faperf.project import Project


class Operation(Protocol):
    """An operation over a shape, which maps each of `parameters` to an integer."""

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> int: ...
    @property
    def parameters(self) -> tuple[str, ...]: ...
    @property
    def layouts(self) -> tuple[str, ...]: ...
    @property
    def tensors(self) -> Mapping[str, str]:
        """What a launch can be given, by name, with the elements' NumPy type: float16, float32, int32, …"""

    @property
    def outputs(self) -> tuple[str, ...]: ...
    @property
    def distributions(self) -> tuple[str, ...]:
        """Kinds of inputs. All are verified; the first one is timed."""

    def flops(self, shape: Mapping[str, int]) -> int:
        """Floating-point operations counted for `shape`, a multiply-add as two."""

    def bytes(self, shape: Mapping[str, int]) -> int:
        """The fewest bytes that must move: each input read once, each output written once."""

    def dimensions(self, tensor: str, shape: Mapping[str, int], layout: str) -> dict[str, int]:
        """A tensor's extents by the names of its axes, slowest first."""

    def inputs(self, xp: Any, shape: Mapping[str, int], layout: str, distribution: str, seed: int) -> dict[str, Any]:
        """The input tensors; `xp` is numpy or cupy."""

    def reference(self, xp: Any, inputs: Mapping[str, Any], shape: Mapping[str, int], layout: str) -> dict[str, Any]:
        """The outputs in float64."""

    def plain(self, xp: Any, inputs: Mapping[str, Any], shape: Mapping[str, int], layout: str) -> dict[str, Any]:
        """The outputs of a plain implementation in the kernel's own precision: its error is the unit of tolerances."""


BUILT_IN: dict[str, Operation] = {"attention_forward": AttentionForward()}


def exponentials_of(operation: Operation, shape: Mapping[str, int]) -> int:
    """How many exponentials `shape` needs, for the special-function units are often what binds; 0 where it does not say.

    An operation may have this method, and the next one; neither has to be there.
    """
    count = getattr(operation, "exponentials", None)
    return int(count(shape)) if count else 0


def tiled_by(operation: Operation, shape: Mapping[str, int]) -> tuple[int, int] | None:
    """The two extents that a manifest's tile (m, n) cuts up; None where the operation does not say."""
    extents = getattr(operation, "tiled", None)
    return extents(shape) if extents else None


def tensors_of(operation: Operation, shape: Mapping[str, int], layout: str) -> dict[str, tuple[tuple[int, ...], str]]:
    """Every tensor's extents, slowest first, and its elements' NumPy type."""
    return {
        name: (tuple(operation.dimensions(name, shape, layout).values()), dtype)
        for name, dtype in operation.tensors.items()
    }


class Place(msgspec.Struct, frozen=True):
    """Where a project's own operation is found: "module:ATTRIBUTE", in a directory where modules lie."""

    location: str
    modules: str


class Operations(dict[str, Operation]):
    """Operations by name; `places` says of a project's own ones where another process finds them."""

    def __init__(self, places: Mapping[str, Place]) -> None:
        super().__init__(BUILT_IN | {name: find_operation(name, place) for name, place in places.items()})
        self.places = places

    def places_of(self, names: Iterable[str]) -> dict[str, Place]:
        """Those places that are needed for operations of `names`."""
        return {name: self.places[name] for name in names if name in self.places}


def load_operations(project: Project) -> Operations:
    """The built-in operations and those of the project's `[tool.faperf] operations`. Raises ConfigError."""
    modules = str(project.modules)
    return Operations({name: Place(location, modules) for name, location in project.config.operations.items()})


def find_operation(name: str, place: Place | None) -> Operation:
    """A project's own operation at `place`, or the built-in one. Raises ConfigError."""
    if place is None:
        return BUILT_IN[name]
    if place.modules not in sys.path:
        sys.path.insert(0, place.modules)  # for good: an operation may import when it is called
    module, _, attribute = place.location.partition(":")
    try:
        operation: Operation = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # importing runs the user's own code, which may raise anything
        raise ConfigError(
            f"operation {name}: cannot load '{place.location}': {error}",
            where="pyproject.toml, [tool.faperf] operations",
            remedy="write it as module:ATTRIBUTE, and make sure that python can import the module",
        ) from error
    missing = [member for member in vars(Operation) if not member.startswith("_") and not hasattr(operation, member)]
    if missing:
        raise ConfigError(
            f"operation {name}: {place.location} has no {', '.join(missing)}",
            where="pyproject.toml, [tool.faperf] operations",
            remedy="faperf.operations.Operation says what each is",
        )
    return operation
