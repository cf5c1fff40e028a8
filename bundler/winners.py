"""``--winners-only``: of the configurations that autotuning tried for one kernel, keep the one it chose.

Inductor notes the winner's path key in a ``.best_config`` file. The losers are the other kernels that were compiled
from the same generated module; they are told by the source location that every stage carries. A kernel whose module has
no noted winner is kept: it had one configuration only, or was never timed.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection

from bundler.collect import Draft
from bundler.model import Skipped, Unit

__all__ = ["drop_losers"]


def drop_losers(drafts: list[Draft], winners: Collection[str] = ()) -> tuple[list[Draft], list[Skipped]]:
    """Split off the kernels that autotuning did not choose.

    Args:
        drafts: Kernel entries, and the autotune entries that name winners.
        winners: Path keys of more winners.

    Returns:
        What stays, and the losers with the reason.
    """
    chosen = {key for draft in drafts if draft.unit is Unit.AUTOTUNE for key in _chosen(draft)} | set(winners)
    families: dict[tuple[str, str, str], list[Draft]] = defaultdict(list)
    for draft in drafts:
        if draft.unit is Unit.KERNEL and draft.module:
            families[draft.root, draft.path.rpartition("/")[0], draft.module].append(draft)
    losers: dict[tuple[str, str], Skipped] = {}
    for family in families.values():
        best = [draft for draft in family if _key(draft) in chosen]
        for draft in family if best else ():
            if _key(draft) not in chosen:
                reason = f"autotuning chose {_key(best[0])}, and only winners were asked for"
                losers[draft.root, draft.path] = Skipped(f"{draft.root}/{draft.path}", reason)
    return [d for d in drafts if (d.root, d.path) not in losers], list(losers.values())


def _key(draft: Draft) -> str:
    return draft.path.rpartition("/")[2]


def _chosen(draft: Draft) -> list[str]:
    data = draft.files[0].data
    try:
        config = json.loads(b"".join(draft.files[0].reopen()) if data is None else data)
    except (OSError, ValueError):  # gone or changed since it was collected: its kernels are then kept
        return []
    key = config.get("triton_cache_hash") if isinstance(config, dict) else None
    return [key] if isinstance(key, str) else []
