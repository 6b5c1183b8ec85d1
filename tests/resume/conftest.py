"""What Lightning says of what tests do."""

from ignored_warnings import ignored_below

IGNORED = [  # the first one is its own use of torch 2.13
    "`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning",
    "Be aware that when using `ckpt_path`, callbacks used",
    "Checkpoint directory .* exists and is not empty",
    "`.fit.ckpt_path=None.` was called without a model",
    ".fit.ckpt_path=.last.. is set, but there is no last",
    "You defined a `validation_step` but have no `val_datal",
    "You're resuming from a checkpoint that ended before",
]


pytest_collection_modifyitems = ignored_below(__file__, *IGNORED)
