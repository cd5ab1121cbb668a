"""What tests say of a model's changes to a package: hidden tests, and the model's own tests on mutants."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass

from pilotfish.sandbox import Sandbox
from pilotfish.tasks.environment_fields import Change
from pilotfish.tasks.fresh import check_patch
from pilotfish.tasks.grader_fields import Mutants, Tests
from pilotfish.tasks.statuses import statuses

Verdict = tuple[float, bool, str]
_PYTEST = "python3 -m pytest -p no:cacheprovider -c /dev/null"
_TESTS = f"""
cd "$GRADER/hidden" && {_PYTEST} -rA --tb=line --rootdir=. .
"""
_NO_GOOD = 122
_MUTANTS = f"""
check() {{ {_PYTEST} -q -x --rootdir=. "$OWN" > "$GRADER/said" 2>&1; }}
check || {{ tail -n 1 "$GRADER/said"; exit {_NO_GOOD}; }}
number=0
for path in "${{PATHS[@]}}"; do
  cp "$path" "$GRADER/kept" && cp "$GRADER/mutant/$number" "$path" || exit 1
  ! check || echo "SURVIVED $number"
  cp "$GRADER/kept" "$path"
  number=$((number + 1))
done
echo JUDGED
"""


@dataclass(frozen=True)
class Work:
    """A repository task's work at its end. files: what it began with; base: the same as a tar archive."""

    box: Sandbox
    files: Mapping[str, bytes]
    base: bytes
    patch: str

    async def tests(self, grader: Tests) -> Verdict:
        """Each test function of the hidden files is told of and passes, with all its parameters."""
        laid = {f"hidden/{name}": text for name, text in grader.files.items()}
        checked = await check_patch(self.box, self.base, self.patch, _TESTS, grader.timeout_s, files=laid)
        if checked.trouble:
            return 0.0, False, checked.trouble
        passed: dict[str, bool] = {}
        for name, good in statuses(checked.log).items():
            function = name.rpartition("::")[2].partition("[")[0]
            passed[function] = passed.get(function, True) and good
        wanted = [name for text in grader.files.values() for name in _functions(text)]
        bad = [name for name in wanted if not passed.get(name, False)]
        if not bad:
            return 1.0, True, f"All {len(wanted)} hidden tests pass."
        return 0.0, False, f"{len(bad)} of {len(wanted)} hidden tests do not pass, such as {bad[0]}."

    async def mutants(self, grader: Mutants) -> Verdict:
        """The model's tests pass on the package as it was given, and fail on each mutant of it."""
        laid = {
            f"mutant/{number}": changed(self.files[change.path], change)
            for number, change in enumerate(grader.changes)
        }
        paths = " ".join(f"'{change.path}'" for change in grader.changes)
        command = f"OWN='{grader.tests}'\nPATHS=({paths})\n{_MUTANTS}"
        checked = await check_patch(
            self.box,
            self.base,
            self.patch,
            command,
            grader.timeout_s,
            files=laid,
            only=f"{grader.tests}/*",
        )
        said = checked.log.strip().splitlines()
        if checked.trouble:
            return 0.0, False, checked.trouble
        if checked.exit_code == _NO_GOOD:
            why = said[-1][:120] if said else "nothing was said"
            return 0.0, False, f"The tests in {grader.tests} do not pass on the package as it was: {why}."
        survived = [line for line in said if line.startswith("SURVIVED ")]
        if not said or said[-1] != "JUDGED":
            return 0.0, False, "The tests could not be tried on changed code."
        if survived:
            first = grader.changes[int(survived[0].split()[1])]
            lost = f"{len(survived)} of {len(grader.changes)} faults"
            return 0.0, False, f"The tests miss {lost}, such as {' '.join(first.replace.split())[:80]!r}."
        return 1.0, True, f"The tests find all {len(grader.changes)} faults."


def changed(data: bytes, change: Change) -> bytes:
    """A file with a change made. Raises `ValueError` unless the text to find is there once."""
    found = data.count(change.find.encode())
    if found != 1:
        raise ValueError(
            f"{change.path} holds {' '.join(change.find.split())[:60]!r} {found} times, not once"
        )
    return data.replace(change.find.encode(), change.replace.encode())


def _functions(text: str) -> list[str]:
    """The names of the test functions in a file, those in classes too."""
    tree = ast.walk(ast.parse(text))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return [node.name for node in tree if isinstance(node, kinds) and re.match("test", node.name)]
