"""What the fork server imports before all else, and nothing else does: it leaves signals alone.

Launchers send signals to every process of a job, and Ctrl-C goes to all of a group.
"""

import os

from lightning_shards.system.guard import leave_signals_to_owner

os.setpgid(0, 0)
leave_signals_to_owner()
