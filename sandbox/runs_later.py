"""Files that some program runs, or obeys, by itself later on: worth a look before they are trusted.

Names are compared as a file system may that does not tell case or invisible characters apart.
"""

from __future__ import annotations

import unicodedata
from fnmatch import fnmatchcase

_ANYWHERE = {
    "makefile": "make",
    "gnumakefile": "make",
    "*.mk": "make",
    "justfile": "just",
    "taskfile.y*ml": "task",
    "rakefile": "rake",
    "cmakelists.txt": "cmake",
    "meson.build": "meson",
    "build.rs": "cargo",
    "build.gradle*": "gradle",
    "settings.gradle*": "gradle",
    "pom.xml": "maven",
    ".envrc": "direnv",
    ".npmrc": "npm",
    ".yarnrc*": "yarn",
    ".pnp.*": "yarn",
    ".pnpmfile.cjs": "pnpm",
    "package.json": "npm",
    "*.config.js": "a JavaScript tool",
    "*.config.mjs": "a JavaScript tool",
    "*.config.cjs": "a JavaScript tool",
    "*.config.ts": "a JavaScript tool",
    ".eslintrc*": "eslint",
    ".prettierrc*": "prettier",
    "conftest.py": "pytest",
    "setup.py": "pip",
    "pyproject.toml": "pip",
    "setup.cfg": "pip",
    "tox.ini": "tox",
    "noxfile.py": "nox",
    "sitecustomize.py": "Python",
    "usercustomize.py": "Python",
    "*.pth": "Python",
    ".pre-commit-config.yaml": "pre-commit",
    ".gitattributes": "git",
    ".gitmodules": "git",
    ".gitconfig": "git",
    ".exrc": "an editor",
    ".vimrc": "an editor",
    ".nvim.lua": "an editor",
    ".dir-locals.el": "an editor",
    "*.code-workspace": "an editor",
    ".tool-versions": "a version manager",
    ".mise.toml": "a version manager",
    "mise.toml": "a version manager",
    ".gdbinit": "gdb",
    ".lldbinit": "lldb",
    ".bashrc": "a shell",
    ".bash_profile": "a shell",
    ".profile": "a shell",
    ".zshrc": "a shell",
    ".zshenv": "a shell",
    "dockerfile*": "docker",
    "docker-compose*.y*ml": "docker",
    "compose.y*ml": "docker",
    "vagrantfile": "vagrant",
    "*.desktop": "a desktop",
    "agents.md": "an agent",
    "agents.override.md": "an agent",
    "claude.md": "an agent",
    "gemini.md": "an agent",
    ".cursorrules": "an agent",
    ".windsurfrules": "an agent",
    ".mcp.json": "an agent",
    "pilotfish.toml": "pilotfish",
}
_IN_FOLDERS = {
    ".vscode": "an editor",
    ".idea": "an editor",
    ".devcontainer": "an editor",
    ".husky": "git",
    ".githooks": "git",
    ".cargo": "cargo",
    ".claude": "an agent",
    ".cursor": "an agent",
    ".codex": "an agent",
    ".gemini": "an agent",
    ".circleci": "a build server",
    ".mvn": "maven",
    ".yarn": "yarn",
}
_OF_GIT = ("config", "config.worktree", "hooks", "commondir", "gitdir")
_HOOKS = (
    "applypatch-msg",
    "commit-msg",
    "fsmonitor-watchman",
    "post-*",
    "pre-*",
    "prepare-commit-msg",
    "proc-receive",
    "push-to-checkout",
    "reference-transaction",
    "sendemail-validate",
    "update",
)


def who_runs(path: str) -> str:
    """The name of what runs or obeys the file of this path by itself; '' for most files."""
    parts = [_plain(part) for part in path.split("/")]
    name = parts[-1]
    if (git := _in_repository(parts)) is not None:
        return "git" if git else ""
    if name == ".git":  # a file that says where the repository is
        return "git"
    for folder, who in _IN_FOLDERS.items():
        if folder in parts[:-1]:
            return who
    if parts[0] == ".github" and len(parts) > 2 and parts[1] in ("workflows", "actions"):
        return "a build server"
    if name in (".gitlab-ci.yml", "jenkinsfile", "azure-pipelines.yml"):
        return "a build server"
    return next((who for pattern, who in _ANYWHERE.items() if fnmatchcase(name, pattern)), "")


def _in_repository(parts: list[str]) -> bool | None:
    """Whether git runs or obeys this part of a repository's own folder; None when it is in none.

    A folder of hooks is told by what is in it: a repository without work tree may have any name.
    """
    *folders, name = parts
    if ".git" in folders:
        inner = parts[parts.index(".git") + 1 :]
        told = any(part in _OF_GIT for part in inner) and inner[0] not in ("objects", "refs", "logs")
        return told or inner == ["info", "attributes"]
    if folders and folders[-1] == "hooks" and any(fnmatchcase(name, hook) for hook in _HOOKS):
        return True
    return True if any(folder.endswith(".git") for folder in folders) and name == "config" else None


def _plain(name: str) -> str:
    folded = unicodedata.normalize("NFKC", name.encode("utf-8", "replace").decode()).casefold()
    return "".join(char for char in folded if unicodedata.category(char) not in ("Cf", "Cc")).rstrip(". ")
