"""`python -m noetl.cli`: the command, where its script is not on the path."""

from noetl.cli import main

main()
