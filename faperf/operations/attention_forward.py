"""Attention forward: O = softmax(Q·Kᵀ / √D)·V for each of B·H heads, fp16 in and out, not causal."""

from __future__ import annotations

from collections.abc import Mapping

HALF = 2


class AttentionForward:
    """Q, K, V and O are [B, S, H, D] (`BSHD`) or [B, H, S, D] (`BHSD`) halves."""

    name = "attention_forward"
    version = 1
    parameters = ("B", "H", "S", "D")
    layouts = ("BSHD", "BHSD")
    tensors = ("Q", "K", "V", "O")

    def flops(self, shape: Mapping[str, int]) -> int:
        """Two matrix products of 2·S²·D each a head: 4·B·H·S²·D. Softmax is not counted, as the field does."""
        return 4 * shape["B"] * shape["H"] * shape["S"] ** 2 * shape["D"]

    def bytes(self, shape: Mapping[str, int]) -> int:
        """Four tensors of B·H·S·D halves."""
        return len(self.tensors) * shape["B"] * shape["H"] * shape["S"] * shape["D"] * HALF
