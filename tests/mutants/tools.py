"""Bugs in the tools of the command line: options, output, exit statuses."""

from tests.mutants.planting import Mutant

MUTANTS = [
    Mutant(
        "tools.output_options:_print_renumbered",
        "name is not None",
        "False",
        "tools/packing/test_pack_classes.py",
    ),
    Mutant(
        "tools.console:run_tool",
        "    _accept_any_names()\n",
        "",
        "tools/test_names_not_utf8.py",
    ),
    Mutant(
        "tools.show:_write_page",
        '"::".join(map(redact_pattern, options.urls))',
        '"::".join(options.urls)',
        "tools/remote/test_remote_show.py",
    ),
    Mutant(
        "tools.console:status_of",
        "return REFUSED if failures else 0",
        "return 0",
        "tools/remote/test_outages.py",
    ),
    Mutant(
        "tools.show:_check",
        "options.html is not None and os.path.lexists(options.html)",
        "False",
        "tools/test_show.py",
    ),
    Mutant(
        "tools.show:_check",
        'begin not in (b"", _PNG)',
        "False",
        "tools/test_show.py",
    ),
    Mutant(
        "tools.console:printable",
        "ascii(letter)[1:-1]",
        "letter",
        "tools/test_show.py",
    ),
    Mutant(
        "tools.reshard:_require_fields",
        'require_known_fields("--rename", edit.rename, fields)',
        "",
        "tools/test_reshard.py",
    ),
    Mutant(
        "tools.reshard:_require_fields",
        'require_known_fields("--fields", edit.only, renamed)',
        "",
        "tools/test_reshard.py",
    ),
    Mutant(
        "tools.reshard:_kept_fields",
        "name.strip() for name",
        "name for name",
        "tools/test_reshard.py",
    ),
    Mutant(
        "tools.output_options:output_folders",
        "if options.val_fraction else",
        "if False else",
        "tools/packing/test_outputs_apart.py",
    ),
    Mutant(
        "tools.index:_index_files",
        "[*filter(Path.exists, tables), *write_index(surveyed, files)]",
        "write_index(surveyed, files)",
        "tools/test_index.py",
    ),
    Mutant(
        "tools.info:_require_field",
        "name not in surveyed.fields",
        "False",
        "tools/test_info.py",
    ),
    Mutant(
        "tools.index:_index_files",
        "listed=listed_md5s(urls, files),",
        "",
        "tools/test_index_checksums.py",
    ),
    Mutant(
        "tools.index:_index_files",
        "require_own_index(urls, files)",
        "pass",
        "dataprep/indexes/test_earlier_files.py",
    ),
    Mutant(
        "tools.console:run_tool",
        "PIPE_CLOSED if status is None else status",
        "0",
        "tools/test_standard_streams.py",
    ),
    Mutant(
        "system.standard_streams:open_missing_streams",
        "setattr(sys, name, stream)",
        "pass",
        "tools/test_standard_streams.py",
    ),
    Mutant(
        "tools.console:whole_numbers",
        "_WHOLE_NUMBER.fullmatch(word)",
        "word.isdecimal()",
        "tools/test_large_numbers.py",
    ),
    Mutant(
        "tools.output_options:load_function",
        "except (Exception, SystemExit) as error",
        "except Exception as error",
        "tools/test_reshard.py",
    ),
    Mutant(
        "tools.verify:_verdict",
        "if checked.checksummed == num_shards:",
        "if True:",
        "tools/test_verify_beside.py",
    ),
    Mutant(
        "tools.index:_index",
        "in_one_spelling(shards_of(options))",
        "shards_of(options)",
        "tools/test_index.py",
    ),
]
