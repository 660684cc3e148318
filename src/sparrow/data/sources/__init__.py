"""Prompt sources: each makes or reads rows in the field's prompt schema."""
