"""Errors that a user or a peer can cause; the command line prints them as one line."""


class HoflError(ValueError):
    """A mistake the user can fix: its message says what was got, what is allowed, what to do."""


class UploadRefused(HoflError):
    """An upload that failed a check. The round continues without it and records the reason."""


class BackwardFailed(RuntimeError):
    """A device could not run a block backward, for another reason than lack of memory."""


class PlanRefused(HoflError):
    """A plan that a device cannot read or will not carry out."""


def reason_of(error: BaseException) -> str:
    r"""Return the first line of an error's text, or its type where it has none.

    >>> reason_of(RuntimeError("no power\nat line 3")), reason_of(MemoryError())
    ('no power', 'MemoryError')
    """
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def printable(value: object) -> str:
    r"""Return untrusted text shortened and escaped, safe for any log or terminal.

    >>> printable("\x1b[2Jno power\n")
    '\\x1b[2Jno power\\n'
    """
    return str(value).encode("unicode_escape").decode()[:200]
