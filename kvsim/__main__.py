"""`python -m kvsim` is `kvsim`."""

from kvsim.cli.main import main

main()
