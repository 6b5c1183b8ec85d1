"""Bugs on the way from bytes to batches: readers, decoding, transforms, collating."""

from tests.mutants.planting import Mutant

MUTANTS = [
    Mutant(
        "readers.read_ahead:LargeMembers.__iter__",
        "if len(data) != size or (checksum != ABSENT and crc32(data) != checksum):",
        "if len(data) != size:",
        "readers/test_changed_shards.py",
    ),
    Mutant(
        "readers.batch_reader:_find",
        "stamps[shard] = reader.expected",
        "stamps[shard] = None",
        "readers/test_changed_shards.py",
    ),
    Mutant(
        "readers.read_ahead:_fill",
        "(members.sizes < 0) | ~is_read",
        "members.sizes < 0",
        "readers/test_changed_shards.py readers/test_batch_reader.py",
    ),
    Mutant(
        "samples.member_bytes:MemberBytes.rows",
        "elif crc32(items.data) != self._joined:",
        "elif False:",
        "samples/test_member_bytes.py",
    ),
    Mutant(
        "samples.member_bytes:MemberBytes._check_each",
        "if is_known.any() and",
        "if False and",
        "samples/test_member_bytes.py",
    ),
    Mutant(
        "samples.collate:make_batch",
        "ids[np.array(weights, dtype=bool)] if weights else ids",
        "ids",
        "bad_samples/test_weights.py loader/test_epochs.py trainer/test_evaluation.py",
    ),
    Mutant(
        "samples.collate:GrowingColumn.put",
        "if (array.shape, array.dtype, type(value)) != like:",
        "if array.shape != self._rows.shape[1:]:",
        "samples/test_collate.py",
    ),
    Mutant(
        "samples.fields:SampleTransforms._apply",
        "rng = self._seeds.generator(position)",
        "rng = self._seeds.generator(0)",
        "samples/test_fields.py readers/test_stream_stages.py readers/test_columns.py",
    ),
    Mutant(
        "samples.fields:_require_decoders",
        "unsafe = (field.decoders & UNSAFE_DECODERS) - allow_unsafe",
        "unsafe = frozenset()",
        "samples/test_safety.py",
    ),
    Mutant(
        "samples.fields:takes_rng",
        '"rng" in inspect.signature(transform).parameters',
        "False",
        "samples/test_fields.py readers/test_indexed.py",
    ),
    Mutant(
        "samples.seeds:SampleSeeds.seed_globals",
        "torch.default_generator.manual_seed(word)",
        "pass",
        "samples/test_seeds.py",
    ),
    Mutant(
        "samples.seeds:preserved_globals",
        "torch.set_rng_state(tensors)",
        "pass",
        "readers/test_stream_stages.py readers/test_map_dataset.py readers/test_indexed.py",
    ),
    Mutant(
        "plan.schedule:EpochSchedule.worker_epochs",
        "before += steps",
        "before += 1",
        "plan/test_schedule.py seams/test_pool.py",
    ),
    Mutant(
        "plan.schedule:EpochSchedule.next_epoch",
        "0 if self.pinned else cursor.epoch + 1",
        "cursor.epoch + 1",
        "plan/test_schedule.py loader/test_epochs.py",
    ),
    Mutant(
        "plan.schedule:EpochSchedule.steps",
        "min(whole, self.limit) - (whole - left)",
        "min(left, self.limit)",
        "plan/test_schedule.py loader/test_epochs.py",
    ),
    Mutant(
        "readers.shard_sampler:resampled_slices",
        "if index.counts is not None:",
        "if False:",
        "readers/test_stream_order.py",
    ),
    Mutant(
        "readers.shard_sampler:resampled_slices",
        "draws[slot::stride]",
        "draws[place.rank :: stride]",
        "readers/test_stream_order.py",
    ),
    Mutant(
        "readers.stream:StreamSource.batches",
        'if cursor.samples and self.sampling != "resampled":',
        "if False:",
        "test_datamodule.py trainer/test_resumed_fits.py",
    ),
    Mutant(
        "readers.stream:read_shard",
        "_require_count(expected in (None, number), url, str(number), expected)",
        "pass",
        "readers/test_stream_shards.py",
    ),
    Mutant(
        "readers.stream:StreamSource.expected_digest",
        "(start, stop) != (0, counts.sum())",
        "False",
        "callbacks/test_digest.py readers/test_stream_order.py",
    ),
    Mutant(
        "readers.bad_samples:BadSampleLedger._require_budget",
        "len(self.found) + len(self.gaps) > (self.max_bad or 0)",
        "False",
        "bad_samples/test_budget.py bad_samples/test_stream.py",
    ),
    Mutant(
        "samples.images:_require_few_pixels",
        "if width * height > MAX_PIXELS:",
        "if False:",
        "samples/test_images.py",
    ),
    Mutant(
        "samples.images:_eight_bits",
        "np.asarray(image) >> 8",
        "np.asarray(image)",
        "samples/test_images.py samples/test_crops.py",
    ),
    Mutant(
        "readers.read_ahead:_requests",
        "*ranges, stamps[shard], into",
        "*ranges, None, into",
        "readers/test_changed_shards.py",
    ),
    Mutant(
        "readers.open_shards:OpenShards.read",
        "start, stop, stat)",
        "start, stop)",
        "readers/test_changed_shards.py",
    ),
    Mutant(
        "samples.fields:SampleTransforms.apply",
        "if self._own:",
        "if False:",
        "samples/test_own_generators.py",
    ),
    Mutant(
        "samples.own_generators:RepeatedTransform.__call__",
        "if not is_same:",
        "if False:",
        "samples/test_own_generators.py",
    ),
    Mutant(
        "samples.own_generators:outside_workers",
        "state._worker_info, None",
        "state._worker_info, state._worker_info",
        "samples/test_own_generators.py workers/test_same_bytes.py",
    ),
]
