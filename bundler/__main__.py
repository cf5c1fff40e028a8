"""``python -m bundler``: the same command as ``triton-bundler``."""

from __future__ import annotations

from bundler.cli import entry_point

if __name__ == "__main__":
    entry_point()
