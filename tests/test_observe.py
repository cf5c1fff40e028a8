"""Counters as users read of them."""

from __future__ import annotations

from pathlib import Path

from bundler.integrations.observe import COUNTERS


def test_every_counter_is_documented_and_no_other() -> None:
    text = (Path(__file__).parents[1] / "docs" / "torch-compile.md").read_text(encoding="utf-8")
    named = {word for word in text.replace("`", " ").replace(",", " ").split() if word.startswith("bundler_")}
    assert named == set(COUNTERS)
