"""The faults that were tried, what must hold, and the test that shows it; docs/reliability.md shows this table.

`python -m tests.faults.table` prints it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fault:
    """One row."""

    tried: str
    holds: str
    test: str
    """File below tests and name of the test."""


IN_PROCESS = (
    Fault(
        "Ctrl-C at any line of `check`, `blame`, `watch`, `numerical_jacobian` and the drop-in functions, or of "
        "torch's Python code below them, also while state is restored; with `reference=` and `dtypes=`; without grad "
        "mode, in autocast, anomaly mode and deterministic mode, with another default dtype; functions that use "
        "`functional_call` and `jvp`",
        "all state listed above is as before, and another check can begin",
        "faults/test_interruptions.py::test_interrupted_check_leaves_everything_as_it_was",
    ),
    Fault(
        "Ctrl-C at any line of the start and the end of a `with gradvet.watch()` block",
        "no hook is left, though the object lives on",
        "faults/test_interruptions.py::test_interruption_at_the_ends_of_a_watched_block_leaves_no_hooks",
    ),
    Fault(
        "the function changes grad mode, default dtype or device, autocast, anomaly mode, deterministic algorithms, "
        "the number of threads, precision flags, `apply` of Functions, warnings filters, the profiling function, the "
        "recursion limit or the level of dual numbers, and returns or raises",
        "the setting is restored",
        "faults/test_world.py::test_setting_that_the_function_changes_is_restored",
    ),
    Fault(
        "captured parameters and inputs hold gradients",
        "each `.grad` is the same tensor with the same values",
        "faults/test_world.py::test_gradients_of_captured_parameters_stay",
    ),
    Fault(
        "the function calls `zero_grad` of a captured model",
        "each `.grad` is the same tensor with the same values",
        "faults/test_world.py::test_gradients_that_the_function_itself_deletes_stay",
    ),
    Fault(
        "an input that is the result of other operators, after `retain_grad()`",
        "the check passes, and `.grad` stays",
        "faults/test_world.py::test_retained_gradient_of_an_input_stays",
    ),
    Fault(
        "modules in inputs, keyword arguments and surrogate have running statistics",
        "the statistics stay",
        "faults/test_world.py::test_running_statistics_of_modules_in_inputs_keywords_and_surrogate_stay",
    ),
    Fault(
        "a module counts its calls, fills lists and mappings, and registers hooks",
        "its attributes hold the same objects with the same items, and no hook is left",
        "faults/test_world.py::test_attributes_and_hooks_of_modules_stay",
    ),
    Fault(
        "one part of the state cannot be restored",
        "the rest is restored, and the check raises",
        "faults/test_inputs.py::test_state_is_restored_though_one_part_of_it_cannot_be",
    ),
    Fault(
        "eight threads run `check`, `blame` and `watch` on one shared model",
        "each finds the same culprit; model, settings and `apply` of Functions are as before",
        "faults/test_threads.py::test_eight_threads_search_one_shared_model_and_check_it",
    ),
    Fault(
        "eight threads check one shared module",
        "all 24 checks pass; parameters, running statistics and warnings filters are as before",
        "faults/test_threads.py::test_eight_threads_check_one_shared_module",
    ),
    Fault(
        "a checked function runs a check itself",
        "no deadlock",
        "faults/test_threads.py::test_check_inside_a_checked_function_is_no_deadlock",
    ),
    Fault(
        "torch's default device is not that of the inputs, at import or later",
        "the same reports as without it",
        "faults/test_default_device.py::test_default_device_does_not_matter",
    ),
    Fault(
        "meta, fake, nested and float8 tensors, views of freed or too small memory, tensors that escaped from vmap, "
        "sparse tensors with wrong indices, tensors expanded beyond memory, subclasses without comparison",
        "refused in one sentence before the function is called, in `check`, `numerical_jacobian`, `gradcheck`, "
        "`gradgradcheck` and, except for float8, `blame`",
        "faults/test_inputs.py::test_tensor_without_usable_values_is_refused",
    ),
    Fault(
        "code inside `with gradvet.watch()` passes a nested, freed or meta tensor, or a list that contains itself",
        "it runs as without `watch`; the report is INCONCLUSIVE and says that the arguments were not kept",
        "faults/test_inputs.py::test_watched_code_runs_with_arguments_that_cannot_be_kept",
    ),
    Fault(
        "the function returns a meta tensor, freed memory, or a list that contains itself",
        "refused in one sentence",
        "faults/test_inputs.py::test_output_without_values_is_refused",
    ),
    Fault(
        "a list or a dataclass that contains itself",
        "refused in one sentence",
        "faults/test_inputs.py::test_container_that_contains_itself_is_refused",
    ),
    Fault(
        "a lazy module before its first call",
        "refused in one sentence",
        "faults/test_inputs.py::test_lazy_module_is_refused",
    ),
    Fault(
        "30 dimensions of length 1, which other shapes would make to 3",
        "shapes that need much memory are left out",
        "faults/test_inputs.py::test_many_dimensions_of_length_one_do_not_take_all_memory",
    ),
    Fault(
        "`numerical_jacobian` at NaN or infinity",
        "NaN with an infinite error bar there, the other columns as usual",
        "faults/test_inputs.py::test_numerical_jacobian_at_a_number_that_is_not_finite",
    ),
    Fault(
        "`numerical_jacobian` at small and subnormal numbers",
        "its error bars hold",
        "faults/test_inputs.py::test_error_bars_of_a_numerical_jacobian_hold_at_small_and_subnormal_numbers",
    ),
    Fault(
        "`numerical_jacobian` of expanded or overlapping inputs",
        "refused in one sentence",
        "faults/test_inputs.py::test_numerical_jacobian_of_overlapping_elements_is_refused",
    ),
    Fault(
        "34 values of wrong types and ranges for each argument",
        "refused in one sentence before the function is called",
        "faults/test_arguments.py::test_every_argument_refuses_wrong_types_and_values_in_one_sentence",
    ),
    Fault(
        "the working folder was deleted",
        "checks work",
        "faults/test_process.py::test_check_works_in_a_working_folder_that_is_gone",
    ),
    Fault(
        "functions and modules whose class was defined in a function",
        "no class is kept alive",
        "faults/test_process.py::test_classes_defined_in_functions_are_not_kept_alive",
    ),
)

OF_A_RUN = (
    Fault(
        "a case raises, exits, skips, recurses without end, or raises `MemoryError`, an unprintable "
        "exception or a `BaseException`",
        "ERROR of that case",
        "suite/test_executors.py::test_every_kind_of_exception_is_the_result_of_its_case",
    ),
    Fault(
        "a case raises `KeyboardInterrupt` in a worker",
        "ERROR of that case",
        "suite/test_executors.py::test_results_of_workers_are_those_of_this_process",
    ),
    Fault(
        "a case crashes, or uses too much memory",
        "ERROR of that case; the next has a new process",
        "core/test_processes.py::test_death_of_a_worker_fails_one_call",
    ),
    Fault(
        "a case hangs, also in native code that holds the GIL",
        "ended after `--timeout`",
        "core/test_processes.py::test_call_that_hangs_is_ended",
    ),
    Fault(
        "a case hangs and a child of it holds the pipe",
        "ended after `--timeout`",
        "core/test_processes.py::test_child_that_holds_the_pipe_does_not_delay_the_time_limit",
    ),
    Fault(
        "a case starts processes and hangs",
        "they are ended with it",
        "core/test_processes.py::test_children_of_a_call_that_hangs_are_ended_with_it",
    ),
    Fault(
        "a case forks and returns twice",
        "one answer",
        "core/test_processes.py::test_copy_of_a_worker_made_by_fork_answers_no_call",
    ),
    Fault(
        "a case writes to the pipe of its worker",
        "ERROR of that case; the next has a new process",
        "core/test_processes.py::test_call_that_writes_to_the_pipe_fails_alone",
    ),
    Fault(
        "a case writes an answer to another call to that pipe",
        "it is ignored",
        "core/test_processes.py::test_answer_to_another_call_is_ignored",
    ),
    Fault(
        "a case closes stdout and stderr",
        "the next case has a new process",
        "core/test_processes.py::test_worker_whose_streams_were_closed_is_replaced",
    ),
    Fault(
        "a case prints without end",
        "the last lines are kept",
        "core/test_processes.py::test_last_words_of_a_worker_that_printed_a_lot_are_kept",
    ),
    Fault(
        "a case sets grad mode, default dtype or device, threads, folder, environment, path, warnings, "
        "random state, streams, signal handlers, umask or the garbage collector",
        "put back before the next",
        "suite/test_executors.py::test_what_a_case_sets_does_not_reach_the_next",
    ),
    Fault(
        "a worker of a Dask cluster is killed",
        "its case runs again; none counts twice; each result is stored as it arrives",
        "suite/test_executors.py::test_killed_worker_costs_no_case_and_none_counts_twice",
    ),
    Fault(
        "the run is killed",
        "results are kept, the rest is `unfinished`; `--resume` goes on",
        "cli/test_resume.py::test_killed_run_is_resumed_where_it_stopped",
    ),
    Fault(
        "`report` of cases that died, exceeded a limit, are damaged or did not run",
        "counted as errors, exit code 2, also through JSON and HTML",
        "faults/test_files.py::test_case_without_result_is_counted_and_decides_the_exit_code",
    ),
    Fault(
        "`compare` with such cases, or with cases that are gone",
        '"incomplete" or "gone", exit code 2',
        "cli/test_compare.py::test_case_that_died_in_both_runs_makes_them_incomplete",
    ),
    Fault(
        "SIGTERM",
        "as Ctrl-C: output files are written, exit code 130",
        "cli/test_resume.py::test_sigterm_ends_a_run_as_ctrl_c_does",
    ),
    Fault(
        "the parent of a worker is killed",
        "the worker ends",
        "core/test_processes.py::test_processes_end_when_their_parent_is_killed",
    ),
    Fault(
        "two runs into one store",
        "the second is refused",
        "suite/test_damaged_store.py::test_second_run_into_a_store_is_refused",
    ),
    Fault(
        "the disk is full while a report is written",
        "the old file is left as it was",
        "reports/test_json_files.py::test_file_is_replaced_whole_or_not_at_all",
    ),
    Fault(
        "the disk is full while results are stored",
        "the run ends with one sentence; results so far are kept",
        "faults/test_files.py::test_full_disk_ends_a_run_with_one_sentence_and_keeps_its_results",
    ),
    Fault(
        "an output file is a folder, a loop of links, a full device",
        "one sentence",
        "faults/test_files.py::test_file_that_cannot_be_written_is_one_sentence",
    ),
    Fault(
        "a file `queue.py` in the current folder, or beside a file of cases",
        "not run",
        "core/test_processes.py::test_files_in_the_current_folder_do_not_replace_the_standard_library",
    ),
    Fault(
        "a store with damaged bytes",
        "results or one sentence; damaged cases are named",
        "suite/test_damaged_store.py::test_any_damage_ends_in_results_or_a_sentence",
    ),
    Fault(
        "a store or JSON file with random bytes, values, tables or types changed, read by `report` and `compare`",
        "results or one sentence; nothing is written",
        "faults/test_files.py::test_damaged_file_gives_results_or_one_sentence",
    ),
    Fault(
        "a pipe, a device, links, deep nesting, other encodings in place of a file",
        "one sentence",
        "faults/test_files.py::test_odd_file_is_refused_in_one_sentence",
    ),
    Fault(
        "a store that unpacks to gigabytes",
        "the result is refused before that",
        "suite/test_damaged_store.py::test_large_report_is_not_unpacked",
    ),
    Fault(
        "a store with a view that never ends, computed columns or triggers, or a slow query",
        "refused",
        "suite/test_damaged_store.py::test_store_with_other_tables_is_refused",
    ),
    Fault(
        "a store or file of another format",
        "refused",
        "suite/test_damaged_store.py::test_other_format_is_refused",
    ),
    Fault(
        "findings that were removed from a file",
        "ERROR, not PASS",
        "suite/test_damaged_store.py::test_emptied_findings_are_not_a_pass",
    ),
    Fault(
        "escape sequences of a terminal in a file",
        "shown as text",
        "suite/test_damaged_store.py::test_control_characters_are_escaped",
    ),
    Fault(
        "markup of rich in names",
        "shown as text",
        "reports/test_rich.py::test_labels_in_a_summary_are_printed_as_they_are",
    ),
    Fault(
        "HTML and scripts in names",
        "shown as text",
        "reports/test_html.py::test_text_of_a_report_is_escaped",
    ),
    Fault(
        "reading a store",
        "writes nothing",
        "suite/test_damaged_store.py::test_reading_writes_nothing",
    ),
)

FAULTS = (*IN_PROCESS, *OF_A_RUN)


def markdown(faults: tuple[Fault, ...]) -> str:
    rows = [f"| {fault.tried} | {fault.holds} | `{fault.test.split('::')[0]}` |" for fault in faults]
    return "\n".join(["| what was tried | what holds | test |", "| --- | --- | --- |", *rows])


if __name__ == "__main__":
    print(markdown(IN_PROCESS), markdown(OF_A_RUN), sep="\n\n")
