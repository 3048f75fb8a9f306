"""How far the clock of a device is from the server's, by NTP's formulas.

Deadlines are sent in the device's own time, so a wrong clock costs no answer; Flower, however,
refuses a node whose signed requests are dated more than 5 s ahead or 305 s behind.
"""

from dataclasses import dataclass
from email.parser import BytesHeaderParser
from email.utils import parsedate_to_datetime

from hofl.deploy.link import Header

LATEST = 1e11
"""Seconds since 1970 that no clock shows: the year 5138."""
NOTED = 2.0
"""Seconds beyond the error of the measurement from which a clock counts as wrong."""


@dataclass(frozen=True)
class ClockOffset:
    """Of a device's clock, against the server's.

    >>> print(ClockOffset.measured(100.0, 90.0, 95.0, 106.0))
    10.5 s behind

    Args:
        seconds: how far it is ahead; negative when it is behind.
        error: how far that may be off: half of the time that the messages were on their way.
    """

    seconds: float = 0.0
    error: float = 0.0

    @classmethod
    def measured(
        cls, sent: float, received: float, replied: float, arrived: float
    ) -> "ClockOffset":
        """Measure by one exchange: ``sent``, ``arrived`` by this clock, the others by the other."""
        error = ((arrived - sent) - (replied - received)) / 2
        return cls((received - sent + replied - arrived) / 2, max(0.0, error))

    @classmethod
    def declared(cls, sent: float, header: Header, arrived: float) -> "ClockOffset":
        """Measure by the times in the header of an answer, which a device declares itself.

        An answer to a plan says when the plan was received, and not how long it took to compute:
        the computing then counts as time on the way, and :meth:`there` is as exact as before.

        Raises:
            ValueError: they are not times.
        """
        received = _time(header, "received")
        replied = _time(header, "replied") if "replied" in header else received
        return cls.measured(sent, received, replied, arrived)

    @classmethod
    def by_date(cls, sent: float, date: float, arrived: float) -> "ClockOffset":
        """Measure this clock by the ``Date`` of a server's answer, which has whole seconds."""
        server = cls.measured(sent, date + 0.5, date + 0.5, arrived)
        return cls(-server.seconds, server.error + 0.5)

    @property
    def wrong(self) -> bool:
        """Whether the clocks differ by more than can be the messages' fault."""
        return abs(self.seconds) > self.error + NOTED

    def there(self, instant: float) -> float:
        """Return the latest that the other clock may show at an instant of this one."""
        return instant + self.seconds + self.error

    def __str__(self) -> str:
        return f"{abs(self.seconds):.3g} s {'ahead of' if self.seconds > 0 else 'behind'}"


def _time(header: Header, name: str) -> float:
    shown = header.get(name)
    if not isinstance(shown, int | float) or not 0 <= shown < LATEST:
        raise ValueError(f"its clock shows {shown!r:.40}")
    return float(shown)


def dated(head: bytes) -> float:
    """Return the ``Date`` of an HTTP answer, or raise ValueError where it has none."""
    headers = BytesHeaderParser().parsebytes(head.partition(b"\r\n")[2])
    return parsedate_to_datetime(headers.get("Date", "")).timestamp()
