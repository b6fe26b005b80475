"""The errors nestruct raises on purpose: one sentence that says what to change."""


class NestructError(Exception):
    """Base of every error that nestruct raises on purpose."""


class InputError(NestructError, ValueError):
    """Something handed to nestruct cannot be used; the message says what, where and what to do."""
