"""Programs of others, unmodified, with the emulator as their device.

cudart.cpp   the stand-in for libcudart and libcuda that they are linked with
programs     which programs, how they are built, what they say when all is right
host         `python -m tests.external.host PROGRAM.so PTX …`: runs one, with its launches emulated
"""
