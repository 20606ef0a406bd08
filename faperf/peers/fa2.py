"""FlashAttention 2 as its authors publish it (`flash-attn`). torch's copy of it is another row."""

from importlib.metadata import PackageNotFoundError, version

from faperf.peers import Peer


def load():
    try:  # flash-attn-4's package is called flash_attn, too
        words = f"flash-attn {version('flash-attn')}"
    except PackageNotFoundError as error:
        raise ImportError("flash-attn is not installed; SDPA flash, torch's copy, stands for it") from error
    from flash_attn import flash_attn_func

    return lambda Q, K, V: flash_attn_func(Q, K, V), words


PEER = Peer("FA2 (Dao)", load)
