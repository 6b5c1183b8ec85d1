"""python tests/elastic/run_command.py COMMAND...: the command, in the place of this process."""

import os
import sys

if __name__ == "__main__":
    os.execvp(sys.argv[1], sys.argv[1:])
