"""What holds for every test."""

from hypothesis import HealthCheck, settings

# A machine that runs tests may stand still for seconds: what is slow is not wrong.
settings.register_profile("paceline", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("paceline")
