"""`python -m fragility` is the same command line as `fragility`."""

from fragility.cli import main

if __name__ == "__main__":
    main()
