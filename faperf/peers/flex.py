"""torch's FlexAttention, which Triton compiles when it is first called."""

from faperf.peers import Peer


def load():
    import torch
    import triton
    from torch.nn.attention.flex_attention import flex_attention

    compiled = torch.compile(flex_attention, dynamic=False)

    def attention(Q, K, V):
        return compiled(Q.transpose(1, 2), K.transpose(1, 2), V.transpose(1, 2)).transpose(1, 2)

    return attention, f"Triton {triton.__version__}, torch {torch.__version__}"


PEER = Peer("Flex (Triton)", load)
