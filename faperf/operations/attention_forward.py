"""Attention forward: O = softmax(Q·Kᵀ / √D)·V for each of B·H heads, fp16 in and out, not causal.

Arrays are numpy's or cupy's; `xp` is the module that made them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

HALF = 2
KEY_TILE = 64
SCORE_BYTES = 512 * 2**20
"""The reference takes so many rows at a time that their float64 scores fit into this."""


class AttentionForward:
    """Q, K, V and O are [B, S, H, D] (`BSHD`) or [B, H, S, D] (`BHSD`) halves."""

    name = "attention_forward"
    version = 1
    parameters = ("B", "H", "S", "D")
    layouts = ("BSHD", "BHSD")
    tensors: ClassVar = dict.fromkeys(("Q", "K", "V", "O"), "float16")
    outputs = ("O",)
    distributions: tuple[str, ...] = ("normal", "growing", "peaked", "large", "ones")

    def flops(self, shape: Mapping[str, int]) -> int:
        """Two matrix products of 2·S²·D each a head: 4·B·H·S²·D. Softmax is not counted, as the field does."""
        return 4 * shape["B"] * shape["H"] * shape["S"] ** 2 * shape["D"]

    def bytes(self, shape: Mapping[str, int]) -> int:
        """Four tensors of B·H·S·D halves."""
        return len(self.tensors) * shape["B"] * shape["H"] * shape["S"] * shape["D"] * HALF

    def exponentials(self, shape: Mapping[str, int]) -> int:
        """One for each score: B·H·S². (Those of the rescaling, one a row and tile, are left out.)"""
        return shape["B"] * shape["H"] * shape["S"] ** 2

    def tiled(self, shape: Mapping[str, int]) -> tuple[int, int]:
        """A tile is m query rows by n keys."""
        return shape["S"], shape["S"]

    def dimensions(self, tensor: str, shape: Mapping[str, int], layout: str) -> dict[str, int]:  # noqa: ARG002
        """All four tensors have the same."""
        return {axis: shape[axis] for axis in layout}

    def inputs(self, xp: Any, shape: Mapping[str, int], layout: str, distribution: str, seed: int) -> dict[str, Any]:
        """Q, K and V as halves, reproducible by `seed` for each `xp`.

        normal: standard normal. growing: the row maximum grows by about 1 from key tile to key tile, so that every tile
        rescales. peaked: Q and K × 8, so that one key takes nearly all of a row. large: raw scores near fp16's range and V
        in the thousands. ones: V = 1, so that O = 1 whatever Q and K are.
        """
        random = xp.random.default_rng([seed, self.distributions.index(distribution)])
        size = tuple(shape[axis] for axis in layout)
        q, k, v = (random.standard_normal(size, dtype=xp.float32) for _ in range(3))
        if distribution == "growing":
            sign = xp.where(xp.arange(shape["D"]) % 3 == 0, -1, 1).astype(xp.float32)
            tile = (xp.arange(shape["S"]) // KEY_TILE).astype(xp.float32) / math.sqrt(shape["D"])
            along_s = tile.reshape([-1 if axis == "S" else 1 for axis in layout])
            q, k = 0.1 * q + sign, 0.1 * k + along_s * sign
        elif distribution == "peaked":
            q, k = 8 * q, 8 * k
        elif distribution == "large":
            q, k, v = 24 * q, 24 * k, 1000 * v
        elif distribution == "ones":
            v = xp.ones_like(v)
        return {"Q": q.astype(xp.float16), "K": k.astype(xp.float16), "V": v.astype(xp.float16)}

    def reference(
        self, xp: Any, inputs: Mapping[str, Any], shape: Mapping[str, int], layout: str, rows: Any = None
    ) -> dict[str, Any]:
        """O in float64, of all query rows or of those that `rows` picks along S."""
        return {"O": self._attend(xp, inputs, shape, layout, rows, _exact_head)}

    def plain(
        self, xp: Any, inputs: Mapping[str, Any], shape: Mapping[str, int], layout: str, rows: Any = None
    ) -> dict[str, Any]:
        """The same by a plain fp16 implementation: probabilities and output rounded to halves, scores and sums in float32.

        Its error is what an honest fp16 kernel may be compared with. (With scores in halves, as the plainest code has them, the
        error on peaked and large inputs grows a hundredfold, and a bound relative to it would let nearly anything pass.)
        """
        return {"O": self._attend(xp, inputs, shape, layout, rows, _plain_head)}

    def _attend(
        self, xp: Any, inputs: Mapping[str, Any], shape: Mapping[str, int], layout: str, rows: Any, head: Any
    ) -> Any:
        order = tuple(layout.index(axis) for axis in "BHSD")
        q, k, v = (inputs[name].transpose(order) for name in ("Q", "K", "V"))
        if rows is not None:
            q = q[:, :, rows]
        out = xp.empty((*q.shape[:3], shape["D"]), dtype=xp.float64)
        at_a_time = max(1, SCORE_BYTES // (8 * shape["S"]))
        for b in range(shape["B"]):
            for h in range(shape["H"]):
                for first in range(0, q.shape[2], at_a_time):
                    part = slice(first, first + at_a_time)
                    out[b, h, part] = head(xp, q[b, h, part], k[b, h], v[b, h])
        return out.transpose(tuple("BHSD".index(axis) for axis in layout))


def _exact_head(xp: Any, q: Any, k: Any, v: Any) -> Any:
    scores = q.astype(xp.float64) @ k.astype(xp.float64).T
    scores *= 1 / math.sqrt(q.shape[-1])
    scores -= scores.max(axis=-1, keepdims=True)
    xp.exp(scores, out=scores)
    return (scores @ v.astype(xp.float64)) / scores.sum(axis=-1, keepdims=True)


def _plain_head(xp: Any, q: Any, k: Any, v: Any) -> Any:
    half, single = xp.float16, xp.float32
    scores = q.astype(single) @ k.astype(single).T
    scores *= 1 / math.sqrt(q.shape[-1])
    scores -= scores.max(axis=-1, keepdims=True)
    xp.exp(scores, out=scores)
    p = (scores / scores.sum(axis=-1, keepdims=True)).astype(half)
    return (p.astype(single) @ v.astype(single)).astype(half)
