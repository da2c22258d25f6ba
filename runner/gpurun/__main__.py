"""`python -m gpurun`."""

from gpurun.cli import main

main()
