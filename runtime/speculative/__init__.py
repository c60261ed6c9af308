"""Speculative decoding: rounds of draft, verify, synchronize, trim and rewind."""
