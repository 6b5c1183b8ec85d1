"""Bugs on the way from bytes to batches: readers, decoding, transforms, collating."""

from tests.mutants.planting import Mutant

MUTANTS = [
    Mutant(
        "pipeline.window:LargeMembers.__iter__",
        "if len(data) != size or (checksum != ABSENT and crc32(data) != checksum):",
        "if len(data) != size:",
        "pipeline/test_changed_shards.py",
    ),
    Mutant(
        "pipeline.window:_reader",
        "if reader.table.stamp == stamps[shard] else None",
        "",
        "pipeline/test_changed_shards.py",
    ),
    Mutant(
        "pipeline.window:_fill",
        "(members.sizes < 0) | ~is_read",
        "members.sizes < 0",
        "pipeline/test_chunk.py bad_samples/test_indexed.py",
    ),
    Mutant(
        "pipeline.member_bytes:MemberBytes.rows",
        "elif crc32(items.data) != self._joined:",
        "elif False:",
        "pipeline/test_member_bytes.py",
    ),
    Mutant(
        "pipeline.member_bytes:MemberBytes._check_each",
        "if is_known.any() and",
        "if False and",
        "pipeline/test_member_bytes.py",
    ),
    Mutant(
        "pipeline.collate:make_batch",
        "ids[np.array(weights, dtype=bool)] if weights else ids",
        "ids",
        "bad_samples/test_weights.py loader/test_epochs.py trainer/test_evaluation.py",
    ),
    Mutant(
        "pipeline.collate:GrowingColumn.place",
        "if (array.shape, array.dtype, type(value)) != like:",
        "if array.shape != self._rows.shape[1:]:",
        "pipeline/test_collate.py",
    ),
    Mutant(
        "pipeline.fields:SampleTransforms._apply",
        "rng = self._seeds.generator(position)",
        "rng = self._seeds.generator(0)",
        "pipeline/test_fields.py pipeline/test_stream_stages.py pipeline/test_columns.py",
    ),
    Mutant(
        "pipeline.fields:_require_decoders",
        "unsafe = (field.decoders & UNSAFE_DECODERS) - allow_unsafe",
        "unsafe = frozenset()",
        "pipeline/test_safety.py",
    ),
    Mutant(
        "pipeline.fields:takes_rng",
        '"rng" in inspect.signature(transform).parameters',
        "False",
        "pipeline/test_fields.py pipeline/test_indexed.py",
    ),
    Mutant(
        "pipeline.seeds:SampleSeeds.seed_globals",
        "torch.default_generator.manual_seed(word)",
        "pass",
        "pipeline/test_seeds.py",
    ),
    Mutant(
        "pipeline.seeds:preserved_globals",
        "torch.set_rng_state(tensors)",
        "pass",
        "pipeline/test_stream_stages.py pipeline/test_dataset.py pipeline/test_indexed.py",
    ),
    Mutant(
        "pipeline.source:Epochs.turns",
        "before += steps",
        "before += 1",
        "pipeline/test_source.py workers/test_pools.py",
    ),
    Mutant(
        "pipeline.source:Epochs.next_epoch",
        "0 if self.pinned else cursor.epoch + 1",
        "cursor.epoch + 1",
        "pipeline/test_source.py loader/test_epochs.py",
    ),
    Mutant(
        "pipeline.source:Epochs.steps",
        "min(whole, self.limit) - (whole - left)",
        "min(left, self.limit)",
        "pipeline/test_source.py loader/test_epochs.py",
    ),
    Mutant(
        "pipeline.parts:resampled_parts",
        "if index.counts is not None:",
        "if False:",
        "pipeline/test_stream_order.py",
    ),
    Mutant(
        "pipeline.parts:resampled_parts",
        "draws[lane::stride]",
        "draws[place.rank :: stride]",
        "pipeline/test_stream_order.py",
    ),
    Mutant(
        "pipeline.stream:StreamSource.batches",
        'if cursor.samples and self.sampling != "resampled":',
        "if False:",
        "test_datamodule.py trainer/test_resumed_fits.py",
    ),
    Mutant(
        "pipeline.stream:read_shard",
        "_require_count(expected in (None, number), url, str(number), expected)",
        "pass",
        "pipeline/test_stream_shards.py",
    ),
    Mutant(
        "pipeline.stream:StreamSource.expected_digest",
        "(start, stop) != (0, counts.sum())",
        "False",
        "callbacks/test_digest.py pipeline/test_stream_order.py",
    ),
    Mutant(
        "pipeline.substitute:Losses._require_budget",
        "len(self.found) + len(self.gaps) > (self.max_bad or 0)",
        "False",
        "bad_samples/test_budget.py bad_samples/test_stream.py",
    ),
    Mutant(
        "pipeline.images:_require_few_pixels",
        "if width * height > MAX_PIXELS:",
        "if False:",
        "pipeline/test_images.py",
    ),
    Mutant(
        "pipeline.images:_eight_bits",
        "np.asarray(image) >> 8",
        "np.asarray(image)",
        "pipeline/test_images.py pipeline/test_crops.py",
    ),
    Mutant(
        "pipeline.window:_fill",
        "if reader is None or not reader.is_unchanged:",
        "if reader is None:",
        "pipeline/test_changed_shards.py",
    ),
    Mutant(
        "pipeline.window:LargeMembers.__iter__",
        "if not reader.is_unchanged:",
        "if False:",
        "pipeline/test_changed_shards.py",
    ),
    Mutant(
        "pipeline.fields:SampleTransforms.apply",
        "if self._own:",
        "if False:",
        "pipeline/test_own_generators.py",
    ),
    Mutant(
        "pipeline.own_generators:RepeatedTransform.__call__",
        "if not is_same:",
        "if False:",
        "pipeline/test_own_generators.py",
    ),
    Mutant(
        "pipeline.own_generators:outside_workers",
        "state._worker_info, None",
        "state._worker_info, state._worker_info",
        "pipeline/test_own_generators.py workers/test_same_bytes.py",
    ),
]
