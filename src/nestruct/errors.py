"""The errors nestruct raises on purpose: one sentence that says what to change."""


class NestructError(Exception):
    """Base of every error that nestruct raises on purpose."""


class InputError(NestructError, ValueError):
    """Something handed to nestruct cannot be used; the message says what, where and what to do."""


def first_line(error: Exception) -> str:
    """The first line of what an error says, for a log; its type where it says nothing."""
    return next(iter(str(error).splitlines()), type(error).__name__)
