"""What is measured about the machine."""

from benchmarks import machine


def test_memory_is_read_at_some_speed():
    rates = machine.read_bandwidth(threads=2, megabytes=64, repeats=2)
    assert len(rates) == 2 and min(rates) > 0.5


def test_a_machine_is_described():
    described = machine.describe()
    assert described["cpu"] and described["cores"] >= 1


def test_settling_ends_at_its_limit():
    clock = machine.Stopwatch()
    machine.settle(limit=0.1, busy=-1.0)
    assert clock.seconds() < 2
