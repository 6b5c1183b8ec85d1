"""Bugs in what filters leave of shards."""

from tests.mutants.planting import Mutant

_KEPT = "readers/test_kept_samples.py"
_ORDER = "plan/test_kept_order.py"
_DIGESTS = "shards/filters/test_list_digests.py"
_APPLYING = "shards/filters/test_applying.py"
_GLOBALS = "shards/filters/test_predicate_globals.py"
_EDITED = "shards/filters/test_edited_predicates.py"

MUTANTS = [
    Mutant("plan.kept_order:KeptSamples._own_numbers", 'side="right"', 'side="left"', _ORDER),
    Mutant(
        "plan.kept_order:KeptSamples._own_numbers",
        "numbers.astype(listed.dtype)",
        "numbers",
        _ORDER,
    ),
    Mutant(
        "plan.kept_order:KeptSamples._own_numbers",
        "shifts[ascending] =",
        "shifts[:] =",
        _ORDER,
    ),
    Mutant(
        "plan.kept_order:KeptOrder.following",
        "return self.kept.own_ids(self.inner.following(epoch, position, count))",
        "return self.inner.following(epoch, position, count)",
        f"{_ORDER} {_KEPT}",
    ),
    Mutant("plan.kept_order:_without_small_gaps", "(np.diff(inner[:, 1]) == 1)", "True", _ORDER),
    Mutant(
        "plan.kept_order:KeptOrder.identity",
        ' | {"kept": self.kept.identity}',
        "",
        f"{_ORDER} {_KEPT}",
    ),
    Mutant(
        "shards.filters.key_tests:KeyTests.kept_of_table",
        "len(self.prefixes) <= 1",
        "not self.prefixes",
        "shards/filters/test_one_prefix.py",
    ),
    Mutant(
        "shards.filters.list_digests:remembered_digest",
        "before.stamp == stamp and before.is_settled",
        "before.stamp == stamp",
        _DIGESTS,
    ),
    Mutant(
        "shards.filters.list_digests:_reading",
        "(before.stamp, before.digest) == (stamp, digest)",
        "before.stamp == stamp",
        _DIGESTS,
    ),
    Mutant(
        "shards.filters.list_digests:_stamp_of",
        ", status.st_ctime_ns]",
        "]",
        _DIGESTS,
    ),
    Mutant(
        "saved_state:require_same",
        '"kept" in state and "kept" not in expected',
        "False",
        _KEPT,
    ),
    Mutant(
        "shards.filters.key_hashes:digests_of",
        "sha256(key).digest()[:_DIGEST_BYTES]",
        "sha256(key).digest()[-_DIGEST_BYTES:]",
        "shards/filters/test_key_hashes.py",
    ),
    Mutant(
        "shards.filters.key_lists:KeyList.find",
        "is_equal &= self.second[places] == digests[:, 1]",
        "pass",
        "shards/filters/test_key_lists.py",
    ),
    Mutant(
        "shards.filters.key_lists:KeyList.find",
        "range(self.most_alike)",
        "range(1)",
        "shards/filters/test_key_lists.py",
    ),
    Mutant(
        "shards.filters.kept_files:_parsed",
        "if not is_checked and",
        "if False and",
        _APPLYING,
    ),
    Mutant("shards.filters.kept_files:_parsed", "or not is_whole", "", _APPLYING),
    Mutant(
        "shards.filters.applying:filtered_index",
        "np.where(is_remote, stamps_of(index, cache), stamps)",
        "stamps",
        "shards/remote/test_remote_filters.py",
    ),
    Mutant(
        "shards.filters.applying:_numbers",
        "left_out += len(numbers)",
        "pass",
        _APPLYING,
    ),
    Mutant(
        "shards.filters.predicates:digest_of_predicate",
        "digest.update(digests.digest_with_code(predicate))",
        "pass",
        _APPLYING,
    ),
    Mutant(
        "shards.filters.predicates:digest_of_predicate",
        'digest.update(only_here("edited").encode())',
        "pass",
        _EDITED,
    ),
    Mutant(
        "shards.filters.predicates:_modules_of",
        'predicate.__globals__.get("__name__", module)',
        "module",
        _EDITED,
    ),
    Mutant(
        "shards.filters.predicates:_held_by",
        "value is wrapped and isinstance(value, FunctionType)",
        "False",
        _GLOBALS,
    ),
    Mutant(
        "shards.filters.value_digests:ValueDigests._parts_of_code",
        ' and not code.__code__.co_filename.startswith("<")',
        "",
        _GLOBALS,
    ),
    Mutant(
        "shards.filters.value_digests:ValueDigests._parts_of_code",
        'yield self._digest_of("attributes", code.__dict__)',
        "pass",
        _GLOBALS,
    ),
    Mutant(
        "shards.filters.value_digests:ValueDigests._parts",
        "return sorted(map(self.digest, value))",
        "return map(self.digest, value)",
        _GLOBALS,
    ),
    Mutant(
        "shards.filters.value_digests:ValueDigests.digest_with_code",
        "while names :=",
        "if names :=",
        _GLOBALS,
    ),
    Mutant(
        "shards.filters.value_digests:code_in",
        "yield from code_in(constant)",
        "pass",
        _GLOBALS,
    ),
    Mutant(
        "shards.filters.applying:filtered_index",
        "chosen.digest_of_lists() != of_lists",
        "chosen.digest(chosen.digest_of_lists()) != digest",
        _GLOBALS,
    ),
    Mutant(
        "readers.shard_samples:ReadSlices._is_wanted",
        "return done < len(numbers) and numbers[done] == sample_id[1]",
        "return done < len(numbers)",
        _KEPT,
    ),
    Mutant(
        "readers.shard_samples:ReadSlices._is_wanted",
        'tests is None or tests.keeps(*sample_id, sample["__key__"])',
        "True",
        "shards/remote/test_remote_filters.py",
    ),
    Mutant(
        "readers.stream:StreamSource.identity",
        " | self.index.kept_identity",
        "",
        _KEPT,
    ),
]
