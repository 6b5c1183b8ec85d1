"""Bugs in the arithmetic: epochs, orders, draws, digests."""

from tests.mutants.planting import Mutant

MUTANTS = [
    Mutant(
        "plan.epoch:EpochPlan.steps",
        "return self._left // self.global_batch",
        "return -(-self._left // self.global_batch)",
        "plan/test_epoch.py",
    ),
    Mutant(
        "plan.epoch:EpochPlan.rank_span",
        "(rank < num_larger)",
        "(rank <= num_larger)",
        "plan/test_epoch.py",
    ),
    Mutant(
        "plan.epoch:EpochPlan._is_even",
        "self._left >= self.steps * self.world_size",
        "self._left > self.steps * self.world_size",
        "plan/test_epoch.py",
    ),
    Mutant(
        "plan.epoch:EpochPlan.num_repeats",
        "self.batch_size - distinct",
        "max(self.batch_size - distinct - 1, 0)",
        "plan/test_epoch.py",
    ),
    Mutant(
        "plan.epoch:EpochPlan.trained",
        "min(steps, first_steps)",
        "max(steps, first_steps)",
        "plan/test_epoch.py",
    ),
    Mutant(
        "plan.epoch:EpochPlan.share",
        "range(worker, first_steps, num_workers)",
        "range(0, first_steps, num_workers)",
        "plan/test_epoch.py",
    ),
    Mutant(
        "plan.order:SampleOrder._in_draws",
        " % self.counts[shards][draws]",
        "",
        "plan/test_order.py",
    ),
    Mutant(
        "plan.order:SampleOrder._in_runs",
        "positions >= short_stop",
        "positions > short_stop",
        "plan/test_order.py",
    ),
    Mutant(
        "plan.order:SampleOrder._shuffle_block",
        "stream=number",
        "stream=0",
        "plan/test_order.py",
    ),
    Mutant(
        "plan.order:SampleOrder._locate",
        'side="right"',
        'side="left"',
        "plan/test_order.py",
    ),
    Mutant(
        "plan.permutations:order_runs",
        "seed, epoch)",
        "seed, 0)",
        "plan/test_order.py",
    ),
    Mutant(
        "plan.order:SampleOrder._blocks_between",
        "(0, last - self._length)",
        "(0, 0)",
        "seams/test_order.py",
    ),
    Mutant(
        "plan.order:Order.following",
        "position + 1, position",
        "position, position",
        "seams/test_order.py bad_samples/test_indexed.py",
    ),
    Mutant(
        "plan.order:SampleOrder._pieces",
        "position = start % self._length",
        "position = start",
        "plan/test_order.py",
    ),
    Mutant(
        "plan.permutations:Feistel._pass",
        "reversed(rounds) if backwards else rounds",
        "rounds",
        "plan/test_permutations.py",
    ),
    Mutant(
        "plan.permutations:Feistel._walk",
        "images[outside] = self._pass(images[outside], backwards=backwards)",
        "images[outside] %= np.uint64(self.size)",
        "plan/test_permutations.py",
    ),
    Mutant(
        "plan.draws:random_words",
        "[block, stream, resumed_at, int(purpose)]",
        "[block, resumed_at, stream, int(purpose)]",
        "plan/test_draws.py",
    ),
    Mutant(
        "plan.draws:random_words",
        "random_raw(skipped + stop - start)[skipped:]",
        "random_raw(stop - start)",
        "plan/test_draws.py",
    ),
    Mutant(
        "plan.draws:draw_sample",
        'side="right"',
        'side="left"',
        "plan/test_draws.py",
    ),
    Mutant(
        "plan.draws:spans",
        "sum(plan.share(rank) for rank in range(place.rank))",
        "place.rank * plan.share(0)",
        "plan/test_draws.py",
    ),
    Mutant(
        "plan.draws:_repeat_spans",
        "last % place.num_workers != place.worker",
        "place.worker",
        "plan/test_draws.py",
    ),
    Mutant(
        "plan.draws:stable_order",
        "if has_ties else order",
        "if False else order",
        "plan/test_draws.py",
    ),
    Mutant(
        "plan.draws:scale_words",
        "(across >> half) + ",
        "",
        "plan/test_order_mixing.py",
    ),
    Mutant(
        "plan.digest:id_digests",
        "mix(mix(shards + np.uint64(1)) + samples)",
        "mix(shards + samples)",
        "plan/test_digest.py",
    ),
    Mutant(
        "plan.digest:digest_share",
        "(stop - start) * place.rank // place.world_size",
        "(stop - start) // place.world_size * place.rank",
        "plan/test_digest.py",
    ),
    Mutant(
        "plan.footprint:buffers_per_worker",
        "prefetch_factor + 1 + SPARE_BUFFERS",
        "prefetch_factor + SPARE_BUFFERS",
        "workers/test_processes.py workers/test_messages.py",
    ),
]
