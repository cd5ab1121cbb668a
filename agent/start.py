"""Whether a run can begin, as far as that shows before a model is loaded and a folder made."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from pilotfish.agent.models import check_model
from pilotfish.agent.networking import check_hosts
from pilotfish.agent.run_folder import check_writable
from pilotfish.agent.settings import Settings
from pilotfish.sandbox import Network, SandboxError, SandboxSpec, check_workspace, try_out
from pilotfish.tasks.environment import Environment
from pilotfish.tasks.environments import environment_for, skip_reason
from pilotfish.tasks.format import Task


def check_start(
    environment: Environment, settings: Settings, task: Task | None, *, in_place: bool = True
) -> None:
    """Raise what would end a run of this environment at its beginning.

    task: what it was made of, if any. in_place: whether its workspace is worked in, and not a copy.

    `TaskError`, `ModelError`, `LogError` or `SandboxError`, each one sentence.
    """
    if task is not None:
        check_hosts(task, settings)
        if (reason := skip_reason(task)) is not None:
            raise SandboxError(reason)
    check_writable(settings.record_dir)
    check_model(settings, task)
    spec = fitted(environment.sandbox_spec(), settings)
    try_out(spec)
    if spec.workspace is not None:
        check_workspace(spec.workspace, spec.level, in_place=in_place)


def check_measurement(tasks: Iterable[Task], settings: Settings) -> None:
    """The same for many tasks; those that this machine cannot play are passed over, as in the measurement."""
    check_writable(settings.record_dir)
    specs: list[SandboxSpec] = []
    for task in tasks:
        check_hosts(task, settings)
        check_model(settings, task)
        if skip_reason(task) is None:
            spec = fitted(environment_for(task).sandbox_spec(), settings)
            specs += [] if spec in specs else [spec]
    for spec in specs:
        try_out(spec)


def on_this_machine(task: Task, settings: Settings) -> Task:
    """A task with what the settings say of clones and test environments."""
    given = settings.swe_bench
    return task.with_clones(
        given.repositories and given.repositories.expanduser().absolute(),
        given.test_command,
        given.test_environment and given.test_environment.expanduser().absolute(),
    )


def fitted(spec: SandboxSpec, settings: Settings) -> SandboxSpec:
    """What an environment asks for, at the level, with the network and within the limits of the settings.

    Raises `SandboxError` where these do not go together.
    """
    level = settings.sandbox_level
    if spec.desktop and level != 3:
        raise SandboxError(
            f"There is no display with {settings.as_given('sandbox_level')} {level}; leave that out, or do "
            "without a screen."
        )
    network = Network(settings.network)
    return replace(spec, level=level, network=network, limits=settings.limits.put_on(spec.limits))
