"""`python -m gradvet` runs the command `gradvet`."""

import contextlib
import os
import sys

if __name__ == "__main__":
    # As for the script `gradvet`, modules of the current folder do not take the place of the standard library's.
    with contextlib.suppress(OSError):  # the current folder was deleted
        if sys.path[0] == os.getcwd():
            del sys.path[0]
    from gradvet.cli import main

    main()
