"""Training over a network: a server, its devices, and the transport between them."""

from importlib.util import find_spec

from hofl.core.errors import HoflError

if find_spec("cryptography") is None:
    raise HoflError("networks of devices need more libraries: pip install 'hofl[flower]'.")
