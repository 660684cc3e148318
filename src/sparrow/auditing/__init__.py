"""The audit: what separates the sparse actor from the dense policy before any step is taken, and what it would do."""

from sparrow.auditing.settings import AuditSettings

__all__ = ["AuditSettings"]
