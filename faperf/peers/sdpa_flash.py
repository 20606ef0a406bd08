"""torch's own copy of FlashAttention 2."""

from faperf.peers import Peer, sdpa

PEER = Peer("SDPA flash", sdpa("FLASH_ATTENTION"))
