"""Training cost in FLOPs, device time and dollars: estimates, and published training runs."""

from typing import NamedTuple

# Sustained float32 FLOPs per second of one device (Vaswani et al. 2017, footnote 5).
SUSTAINED_FLOPS_PER_SECOND = {"K80": 2.8e12, "K40": 3.7e12, "M40": 6.0e12, "P100": 9.5e12}
_HOUR, _DAY = 3600.0, 24.0


class PublishedTrainingRun(NamedTuple):
    """A published training run.

    Attributes:
        name: The model.
        num_devices: The number of devices.
        device_name: The kind of device.
        hours: Hours of training.
        published_flops: The cost in table 2 of Vaswani et al. 2017; None if it is not in that table.
        source: The source of devices and hours.
    """

    name: str
    num_devices: int
    device_name: str
    hours: float
    published_flops: float | None
    source: str

    @property
    def estimated_flops(self) -> float | None:
        """Devices x seconds x sustained FLOPs per second; None if the device's rate is unknown."""
        rate = SUSTAINED_FLOPS_PER_SECOND.get(self.device_name)
        return None if rate is None else self.num_devices * self.hours * _HOUR * rate

    def estimate_dollars(self, dollars_per_device_hour: float) -> float:
        """Return the rental cost."""
        return rental_cost(self.num_devices, self.hours, dollars_per_device_hour)


def rental_cost(devices: int, hours: float, dollars_per_device_hour: float) -> float:
    """Return devices x hours x dollars_per_device_hour."""
    return devices * hours * dollars_per_device_hour


PUBLISHED_TRAININGS = (
    PublishedTrainingRun("transformer-base", 8, "P100", 12, 3.3e18, "Vaswani et al. 2017, section 5.2"),
    PublishedTrainingRun("transformer-big", 8, "P100", 3.5 * _DAY, 2.3e19, "Vaswani et al. 2017, section 5.2"),
    PublishedTrainingRun("gnmt-rl en-de", 96, "K80", _DAY, 2.3e19, "Shazeer et al. 2017, table 3"),
    PublishedTrainingRun("gnmt-rl en-fr", 96, "K80", 6 * _DAY, 1.4e20, "Shazeer et al. 2017, table 2"),
    PublishedTrainingRun("convs2s en-de", 1, "M40", 18.5 * _DAY, 9.6e18, "Gehring et al. 2017, section 5.1"),
    PublishedTrainingRun("convs2s en-fr", 8, "M40", 37 * _DAY, 1.5e20, "Gehring et al. 2017, section 5.1"),
    PublishedTrainingRun("moe en-de", 64, "K40", _DAY, 2.0e19, "Shazeer et al. 2017, table 3"),
    PublishedTrainingRun("moe en-fr", 64, "K40", 6 * _DAY, 1.2e20, "Shazeer et al. 2017, table 2"),
    PublishedTrainingRun("gopher-280b", 4096, "TPU v3", 920, None, "Rae et al. 2021, table A27"),
)


class CostEstimate(NamedTuple):
    """The estimated cost of a training run; None where an input is unknown.

    Attributes:
        approximate_flops: 6 N D (Kaplan et al. 2020, section 2.1).
        counted_flops: FLOPs counted in the model's jaxpr.
        device_days: Days of one device, by the counted FLOPs or else the approximate ones.
        dollars: The rental cost of these days.
    """

    approximate_flops: float
    counted_flops: float | None
    device_days: float | None
    dollars: float | None


def estimate_training_cost(
    parameters: int,
    tokens: float,
    flops_per_token: float | None,
    *,
    flops_per_second: float | None,
    dollars_per_device_hour: float | None,
) -> CostEstimate:
    """Estimate the cost of training a model.

    Args:
        parameters: The number of parameters N.
        tokens: The number of training tokens D.
        flops_per_token: Training FLOPs per token; None if unknown.
        flops_per_second: FLOPs per second that one device sustains; None if unknown.
        dollars_per_device_hour: The price of one device for an hour; None if unknown.

    Returns:
        The estimate.
    """
    approximate = 6.0 * parameters * tokens
    counted = None if flops_per_token is None else flops_per_token * tokens
    if flops_per_second is None:
        return CostEstimate(approximate, counted, None, None)
    days = (approximate if counted is None else counted) / flops_per_second / _HOUR / _DAY
    dollars = None if dollars_per_device_hour is None else rental_cost(1, days * _DAY, dollars_per_device_hour)
    return CostEstimate(approximate, counted, days, dollars)
