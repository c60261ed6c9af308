"""Small networks trained on a target's own answers: `ar` drafts token after token, `blocks` a whole block at once."""
