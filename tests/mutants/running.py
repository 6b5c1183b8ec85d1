"""Bugs in what runs: loaders, workers, resumes, proofs, bad data, safety, and the cache's bytes."""

import os

import numpy as np

from tests.mutants.planting import breaks


@breaks("lockstep", "ShardLoader.__len__", "loader/test_epochs.py")
def the_length_is_that_of_an_epoch_without_limit(before, self):
    return self.plan.steps


@breaks("epoch length", "ShardLoader.with_length", "loader/test_epochs.py")
def a_length_that_is_not_the_truth_is_taken(before, self, steps):
    return before(self, len(self))


@breaks("epoch length", "ShardLoader.with_epoch", "loader/test_epochs.py")
def an_epoch_that_is_too_long_is_cut_without_a_word(before, self, steps):
    return before(self, min(steps, self.plan.steps))


@breaks("purity", "SampleSeeds.generator", "samples/test_all_samples.py")
def each_process_draws_numbers_of_its_own(before, self, position):
    return before(self, position + os.getpid())


@breaks("purity", "SampleSeeds.seed_globals", "samples/test_all_samples.py")
def global_generators_run_on_from_sample_to_sample(before, self, position):
    pass


@breaks("resume", "ShardLoader.state_dict", "loader/test_state.py")
def the_state_counts_batches(before, self):
    state = before(self)
    return state | {"samples": state["samples"] // self.plan.global_batch}


@breaks("resume", "require_same", "loader/test_state.py")
def a_state_of_another_run_is_taken(before, *given, **named):
    pass


@breaks("resume", "ShardIndex.fingerprint", "shards/test_about_shards.py")
def other_shards_of_as_many_samples_are_the_same(before, self):
    return str(self.samples)


@breaks("resume", "TrainProgress.position", "callbacks/test_resume.py")
def an_open_accumulation_window_counts_as_trained(before, self, loader):
    position = before(self, loader)
    batches = self._trainer.fit_loop.epoch_loop.batch_progress.current.processed
    return position._replace(batches=position.batches and batches)


@breaks("resume", "TrainProgress.begin", "callbacks/test_resume.py")
def batches_of_the_old_size_count_as_those_of_the_new(before, self, loader):
    self.anchor = self.anchor and self.anchor._replace(cursor=type(self.anchor.cursor)())
    return before(self, loader)


@breaks("resume", "position_after", "callbacks/test_resume.py")
def a_validation_that_was_due_is_forgotten(before, *given):
    return before(*given)._replace(validation_due=False)


@breaks("no bubble", "ShardLoader.__iter__", "loader/test_epochs.py")
def workers_end_with_each_epoch(before, self):
    yield from before(self)
    self.close()


@breaks("no bubble", "ShardLoader.set_epoch", "loader/test_epochs.py")
def workers_start_again_where_the_epoch_is_set(before, self, epoch):
    self.close()
    before(self, epoch)


@breaks("no bubble", "ShardLoader.close", "loader/test_epochs.py")
def workers_outlive_their_loader(before, self):
    self._open = None


@breaks("no bubble", "EpochSchedule.next_epoch", "loader/test_epochs.py")
def an_evaluation_does_not_rewind(before, self, cursor):
    return type(cursor)(cursor.epoch + 1)


@breaks("no bubble", "GuardedName.__reduce__", "system/test_guard.py")
def workers_outlive_a_killed_trainer(before, self):
    return str, (str(self),)


@breaks("bad data", "_has_signed_sum", "shards/tar/test_damaged_tar.py")
def a_header_may_have_any_checksum(before, header, total):
    return True


@breaks("bad data", "_check_end", "shards/tar/test_damaged_tar.py")
def what_follows_the_end_of_an_archive_is_passed_over(before, *given):
    pass


@breaks("bad data", "require_budget", "bad_samples/test_bad_samples.py")
def any_number_of_samples_may_be_bad(before, *given):
    pass


@breaks("bad data", "MemberBytes.__init__", "samples/test_member_bytes.py")
def members_are_not_held_against_their_crc32(before, self, buffer, starts, sizes, sums):
    before(self, buffer, starts, sizes, np.full_like(sums, -1))


@breaks("bad data", "weights_of", "bad_samples/test_bad_samples.py")
def a_substitute_weighs_as_much_as_a_sample(before, rows, planned):
    return list(planned) or [1] * len(rows)


@breaks("digest", "EpochDigest.on_train_epoch_end", "callbacks/test_digest.py")
def an_epoch_is_not_proven(before, self, *given):
    pass


@breaks("digest", "_require_lockstep", "callbacks/test_digest.py")
def ranks_out_of_step_are_proven(before, *given):
    pass


@breaks("safe", "_require_decoders", "samples/test_all_samples.py")
def pickled_members_are_loaded(before, field, allow_unsafe):
    before(field, allow_unsafe | {"pickle", "pth"})


@breaks("safe", "_require_decoders", "samples/test_all_samples.py")
def one_unsafe_decoder_allows_the_other(before, field, allow_unsafe):
    before(field, allow_unsafe | ({"pickle", "pth"} if allow_unsafe else set()))


@breaks("safe", "expand_urls", "samples/test_all_samples.py")
def a_pipe_is_run(before, urls, **named):
    return before(urls, allow_pipe=True)


@breaks("safe", "redact", "shards/test_urls.py")
def messages_show_passwords(before, url):
    return url


@breaks("safe", "without_credentials", "remote/cache/test_pieces.py")
def credentials_name_what_is_cached(before, url):
    return url


@breaks("cache", "Piece.folder", "remote/cache/test_pieces.py")
def a_new_version_has_the_pieces_of_the_old_one(before, self):
    return before(self._replace(stat=(0, 0)))


@breaks("cache", "read_piece", "remote/cache/test_pieces.py")
def a_torn_piece_is_served(before, path, piece, wanted):
    file = os.open(path, os.O_RDONLY)
    for start, into in wanted:
        os.preadv(file, [into], start - piece.begin)
    os.close(file)
    return True


@breaks("cache", "read_piece", "remote/cache/test_pieces.py")
def the_first_bytes_of_a_piece_are_served_for_all(before, path, piece, wanted):
    return before(path, piece, [(piece.begin, into) for _, into in wanted])


@breaks("cache", "PieceCache.load", "remote/cache/test_piece_cache.py")
def an_answer_that_is_cut_short_is_filled_up(before, self, piece, chunks):
    return before(self, piece, [b"".join(chunks)[: piece.size].ljust(piece.size)])


@breaks("cache", "RemoteTransport.read", "remote/test_contract.py")
def bytes_of_two_versions_are_mixed(before, self, url, begin, end, stat=None):
    return before(self, url, begin, end)
