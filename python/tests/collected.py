"""What a session of pytest collected: for the test that compares it with the table of lanes."""

from __future__ import annotations

from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[2]

# Of each collected file the tests by full_id, and whether each is of the nightly lane; only where the session leaves
# those out.
COLLECTED = pytest.StashKey[dict[str, dict[str, bool]]]()


def full_id(item: pytest.Item) -> str:
    """A test as internal/tools/lanes names it: its file from the root of the repository, function and variant."""
    return f"{item.path.resolve().relative_to(_ROOT)}::{item.name}"


def keep(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keeps the collected tests in the stash."""
    found: dict[str, dict[str, bool]] = {}
    for i in items:
        name = full_id(i)
        found.setdefault(name.partition("::")[0], {})[name] = bool(i.get_closest_marker("nightly"))
    config.stash[COLLECTED] = found
