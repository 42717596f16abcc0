"""Mirrors `jspec/`, `converters/` and `benchmarks/`."""
