"""Start, supervision and end of the server's processes, with LitServe in one file. It reads no requests."""
