"""What the tests of kernels import, so that they run where no desktop's packages are."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

TESTS = Path(__file__).parent
ENOUGH = {"pilotfish.kernels", "torch", "triton", "numpy", "pytest"}


def test_they_take_torch_triton_and_pytest_alone() -> None:
    for file in (TESTS.parent / "conftest.py", *sorted(TESTS.glob("*.py"))):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:  # what importing a file imports
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{file.name} imports {node.module} from beside it"
                names = [node.module or ""]
            for name in names:
                top = name.partition(".")[0]
                enough = top in sys.stdlib_module_names or {top, ".".join(name.split(".")[:2])} & ENOUGH
                assert enough, f"{file.name} imports {name}"
