"""The site half of each method, file for file the mirror of ``strategies``."""
