"""Bugs in what travels between the trainer and its workers: messages, memory, connections."""

from tests.mutants.planting import Mutant

MUTANTS = [
    Mutant(
        "workers.sending.tensor_layout:Placeholder.value",
        'torch.empty(0, dtype=dtype, device="cpu")',
        "torch.empty(0, dtype=dtype)",
        "workers/test_messages.py",
    ),
    Mutant(
        "workers.shared_buffers:SharedBuffers.take",
        "if buffer is None or not buffer.is_in_use:",
        "if True:",
        "workers/test_processes.py workers/test_messages.py",
    ),
    Mutant(
        "workers.shared_buffers:Lease.__del__",
        "if os.getpid() == self._pid:",
        "if False:",
        "workers/test_processes.py workers/test_messages.py",
    ),
    Mutant(
        "workers.shared_buffers:Lease.__del__",
        "if self._last_fork is _forks.last:",
        "if True:",
        "workers/test_forked_trainer.py",
    ),
    Mutant(
        "workers.shared_buffers:SharedBuffers.take",
        "buffer = None",
        "pass",
        "workers/test_forked_trainer.py",
    ),
    Mutant(
        "workers.messages:_with_columns",
        "map_columns(batch, change))",
        "map_columns(batch, change), digest=0)",
        "workers/test_messages.py workers/test_same_bytes.py",
    ),
    Mutant(
        "workers.connection:WorkerEnd.send",
        "slot is None or slot.size < size",
        "slot is None",
        "workers/test_connection.py",
    ),
    Mutant(
        "workers.sending.tensor_layout:TensorLayout.add_array",
        "array, axes = array.transpose(order), _inverse(order)",
        "array, axes = array.transpose(order), order",
        "workers/test_messages.py",
    ),
    Mutant(
        "workers.connection:_require_fds",
        "if len(fds) == sent and",
        "if len(fds) and",
        "workers/test_connection.py",
    ),
    Mutant(
        "workers.connection:_require_fds",
        "_close_all(fds)",
        "pass",
        "workers/test_connection.py",
    ),
    Mutant(
        "workers.connection:TrainerEnd.shut",
        "self._socket.sendall(_END)",
        "...",
        "workers/test_connection.py",
    ),
    Mutant(
        "workers.connection:TrainerEnd.receive",
        "raise_if_cancelled()",
        "pass",
        "workers/test_connection.py",
    ),
    Mutant(
        "workers.shared_buffers:_allocate",
        "os.posix_fallocate(file.fileno(), 0, size)",
        "file.truncate(size)",
        "workers/test_stowaways.py",
    ),
    Mutant(
        "workers.messages:Message.pin_memory",
        "pinned(self._unpacked(memory, x, 0))",
        "self._unpacked(memory, x, None)",
        "workers/test_message_pinning.py",
    ),
    Mutant(
        "workers.messages:Message.pin_memory",
        "self.buffer = bytearray()",
        "pass",
        "workers/test_message_pinning.py",
    ),
    Mutant(
        "workers.sending.nested_values:_Copies._of_object",
        "changed = self.of(getattr(value, name), depth)",
        "changed = getattr(value, name)",
        "workers/test_message_pinning.py",
    ),
    Mutant(
        "workers.messages:_taken_apart",
        "is_plain_tensor(column)",
        "type(column) in tensor_types()",
        "workers/test_odd_tensors.py",
    ),
    Mutant(
        "workers.sending.tensor_layout:is_plain_tensor",
        " and is_strided(tensor)",
        "",
        "workers/test_odd_tensors.py",
    ),
    Mutant(
        "workers.sending.nested_values:is_listing",
        "return all(",
        "return True or all(",
        "workers/test_odd_tensors.py",
    ),
    Mutant(
        "workers.messages:_is_one_value",
        "is_named and not is_listing(kind)",
        "False",
        "workers/test_odd_tensors.py",
    ),
    Mutant(
        "workers.sending.nested_values:_has_parts",
        '_own(kind, "__copy__") is _own(UserDict, "__copy__")',
        "True",
        "workers/test_kept_objects.py",
    ),
    Mutant(
        "workers.sending.nested_values:_has_parts",
        " and not has_state",
        "",
        "workers/test_kept_objects.py",
    ),
    Mutant(
        "workers.sending.nested_values:_Copies.of",
        "elif depth == _DEEPEST:",
        "elif False:",
        "workers/test_deep_values.py",
    ),
    Mutant(
        "workers.sending.nested_values:_Copies.of",
        "if made is not None:",
        "if False:",
        "workers/test_deep_values.py",
    ),
    Mutant(
        "workers.messages:require_picklable",
        "rest = [rest]",
        "pass",
        "workers/test_deep_values.py",
    ),
    Mutant(
        "workers.sending.nested_values:_has_parts",
        "return is_dataclass(kind) and",
        "return (is_dataclass(kind) or hasattr(kind, '__setitem__')) and",
        "workers/test_kept_objects.py",
    ),
    Mutant(
        "workers.sending.tensor_layout:TensorLayout.add",
        "requires_grad=is_summed",
        "requires_grad=False",
        "workers/test_messages.py",
    ),
    Mutant(
        "workers.sending.tensor_layout:pinned",
        "tensor_of(value)",
        "_torch().as_tensor(value)",
        "workers/test_odd_tensors.py",
    ),
]
