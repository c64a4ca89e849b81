from fedmvc_client.throttle import Throttle


def test_so_many_pass_at_once_and_then_so_many_a_period():
    now = [0.0]
    throttle = Throttle(most=2, period_s=10.0, clock=lambda: now[0])

    at_once = [throttle.admit() for _ in range(4)]
    now[0] = 4.9
    early = throttle.admit()
    now[0] = 5.0
    later = [throttle.admit(), throttle.admit()]
    now[0] = 1000.0
    rested = [throttle.admit() for _ in range(3)]

    assert at_once == [0, 0, None, None]
    assert early is None
    assert later == [3, None]  # three were held back since
    assert rested == [1, 0, None]  # patience is not saved up beyond `most`
