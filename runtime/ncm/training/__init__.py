"""Training of next-concept models: data, codec, direct network (the baseline), generator, held-out figures."""
