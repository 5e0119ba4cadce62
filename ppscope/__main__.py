"""`python -m ppscope`, where the `ppscope` command is not on the path."""

from ppscope.cli import main

if __name__ == "__main__":
    main(prog_name="ppscope")
