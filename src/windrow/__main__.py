"""`python -m windrow` is the command `windrow`."""

from windrow.cli import main

if __name__ == "__main__":
    main()
