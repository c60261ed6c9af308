"""Next-concept models of a target's text: a block of its next tokens from the last ones, coarse to fine."""
