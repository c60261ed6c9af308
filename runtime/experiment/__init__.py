"""A run: arms compared on the same prompts, fairly, every generation recorded.

`plan` says what will be done and how long it may take, `execution` does it, `comparison` holds every output against
ordinary decoding's.
"""
