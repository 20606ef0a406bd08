"""FlashAttention 2 as its authors publish it (`flash-attn`). torch's copy of it is another row."""

from faperf.peers import Peer


def load():
    import flash_attn
    from flash_attn import flash_attn_func

    return lambda Q, K, V: flash_attn_func(Q, K, V), f"flash-attn {flash_attn.__version__}"


PEER = Peer("FA2 (Dao)", load)
