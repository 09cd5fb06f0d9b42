"""`python -m gradvet` runs the command `gradvet`."""

from gradvet.cli import main

if __name__ == "__main__":
    main()
