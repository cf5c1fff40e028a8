"""Where this package joins torch and Triton: their only importers. Nothing here may fail into a user's program."""
