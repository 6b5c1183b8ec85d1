"""Bugs in where a fit goes on: Lightning's counters, checkpoints and resume."""

from tests.mutants.planting import Mutant

MUTANTS = [
    Mutant(
        "saved_state:require_same",
        "if type(saved) is not type(value) or saved != value:",
        "if False:",
        "loader/test_state.py",
    ),
    Mutant(
        "progress:TrainProgress.position",
        "batches - batches % self._trainer.accumulate_grad_batches",
        "batches",
        "resume/test_same_ranks.py trainer/test_resumed_fits.py",
    ),
    Mutant(
        "progress:TrainProgress._position",
        "limit is not None and batches >= limit",
        "False",
        "trainer/test_resumed_fits.py resume/test_same_ranks.py",
    ),
    Mutant(
        "progress:TrainProgress._cursor",
        "rest.trained(batches - anchor.batches)",
        "rest.trained(0)",
        "resume/test_elastic.py",
    ),
    Mutant(
        "callbacks.resume_counters:write_counters",
        "position.batches - is_within",
        "position.batches",
        "resume/test_same_ranks.py resume/test_elastic.py",
    ),
    Mutant(
        "callbacks.resume_counters:TrainerOverrides.end",
        "self._trainer.fit_loop.epoch_loop.max_steps = self._max_steps",
        "pass",
        "callbacks/test_resume.py resume/test_same_ranks.py",
    ),
    Mutant(
        "callbacks.resume:position_after",
        'is_due or (is_over and state["validation"] != "done")',
        "is_due",
        "callbacks/test_resume.py resume/test_elastic.py",
    ),
    Mutant(
        "callbacks.resume:_checked",
        'require_resumable({"version": CHECKPOINT_VERSION, **identity}, state, told)',
        "pass",
        "callbacks/test_resume.py",
    ),
    Mutant(
        "progress:_require_shape",
        "require_same(loader.shape, saved, TRANSLATE)",
        "pass",
        "callbacks/test_resume_refused.py trainer/test_resumed_fits.py",
    ),
    Mutant(
        "restored:restored_counters",
        "is_cut_off = is_closed and not",
        "is_cut_off = is_open and not",
        "trainer/test_resumed_fits.py",
    ),
    Mutant(
        "restored:restored_counters",
        "is_whole and is_restarting and not is_finished",
        "is_whole and is_restarting",
        "trainer/test_resumed_fits.py",
    ),
    Mutant(
        "restored:warn_of_losses",
        "not restored.is_over and batches % accumulate",
        "False",
        "trainer/test_resumed_fits.py",
    ),
    Mutant(
        "progress:TrainProgress._was_cut_off",
        "trainer.should_stop or trainer",
        "trainer",
        "resume/test_stopped.py",
    ),
    Mutant(
        "progress:TrainProgress._was_cut_off",
        "is_ended and not trainer.fit_loop.epoch_loop.batch_progress.is_last_batch",
        "is_ended",
        "resume/test_stopped.py",
    ),
    Mutant(
        "restored:count_one_open_epoch",
        "or counts.started > counts.processed",
        "",
        "resume/test_stopped.py",
    ),
    Mutant(
        "restored:require_no_finder",
        "if finders and trainer",
        "if not finders and trainer",
        "resume/test_finders.py",
    ),
    Mutant(
        "callbacks.resume:ExactResume.on_train_start",
        "_require_written(trainer, self._start)",
        "pass",
        "resume/test_finders.py",
    ),
    Mutant(
        "callbacks.resume:ExactResume._remember",
        "watched[0] if watched else None",
        "None",
        "callbacks/test_resume.py",
    ),
    Mutant(
        "progress:TrainProgress.begin",
        "if batches:",
        "if False:",
        "resume/test_same_ranks.py",
    ),
    Mutant(
        "progress:_require_own_end",
        "if batches > steps and",
        "if False and",
        "resume/test_combined.py",
    ),
    Mutant(
        "progress:TrainProgress.begin",
        "self._trainer.state.stopped",
        "False",
        "resume/test_after_fits.py",
    ),
    Mutant(
        "progress:EvaluationProgress.begin",
        "self._trainer.state.stopped",
        "False",
        "resume/test_after_fits.py",
    ),
    Mutant(
        "restored:left_by_earlier_fit",
        "if is_open:",
        "if False:",
        "resume/test_stopped.py",
    ),
    Mutant(
        "restored:count_one_open_epoch",
        "is_restarted or counts",
        "counts",
        "resume/test_stopped.py",
    ),
    Mutant(
        "callbacks.resume_counters:write_counters",
        "is_last = position.is_over or position.is_between_epochs",
        "is_last = position.is_over",
        "resume/test_stopped.py",
    ),
    Mutant(
        "callbacks.resume:ExactResume._begin_next_epoch",
        "if restored.is_skipping:",
        "if False:",
        "resume/test_stopped.py",
    ),
    Mutant(
        "progress:TrainProgress.require_known",
        "if restored.batches and is_cut:",
        "if False:",
        "callbacks/test_resume_refused.py",
    ),
    Mutant(
        "saved_state:read_count",
        "or not least <= value <= most",
        "",
        "callbacks/test_resume_refused.py loader/test_state.py",
    ),
]
