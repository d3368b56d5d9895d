"""`python -m noetl.cli`: the command, for when its script is not on the path."""

from noetl.cli import main

main()
