"""What a kernel computes: its parameters, tensors, FLOPs and bytes. One module an operation.

A user's own operation is named in pyproject.toml, `[tool.faperf] operations = {name = "module:ATTRIBUTE"}`; that is the
project's own configuration, never a manifest's, so that a manifest alone runs no code.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, Protocol

from faperf.errors import ConfigError
from faperf.operations.attention_forward import AttentionForward


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
    def tensors(self) -> tuple[str, ...]: ...

    @property
    def outputs(self) -> tuple[str, ...]: ...
    @property
    def distributions(self) -> tuple[str, ...]: ...

    def flops(self, shape: Mapping[str, int]) -> int:
        """Floating-point operations counted for `shape`, a multiply-add as two."""

    def bytes(self, shape: Mapping[str, int]) -> int:
        """The fewest bytes that must move: each input read once, each output written once."""

    def exponentials(self, shape: Mapping[str, int]) -> int:
        """How many exponentials `shape` needs: the special-function units are often what binds."""

    def tiled(self, shape: Mapping[str, int]) -> tuple[int, int]:
        """The two extents that a manifest's tile (m, n) cuts up."""

    def dimensions(self, shape: Mapping[str, int], layout: str) -> tuple[int, ...]:
        """The dimensions of every tensor, slowest first."""

    def inputs(self, xp: Any, shape: Mapping[str, int], layout: str, distribution: str, seed: int) -> dict[str, Any]:
        """The input tensors as halves; `xp` is numpy or cupy."""

    def reference(self, xp: Any, inputs: Mapping[str, Any], shape: Mapping[str, int], layout: str) -> dict[str, Any]:
        """The outputs in float64."""

    def plain_fp16(self, xp: Any, inputs: Mapping[str, Any], shape: Mapping[str, int], layout: str) -> dict[str, Any]:
        """The outputs of a plain fp16 implementation: its error is the unit of tolerances."""


BUILT_IN: dict[str, Operation] = {"attention_forward": AttentionForward()}


def load_operations(configured: Mapping[str, str]) -> dict[str, Operation]:
    """The built-in operations and those of `[tool.faperf] operations`. Raises ConfigError."""
    operations = dict(BUILT_IN)
    for name, location in configured.items():
        module, _, attribute = location.partition(":")
        try:
            operations[name] = getattr(importlib.import_module(module), attribute)
        except Exception as error:  # importing runs the user's own code, which may raise anything
            raise ConfigError(
                f"operation {name}: cannot load '{location}': {error}",
                where="pyproject.toml, [tool.faperf] operations",
                remedy="write it as module:ATTRIBUTE, and make sure that python can import the module",
            ) from error
    return operations
