"""Where the command `pilotfish` begins: hears Ctrl-C while the rest of it is still being imported."""

import os
import sys


def main() -> None:
    """Run the command; see `cli.main`."""
    try:
        from pilotfish.agent.cli import main as command
    except KeyboardInterrupt:
        sentence = "The command was interrupted."
        if "--json" in sys.argv[1:]:
            print(f'{{"error": "{sentence}"}}', flush=True)
        print(f"pilotfish: {sentence}", file=sys.stderr, flush=True)
        os._exit(130)
    command()


if __name__ == "__main__":
    main()
