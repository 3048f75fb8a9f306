"""The two errors a user can meet; the command line prints them as one line, without a traceback."""


class HoflError(ValueError):
    """A mistake the user can mend: the message says what was got, what is allowed, what to do."""


class UploadRefused(HoflError):
    """An upload that failed a check. The round goes on without it and records the reason."""
