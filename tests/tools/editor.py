"""The edit tool on the workspace of a sandbox, as the tests of it use it."""

from pilotfish.tools.base import ToolContext, ToolResult, validate
from pilotfish.tools.edit import EditTool


class Editor:
    """The tool on one sandbox; every test has its own, and an empty workspace."""

    def __init__(self, box):
        self.box = box
        self.tool = EditTool()
        self.folder = box.workspace

    async def __call__(self, command, path="a.txt", **arguments):
        args = validate(self.tool, {"command": command, "path": path, **arguments})
        if isinstance(args, ToolResult):
            return args
        return await self.tool.run(args, ToolContext(self.box))

    async def does(self, *args, **arguments):
        result = await self(*args, **arguments)
        assert result.ok, result.text
        return result.text

    async def refuses(self, *args, **arguments):
        before = self.bytes() if (self.folder / "a.txt").is_file() else None
        result = await self(*args, **arguments)
        assert not result.ok, result.text
        assert result.text.startswith("edit: ")
        assert before is None or self.bytes() == before
        return result.text

    def put(self, data, name="a.txt"):
        """A file that the tool has not seen."""
        self.tool = EditTool()
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return path

    def bytes(self, name="a.txt"):
        return (self.folder / name).read_bytes()
