"""What Lightning says of what tests do."""

from ignored_warnings import ignored_below
from toy import IGNORED

pytest_collection_modifyitems = ignored_below(
    __file__, *IGNORED, "You're resuming from a checkpoint that ended before"
)
