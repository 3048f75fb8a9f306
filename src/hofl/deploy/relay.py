"""A device's way through the gateway, for nodes that show no certificate of their own (Flower's).

The node talks TLS to the relay on this device's loopback; the relay talks TLS to the gateway, with
the device's certificate, and passes bytes on. It reads nothing of what it passes.
"""

import asyncio
import contextlib
import logging
import ssl
import threading
import time
from typing import Self

from hofl.core.errors import HoflError
from hofl.deploy.clock import ClockOffset, dated
from hofl.deploy.keys import Identity

PIECE = 2**16
CLOCK_EVERY = 3600.0
"""Seconds between two looks at the server's clock."""
CONNECT_SECONDS = 20.0
CLOSING_SECONDS = 0.05
"""Turns of the loop in which closed connections are released."""
START_SECONDS = 20.0

log = logging.getLogger("hofl.device")


class Relay:
    """Passes connections on until it is closed; use as a context manager.

    Args:
        server: HOST:PORT of the gateway.
        identity: this device's certificate and key.
        port: port on loopback; 0 is any.
    """

    def __init__(self, server: str, identity: Identity, port: int = 0) -> None:
        host, _, number = server.rpartition(":")
        if not host or not number.isdecimal():
            raise HoflError(f"cannot connect to {server!r}: write HOST:PORT.")
        try:
            self._outward, self._inward = identity.client_context(), identity.server_context()
        except (OSError, ssl.SSLError) as error:
            raise HoflError(
                f"cannot use the certificate of {identity.name!r} in {identity.folder}: {error}. "
                "Make it with hofl certs."
            ) from None
        self._host, self._number, self._port = host.strip("[]"), int(number), port
        self._loop = asyncio.new_event_loop()
        self._listening = threading.Event()
        self._thread = threading.Thread(target=self._run, name="relay", daemon=True)
        self._failure: OSError | None = None
        self._logged = ""
        self._next_look = 0.0
        self._looking: asyncio.Future[None] | None = None  # a task that nobody holds may vanish

    @property
    def address(self) -> str:
        """Where the node finds the server: HOST:PORT on loopback."""
        return f"127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        self._thread.start()
        if not self._listening.wait(START_SECONDS) or self._failure is not None:
            raise HoflError(f"the relay cannot listen on {self.address}: {self._failure}.")
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            serving = self._loop.run_until_complete(
                asyncio.start_server(self._pass_on, "127.0.0.1", self._port, ssl=self._inward)
            )
            self._port = serving.sockets[0].getsockname()[1]
        except OSError as error:
            self._failure = error
            self._listening.set()
            self._loop.close()
            return
        self._listening.set()
        self._loop.run_forever()
        serving.close()
        left = asyncio.all_tasks(self._loop)
        for task in left:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        self._loop.run_until_complete(asyncio.sleep(CLOSING_SECONDS))
        self._loop.close()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection; when either side closes it, close both."""
        with contextlib.closing(writer), contextlib.suppress(OSError):
            answers, requests = await self._connected()
            if time.monotonic() > self._next_look:
                self._next_look = time.monotonic() + CLOCK_EVERY
                self._looking = asyncio.ensure_future(self._look_at_clock())
            with contextlib.closing(requests):
                pumps = {
                    asyncio.ensure_future(_pump(reader, requests)),
                    asyncio.ensure_future(_pump(answers, writer)),
                }
                try:
                    await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for pump in pumps:
                        pump.cancel()
                    await asyncio.gather(*pumps, return_exceptions=True)

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to the gateway; a node whose connection is closed knows no reason, so log it."""
        try:
            connection = await self._open()
        except OSError as error:
            reason = str(error) or f"no answer within {CONNECT_SECONDS:g} s"
            if isinstance(error, ssl.SSLCertVerificationError):
                reason += f" (this device's clock shows {time.strftime('%Y-%m-%d %H:%M %Z')})"
            if reason != self._logged:  # not at every attempt
                log.warning("cannot connect to %s:%d: %s", self._host, self._number, reason)
            self._logged = reason
            raise
        self._logged = ""
        return connection

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        async with asyncio.timeout(CONNECT_SECONDS):
            return await asyncio.open_connection(
                self._host, self._number, ssl=self._outward, server_hostname=self._host
            )

    async def _look_at_clock(self) -> None:
        """Log a wrong clock: the server refuses a node for it without a reason."""
        with contextlib.suppress(OSError, ValueError, EOFError, asyncio.LimitOverrunError):
            answers, requests = await self._open()
            with contextlib.closing(requests.transport):
                sent = time.time()
                requests.write(f"HEAD / HTTP/1.1\r\nHost: {self._host}\r\n\r\n".encode())
                async with asyncio.timeout(CONNECT_SECONDS):
                    head = await answers.readuntil(b"\r\n\r\n")
                clock = ClockOffset.by_date(sent, dated(head), time.time())
                requests.transport.abort()  # there is nothing left to say
                if clock.wrong:
                    log.warning(
                        "this device's clock is %s the server's, which refuses a device that is "
                        "more than 5 s ahead or 300 s behind: set it (NTP)",
                        clock,
                    )


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError, ssl.SSLError):
        while piece := await reader.read(PIECE):
            writer.write(piece)
            await writer.drain()
