"""What a kernel computes: its parameters, tensors, FLOPs and bytes. One module an operation.

A user's own operation is named in pyproject.toml, `[tool.faperf] operations = {name = "module:ATTRIBUTE"}`; that is the
project's own configuration, never a manifest's, so that a manifest alone runs no code.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Protocol

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

    def flops(self, shape: Mapping[str, int]) -> int:
        """Floating-point operations counted for `shape`, a multiply-add as two."""

    def bytes(self, shape: Mapping[str, int]) -> int:
        """The fewest bytes that must move: each input read once, each output written once."""


BUILT_IN: dict[str, Operation] = {"attention_forward": AttentionForward()}


def load_operations(configured: Mapping[str, str]) -> dict[str, Operation]:
    """The built-in operations and those of `[tool.faperf] operations`. Raises ConfigError."""
    operations = dict(BUILT_IN)
    for name, location in configured.items():
        module, _, attribute = location.partition(":")
        try:
            operations[name] = getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError, ValueError) as error:
            raise ConfigError(
                f"operation {name}: cannot load '{location}': {error}",
                where="pyproject.toml, [tool.faperf] operations",
                remedy="write it as module:ATTRIBUTE, and make sure that python can import the module",
            ) from error
    return operations
