"""What training costs in operations, device time and money: before it is trained, and as published trainings were."""

from typing import NamedTuple

# Sustained float32 operations a second of one device, as Vaswani et al. 2017 take them (footnote 5).
SUSTAINED = {"K80": 2.8e12, "K40": 3.7e12, "M40": 6.0e12, "P100": 9.5e12}
_HOUR, _DAY = 3600.0, 24.0


class Trained(NamedTuple):
    """A training as its source tells it: devices of one kind for so many hours, and the operations that are printed.

    `printed` is the cost in table 2 of Vaswani et al. 2017; None where no table prints one.
    """

    name: str
    devices: int
    device: str
    hours: float
    printed: float | None
    source: str

    @property
    def operations(self) -> float | None:
        """Devices x seconds x sustained rate; None for a device whose rate is not known here."""
        rate = SUSTAINED.get(self.device)
        return None if rate is None else self.devices * self.hours * _HOUR * rate

    def dollars(self, price: float) -> float:
        """The rent at a price of one device for an hour."""
        return rent(self.devices, self.hours, price)


def rent(devices: int, hours: float, price: float) -> float:
    """Devices x hours x the price of one device for an hour."""
    return devices * hours * price


TRAINED = (
    Trained("transformer-base", 8, "P100", 12, 3.3e18, "Vaswani et al. 2017, section 5.2"),
    Trained("transformer-big", 8, "P100", 3.5 * _DAY, 2.3e19, "Vaswani et al. 2017, section 5.2"),
    Trained("gnmt-rl en-de", 96, "K80", _DAY, 2.3e19, "Shazeer et al. 2017, table 3"),
    Trained("gnmt-rl en-fr", 96, "K80", 6 * _DAY, 1.4e20, "Shazeer et al. 2017, table 2"),
    Trained("convs2s en-de", 1, "M40", 18.5 * _DAY, 9.6e18, "Gehring et al. 2017, section 5.1"),
    Trained("convs2s en-fr", 8, "M40", 37 * _DAY, 1.5e20, "Gehring et al. 2017, section 5.1"),
    Trained("moe en-de", 64, "K40", _DAY, 2.0e19, "Shazeer et al. 2017, table 3"),
    Trained("moe en-fr", 64, "K40", 6 * _DAY, 1.2e20, "Shazeer et al. 2017, table 2"),
    Trained("gopher-280b", 4096, "TPU v3", 920, None, "Rae et al. 2021, table A27"),
)


class Estimate(NamedTuple):
    """What training on so many tokens takes; None where what it needs is not known.

    `simple` are 6 N D operations (Kaplan et al. 2020, section 2.1), `exact` those counted in the model's trace.
    `device_days` and `dollars` are of the exact ones, or else of the simple.
    """

    simple: float
    exact: float | None
    device_days: float | None
    dollars: float | None


def estimate(
    parameters: int, tokens: float, flops_a_token: float | None, *, rate: float | None, price: float | None
) -> Estimate:
    """The cost of `tokens` for a model of so many parameters and operations of training a token.

    `rate` is what one device sustains, in operations a second, and `price` its rent for an hour.
    """
    simple = 6.0 * parameters * tokens
    exact = None if flops_a_token is None else flops_a_token * tokens
    days = None if rate is None else (simple if exact is None else exact) / rate / _HOUR / _DAY
    return Estimate(simple, exact, days, None if days is None or price is None else rent(1, days * _DAY, price))
