"""The parts of scripts/bench: inputs, processes that are measured, comparisons, targets, and what is written of them.

``launcher`` and ``worker`` (with ``worker_torch``) run in processes of their own, ``floor`` is a program; the rest is
imported by ``scripts/bench.py``.
"""
