"""The memory-efficient attention that came from xFormers, in torch."""

from faperf.peers import Peer, sdpa

PEER = Peer("Efficient", sdpa("EFFICIENT_ATTENTION"))
