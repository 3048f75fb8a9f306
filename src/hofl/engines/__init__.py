"""How plans reach clients and uploads come back: in this process, or in a pool of workers."""
