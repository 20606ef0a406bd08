"""`python -m faperf`, and the console script."""

import gc


def start() -> None:
    """Imports and records make many objects and hardly any garbage: looking for it takes a tenth of a short command's time."""
    gc.set_threshold(100_000)
    from faperf.cli import main

    try:
        main()
    finally:
        gc.freeze()  # the interpreter looks once more when it ends


if __name__ == "__main__":
    start()
