"""Exceptions and the exit code of a run that ends early. This module does not import jax."""

# The exit code of a preempted process: its run is saved, and the same command resumes it. (EX_TEMPFAIL
# of sysexits.h: "the user is invited to retry".)
EXIT_CODE_RESTARTABLE = 75


class RunFailed(RuntimeError):
    """The run failed for a reason that one line explains; no traceback is printed."""


class NonFiniteError(RunFailed, FloatingPointError):
    """A value to be stored, such as a parameter or an attention map, is NaN or infinite."""

    def __init__(self, step: int, message: str):
        super().__init__(message)
        self.step = step


class RunStopped(Exception):
    """The run was preempted and is saved; the same command resumes it."""
