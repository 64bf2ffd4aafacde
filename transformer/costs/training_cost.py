"""Training cost in FLOPs, device time and dollars: estimates, and published training runs."""

from typing import NamedTuple

# Sustained float32 FLOPs per second of one device (Vaswani et al. 2017, footnote 5).
SUSTAINED_FLOPS_PER_SECOND = {"K80": 2.8e12, "K40": 3.7e12, "M40": 6.0e12, "P100": 9.5e12}
_HOUR, _DAY = 3600.0, 24.0


class PublishedTrainingRun(NamedTuple):
    """A published training run.

    Attributes:
        name: The model, and what it translates.
        bleu: BLEU on newstest2014 in table 2 of Vaswani et al. 2017; None if it is not in that table.
        published_flops: The cost in that table; None if there is none.
        num_devices: The number of devices; None if it is unknown.
        device_name: The kind of device; None if it is unknown.
        hours: Hours of training; None if they are unknown.
        source: The source of devices and hours, or of the row.
    """

    name: str
    bleu: float | None
    published_flops: float | None
    num_devices: int | None
    device_name: str | None
    hours: float | None
    source: str

    @property
    def estimated_flops(self) -> float | None:
        """Devices x seconds x sustained FLOPs per second; None if one of them is unknown."""
        if self.num_devices is None or self.hours is None or self.device_name not in SUSTAINED_FLOPS_PER_SECOND:
            return None
        return self.num_devices * self.hours * _HOUR * SUSTAINED_FLOPS_PER_SECOND[self.device_name]

    def estimate_dollars(self, dollars_per_device_hour: float) -> float | None:
        """Return the rental cost; None if devices or hours are unknown."""
        if self.num_devices is None or self.hours is None:
            return None
        return rental_cost(self.num_devices, self.hours, dollars_per_device_hour)


def rental_cost(devices: int, hours: float, dollars_per_device_hour: float) -> float:
    """Return devices x hours x dollars_per_device_hour."""
    return devices * hours * dollars_per_device_hour


_TABLE_2 = "Vaswani et al. 2017, table 2"
_TRANSFORMER, _GEHRING = "Vaswani et al. 2017, section 5.2", "Gehring et al. 2017, section 5.1"

# All rows of table 2 of Vaswani et al. 2017, in its order, and another.
PUBLISHED_TRAININGS = (
    PublishedTrainingRun("bytenet en-de", 23.75, None, None, None, None, _TABLE_2),
    PublishedTrainingRun("deep-att-posunk en-fr", 39.2, 1.0e20, None, None, None, _TABLE_2),
    PublishedTrainingRun("gnmt-rl en-de", 24.6, 2.3e19, 96, "K80", _DAY, "Shazeer et al. 2017, table 3"),
    PublishedTrainingRun("gnmt-rl en-fr", 39.92, 1.4e20, 96, "K80", 6 * _DAY, "Shazeer et al. 2017, table 2"),
    PublishedTrainingRun("convs2s en-de", 25.16, 9.6e18, 1, "M40", 18.5 * _DAY, _GEHRING),
    PublishedTrainingRun("convs2s en-fr", 40.46, 1.5e20, 8, "M40", 37 * _DAY, _GEHRING),
    PublishedTrainingRun("moe en-de", 26.03, 2.0e19, 64, "K40", _DAY, "Shazeer et al. 2017, table 3"),
    PublishedTrainingRun("moe en-fr", 40.56, 1.2e20, 64, "K40", 6 * _DAY, "Shazeer et al. 2017, table 2"),
    PublishedTrainingRun("deep-att-posunk-ensemble en-fr", 40.4, 8.0e20, None, None, None, _TABLE_2),
    PublishedTrainingRun("gnmt-rl-ensemble en-de", 26.30, 1.8e20, None, None, None, _TABLE_2),
    PublishedTrainingRun("gnmt-rl-ensemble en-fr", 41.16, 1.1e21, None, None, None, _TABLE_2),
    PublishedTrainingRun("convs2s-ensemble en-de", 26.36, 7.7e19, None, None, None, _TABLE_2),
    PublishedTrainingRun("convs2s-ensemble en-fr", 41.29, 1.2e21, None, None, None, _TABLE_2),
    PublishedTrainingRun("transformer-base en-de", 27.3, 3.3e18, 8, "P100", 12, _TRANSFORMER),
    PublishedTrainingRun("transformer-base en-fr", 38.1, 3.3e18, 8, "P100", 12, _TRANSFORMER),
    PublishedTrainingRun("transformer-big en-de", 28.4, 2.3e19, 8, "P100", 3.5 * _DAY, _TRANSFORMER),
    PublishedTrainingRun("transformer-big en-fr", 41.8, 2.3e19, 8, "P100", 3.5 * _DAY, _TRANSFORMER),
    PublishedTrainingRun("gopher-280b", None, None, 4096, "TPU v3", 920, "Rae et al. 2021, table A27"),
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
