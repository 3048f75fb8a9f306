"""A fleet on a network: processes, sockets and bookkeeping. Nothing here imports the transport."""
