"""A run of the generator: cache and exit measured apart and together, on the same batches, every generation recorded.

`samples` says what is generated for and how outputs are checked, `plan` what will be done and how long it may take,
`execution` does it.
"""
