"""The tail of acceptance: what is measured of it, and what to do about it."""
