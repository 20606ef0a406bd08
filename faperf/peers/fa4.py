"""FlashAttention 4, in the CuTe DSL (`flash-attn-4`): compiled when it is first called, for Hopper and Blackwell."""

from importlib.metadata import version

from faperf.peers import Peer


def load():
    from flash_attn.cute import flash_attn_func

    def attention(Q, K, V):
        result = flash_attn_func(Q, K, V)
        return result[0] if isinstance(result, tuple) else result

    return attention, f"flash-attn-4 {version('flash-attn-4')}"


PEER = Peer("FA4 (CuTe-DSL)", load)
