"""What typer finds wrong with a command line, as one sentence with the value and the mend."""

from __future__ import annotations

import inspect
from typing import Any

from pilotfish.agent.cli_output import found_run


def is_help(error: Any) -> bool:
    """Whether it is no fault: a command without arguments, which shows its help."""
    return type(error).__name__ == "NoArgsIsHelpError"


def usage(error: Any) -> str:
    """The sentence for one of typer's exceptions that have `format_message`."""
    from pilotfish.agent.spelling import wrong_value

    if is_help(error):
        return str(error.format_message())
    parameter, refused = getattr(error, "param", None), getattr(error.__cause__, "errors", None)
    if parameter is not None and refused is not None:
        is_option = parameter.param_type_name == "option"
        name = max(parameter.opts, key=len) if is_option else parameter.name.upper()
        return wrong_value(name, refused()[0])
    told = str(error.format_message()).rstrip(".")
    own = told.removeprefix("Invalid value: ")
    if own != told:  # ours, with the mend in it
        return f"{own[0].upper()}{own[1:]}."
    command = error.ctx.command_path if getattr(error, "ctx", None) else "pilotfish"
    if type(error).__name__ == "MissingParameter" and _is_run(parameter):
        return f"{told}, a run; `pilotfish runs` lists them, and {command} --help tells more."
    return f"{told}; see {command} --help."


def _is_run(parameter: Any) -> bool:
    """Whether it is the argument that names a run."""
    callback = getattr(parameter, "callback", None)
    return callback is not None and inspect.unwrap(callback) is found_run
