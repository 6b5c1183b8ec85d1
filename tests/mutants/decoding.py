"""Bugs in what makes a value of a member's bytes: decoders, crops, the parsing of JPEG."""

from tests.mutants.planting import Mutant

MUTANTS = [
    Mutant(
        "samples.decoding.decoders:decoding_of",
        "return Decoding(own, is_unpacked and own != RAW)",
        "return Decoding(own, is_gzipped and own != RAW)",
        "samples/decoding/test_formats.py",
    ),
    Mutant(
        "samples.decoding.decoders:_decode_int",
        'if b"_" in data:',
        "if False:",
        "samples/decoding/test_hostile_members.py",
    ),
    Mutant(
        "readers.batch_reader:_ints",
        'if b"_" in b"".join(texts):',
        "if False:",
        "samples/decoding/test_hostile_members.py",
    ),
    Mutant(
        "samples.decoding.messages:decode_cbor",
        "if file.tell() != len(data):",
        "if False:",
        "samples/decoding/test_hostile_members.py",
    ),
    Mutant(
        "samples.decoding.messages:decode_cbor",
        ", semantic_decoders=_REFUSED",
        "",
        "samples/decoding/test_hostile_members.py",
    ),
    Mutant(
        "samples.decoding.compressed:gunzip",
        "if len(unpacked) > most:",
        "if len(unpacked) > 2**40:",
        "samples/decoding/test_hostile_members.py",
    ),
    Mutant(
        "samples.fields:Field.function",
        "MOST_OBJECT_BYTES if decoding.decoder in OBJECT_DECODERS else MOST_UNPACKED_BYTES",
        "MOST_UNPACKED_BYTES",
        "samples/decoding/test_hostile_members.py",
    ),
    Mutant(
        "samples.batch_limits:counts_of",
        'decoders |= {"npz"} & {each.decoder for each in decodings}',
        "pass",
        "samples/test_batch_limits.py",
    ),
    Mutant(
        "samples.batch_limits:UnpackedCount.add",
        "self._bytes += memory_of(value)",
        "self._bytes = memory_of(value)",
        "samples/test_batch_limits.py",
    ),
    Mutant(
        "samples.decoding.compressed:decode_npz",
        "file.read(entry.file_size)",
        "file.read()",
        "samples/decoding/test_hostile_members.py",
    ),
    Mutant(
        "samples.decoding.images:_require_few_pixels",
        "if width * height > MAX_PIXELS:",
        "if False:",
        "samples/decoding/test_images.py",
    ),
    Mutant(
        "samples.decoding.images:_eight_bits",
        "np.asarray(image) >> bits_to_drop",
        "np.asarray(image)",
        "samples/decoding/test_images.py samples/decoding/test_crops.py",
    ),
    Mutant(
        "samples.decoding.images:_bits_to_drop",
        " or is_signed",
        "",
        "samples/decoding/test_images.py",
    ),
    Mutant(
        "samples.decoding.images:_eight_bits",
        "values = ~values",
        "pass",
        "samples/decoding/test_images.py",
    ),
    Mutant(
        "samples.decoding.images:_TurboImage.cut",
        "(bottom + _CONTEXT_ROW) * factor",
        "bottom * factor",
        "samples/decoding/test_jpeg.py",
    ),
    Mutant(
        "samples.decoding.images:_resize_by_opencv",
        " or max(height, width) >= _MOST_BILINEAR * size",
        "",
        "samples/decoding/test_crops.py",
    ),
    Mutant(
        "samples.decoding.images:_resize_by_opencv",
        "part = cv2.resize(part, sides, interpolation=cv2.INTER_AREA)",
        "pass",
        "samples/decoding/test_crops.py",
    ),
    Mutant(
        "samples.decoding.orientation:orientation_of",
        'image.format == "TIFF"',
        "False",
        "samples/decoding/test_orientation.py",
    ),
    Mutant(
        "samples.decoding.images:_PillowImage._upright_sides",
        "if self._orientation in SWAPPING_SIDES else sides",
        "if False else sides",
        "samples/decoding/test_orientation.py",
    ),
    Mutant(
        "dataprep.writing.reencode:_turned",
        "turned_upright(image, orientation_of(image))",
        "image",
        "tools/packing/test_pack_folders.py",
    ),
    Mutant(
        "samples.decoding.clips:_length_s",
        "if told.duration_seconds is None:",
        "if False:",
        "samples/decoding/test_clips.py",
    ),
    Mutant(
        "samples.decoding.clips:_length_s",
        " - (told.begin_stream_seconds_from_header or 0.0)",
        "",
        "samples/decoding/test_clips.py",
    ),
    Mutant(
        "samples.decoding.images:_TurboImage._upper_rows",
        "pixels if _ROWS_LEFT_OUT in str(error) else None",
        "pixels",
        "samples/decoding/test_jpeg.py",
    ),
    Mutant(
        "samples.decoding.crops:DecodeRandomResizedCrop._box",
        "narrow + (broad - narrow) * rng.random()",
        "broad - (broad - narrow) * rng.random()",
        "samples/decoding/test_crops.py",
    ),
    Mutant(
        "samples.decoding.images:put_channels_first",
        'backend == "turbo" and is_dense(out)',
        'backend == "turbo"',
        "samples/decoding/test_crops.py",
    ),
    Mutant(
        "samples.decoding.jpeg:read_frame",
        "or not data.endswith(_END)",
        "",
        "samples/decoding/test_jpeg.py",
    ),
    Mutant(
        "samples.decoding.jpeg:read_frame",
        "or scanned_components != components",
        "",
        "samples/decoding/test_jpeg.py",
    ),
    Mutant(
        "samples.decoding.jpeg:_segments",
        "position += 2 + length",
        'position = data.find(b"\\xff", position + 4)',
        "samples/decoding/test_jpeg.py",
    ),
]
