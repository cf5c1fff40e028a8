"""What tests of this package, and of things built on it, need: cache trees, without a GPU, torch or Triton.

- :mod:`bundler.testing.trees` writes whole cache directories as Triton, Inductor and vLLM lay them out.
- :mod:`bundler.testing.artifacts` makes the files of one kernel.
- :mod:`bundler.testing.programs` holds programs that fill real caches with torch and Triton, in a process of their own.

Shipped, so that others can test against it too. Nothing in the package imports it, except the demo.
"""
