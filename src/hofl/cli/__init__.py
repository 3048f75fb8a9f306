"""The command line; ``commands`` lists the commands and their modules."""
