"""Bugs in the arithmetic: lengths and orders of epochs, draws, quotas of mixtures, digests."""

from dataclasses import replace

import numpy as np

from tests.mutants.planting import breaks


@breaks("lockstep", "EpochSchedule.steps", "plan/test_schedule.py")
def a_limit_counts_from_where_an_epoch_is_resumed(before, self, world_size, done=0):
    left = self.plan(world_size, done).steps
    return left if self.limit is None else min(left, self.limit)


@breaks("lockstep", "WorkerEpoch.own_steps", "plan/test_schedule.py seams/test_source.py")
def an_epoch_ends_where_not_all_workers_have_a_step(before, self):
    own = before(self)
    return range(own.start, self.steps - self.steps % own.step, own.step)


@breaks("lockstep", "agree", "test_collectives.py")
def ranks_that_disagree_begin_all_the_same(before, facts, error):
    before({}, error)


@breaks("lockstep", "gather", "test_collectives.py")
def a_rank_hears_itself_alone(before, value):
    return [value]


@breaks("epoch length", "EpochPlan.steps", "plan/test_epoch.py")
def the_last_step_of_drop_lacks_samples(before, self):
    return -(-(self.samples - self.done) // self.global_batch)


@breaks("epoch length", "EpochPlan.require_steps", "plan/test_epoch.py")
def an_epoch_may_have_no_step(before, self, *given, **named):
    return self


@breaks("epoch length", "scan_samples", "shards/test_about_shards.py")
def a_scan_counts_one_sample_too_few(before, data, url):
    run = before(data, url)
    return run._replace(key_lengths=run.key_lengths[:-1], num_members=run.num_members[:-1])


@breaks("each once", "SampleOrder.at", "plan/test_order.py")
def the_first_sample_stands_for_the_last(before, self, epoch, start, stop):
    ids = before(self, epoch, start, stop)
    ids[-1:] = ids[:1]
    return ids


@breaks("each once", "EpochPlan.rank_span", "plan/test_epoch.py")
def later_ranks_begin_one_sample_early(before, self, step, rank):
    start, stop = before(self, step, rank)
    return start - (rank > 0), stop - (rank > 0)


@breaks("each once", "WorkerEpoch.weights", "bad_samples/test_bad_samples.py")
def repeats_weigh_as_much_as_samples(before, self, step):
    return [1 for _ in before(self, step)]


@breaks("each once", "shard_order", "plan/test_draws.py")
def one_shard_is_read_twice_and_one_never(before, *given, **named):
    order = before(*given, **named)
    order[-1] = order[0]
    return order


@breaks("purity", "EpochSchedule.worker_epochs", "plan/test_schedule.py")
def workers_begin_each_epoch_with_the_first_one(before, self, place, cursor):
    for worker_epoch in before(self, place, cursor):
        yield replace(worker_epoch, place=place)


@breaks("purity", "stable_order", "plan/test_a_plan.py")
def orders_are_others_than_in_the_last_release(before, words):
    return before(words)[..., ::-1]


@breaks("purity", "Order.at_spans", "seams/test_order.py")
def what_other_workers_make_is_not_left_out(before, self, epoch, spans):
    first = spans[0][0]
    return self.at(epoch, first, first + sum(stop - start for start, stop in spans))


@breaks("seek", "SampleOrder.at", "plan/test_a_plan.py")
def an_array_of_the_length_of_the_data_set_is_built(before, self, *given):
    np.zeros(self.samples // 8, np.uint8)
    return before(self, *given)


@breaks("seek", "random_words", "plan/test_draws.py")
def a_stream_of_words_begins_where_philox_does(before, purpose, key, numbers, **named):
    skipped = numbers[0] % 4
    return before(purpose, key, (numbers[0] - skipped, numbers[1] - skipped), **named)


@breaks("seek", "EpochSchedule.worker_epochs", "plan/test_schedule.py seams/test_source.py")
def an_epoch_begins_at_its_first_sample(before, self, place, cursor):
    return before(self, place, replace(cursor, samples=0))


@breaks("seek", "EpochPlan.trained", "plan/test_epoch.py")
def repeats_count_as_trained(before, self, steps):
    return self.done + steps * self.global_batch


@breaks("uniform", "stream_start", "plan/test_draws.py")
def streams_begin_at_heads_of_shards(before, *given, **named):
    return 0


@breaks("seek", "drawn_slices", "readers/test_stream_order.py")
def a_stream_that_begins_later_begins_with_its_first_draw(before, index, seed, begin, draws, skip):
    return before(index, seed, begin, draws, 0)


@breaks("uniform", "scale_words", "plan/test_draws.py")
def the_last_of_all_is_never_drawn(before, words, total):
    return before(words, max(1, total - 1))


@breaks("uniform", "shard_draws", "plan/test_draws.py")
def a_resumed_stream_draws_the_same_again(before, *given, resumed_at=0):
    return before(*given)


@breaks("uniform", "SampleOrder.at", "plan/test_order.py")
def draws_are_the_same_in_every_epoch(before, self, epoch, start, stop):
    return before(self, 0 if self.sampling == "resampled" else epoch, start, stop)


@breaks("uniform", "SampleOrder.at", "plan/test_order.py")
def tails_of_shards_are_never_drawn(before, self, epoch, start, stop):
    ids = before(self, epoch, start, stop)
    if self.sampling == "resampled":
        ids[:, 1] = np.minimum(ids[:, 1], np.maximum(self.counts[ids[:, 0]] - 2, 0))
    return ids


@breaks("quotas", "MixtureSchedule.counts", "plan/test_mixture_schedule.py")
def components_have_the_quotas_of_each_other(before, self, first, last):
    return before(self, first, last)[:, ::-1]


@breaks("quotas", "MixtureOrder.at_spans", "plan/test_mixture.py")
def components_begin_anew_with_each_epoch(before, self, epoch, spans):
    return before(self, 0, spans)


@breaks("quotas", "component_seed", "plan/test_a_plan.py")
def all_components_have_one_order(before, seed, name):
    return seed


@breaks("quotas", "MixtureOrder.following", "plan/test_mixture.py")
def another_component_stands_for_a_bad_sample(before, self, epoch, position, count):
    return self.at(epoch, position + 1, position + 1 + count)


@breaks("quotas", "MixtureIdentity.require_resumable", "plan/test_mixture_schedule.py")
def a_run_goes_on_with_other_quotas_than_it_began_with(before, self, saved, trained):
    pass


@breaks("each once", "StrandOrder.samples", "plan/test_strands.py")
def what_fills_no_run_of_every_strand_is_lost(before, self):
    return before(self) // (self.strands * self.inner.run) * self.strands * self.inner.run


@breaks("cache", "StrandOrder._parts", "plan/test_strands.py")
def each_block_gives_a_strand_to_another_node(before, self, epoch, number):
    return np.roll(before(self, epoch, number), number, axis=0)


@breaks("digest", "digest_ids", "plan/test_digest.py")
def samples_are_counted_and_not_told_apart(before, ids):
    return len(ids)


@breaks("digest", "id_digests", "plan/test_digest.py")
def equal_numbers_in_two_shards_are_one_sample(before, ids):
    return before(ids * [0, 1])


@breaks("digest", "digest_share", "plan/test_digest.py")
def ranks_expect_samples_of_each_other(before, order, epoch, start, stop, place):
    return before(order, epoch, start, stop, replace(place, rank=0, world_size=1))


@breaks("each once", "AlikeOrder.at", "plan/test_alike.py")
def what_is_left_over_repeats_a_sample(before, self, epoch, start, stop):
    ids = before(self, epoch, start, stop)
    ids[-1:] = ids[:1]
    return ids
