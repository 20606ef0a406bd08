"""cuDNN's fused attention, through torch."""

from faperf.peers import Peer, sdpa


def load():
    import torch

    attention, words = sdpa("CUDNN_ATTENTION")()
    number = torch.backends.cudnn.version()
    return attention, f"cuDNN {number // 10000}.{number // 100 % 100}.{number % 100}, {words}"


PEER = Peer("cuDNN", load)
