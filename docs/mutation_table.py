"""Writes the table of mutations (tests/mutations*.py) into docs/emulator.md: `python -m docs.mutation_table`."""

from docs.marked import EMULATOR, write_block
from tests.mutations import MUTATIONS, table
from tests.mutations_cluster import CLUSTER
from tests.mutations_hopper import HOPPER
from tests.mutations_ladder import LADDER

if __name__ == "__main__":
    write_block(EMULATOR, "mutations", table([*MUTATIONS, *LADDER, *HOPPER, *CLUSTER]))
