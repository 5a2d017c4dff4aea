"""A panic of a library in Rust, which pyo3 raises as a class of this name that is no Exception."""


class PanicException(BaseException):
    pass
