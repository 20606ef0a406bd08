"""Attention as matrix products and a softmax, not fused."""

from faperf.peers import Peer, sdpa

PEER = Peer("Math", sdpa("MATH"))
