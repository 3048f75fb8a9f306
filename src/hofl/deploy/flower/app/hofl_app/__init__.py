"""What Flower ships to devices: two names of the installed package."""
