"""Start, supervision and end of the server's processes and its application, with LitServe in one file."""
