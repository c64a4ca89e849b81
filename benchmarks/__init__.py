"""Scripts that print the project's figures; run them as ``python -m benchmarks.NAME``."""
