"""Research runs: one claim a file, each with its command and its expected number."""
