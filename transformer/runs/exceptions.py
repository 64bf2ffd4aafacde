"""How a run ends before its last step, other than by a fault of the program. This module does not import jax."""

# The exit code of a process that was told to stop: its run is saved, and the same command goes on with it. (EX_TEMPFAIL
# of sysexits.h: "the user is invited to retry".)
EXIT_CODE_RESTARTABLE = 75


class RunFailed(RuntimeError):
    """A failure of the run that its message explains in one line: no traceback says more."""


class NonFiniteError(RunFailed, FloatingPointError):
    """What a run would store of a step holds NaN or infinity."""

    def __init__(self, step: int, message: str):
        super().__init__(message)
        self.step = step


class RunStopped(Exception):
    """The run was told to stop, and has: starting it again goes on with it."""
