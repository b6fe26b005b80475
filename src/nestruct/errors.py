"""The errors nestruct raises on purpose: one sentence that says what to change."""


class NestructError(Exception):
    """Base of every error that nestruct raises on purpose."""


class InputError(NestructError, ValueError):
    """Something handed to nestruct cannot be used; the message says what, where and what to do."""


class MissingError(InputError, AttributeError):
    """Something is asked of an object that it does not have; the message says what to do."""


def first_line(error: BaseException) -> str:
    """The first line of what an error says, for a log; its type where it says nothing."""
    return next(iter(str(error).splitlines()), type(error).__name__)


def is_out_of_memory(error: Exception) -> bool:
    """Whether a GPU or the machine had no memory left; torch says so in RuntimeErrors."""
    kinds = [kind.__name__ for kind in type(error).__mro__]
    if "OutOfMemoryError" in kinds or "MemoryError" in kinds:  # torch's own, and Python's
        return True
    phrases = (
        *("can't allocate memory", "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED"),
        *("Storage size calculation overflowed", "integer multiplication overflow"),
    )
    return any(phrase in str(error) for phrase in phrases)
