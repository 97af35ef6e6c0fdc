"""One file a command: its options, and what it prints. `run` returns (JSON result, lines for people, exit code)."""
