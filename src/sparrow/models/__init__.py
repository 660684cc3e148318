"""Policies: loading them, obtaining pretrained ones, their adapter, and the training-side sparse attention."""
