"""When a worker counts as hung, and when not; no clock but the test's."""

from talkies.engine.service.liveness import HANG_FACTOR, PUMP_GAP_S, Liveness, Starts


def look(watch, now, waited_s=0.0):
    return watch.silent_s(now, waited_s=waited_s)


def test_a_busy_and_silent_worker_is_hung_after_the_timeout():
    watch = Liveness(100.0, 0.0)
    watch.heard(0.0, busy=True)
    assert look(watch, 99.0, 99.0) is None
    assert look(watch, 101.0, 2.0) == 101.0


def test_an_idle_worker_or_one_that_fetches_its_model_may_be_silent_for_ever():
    watch = Liveness(1.0, 0.0)
    assert watch.left_s(1e6) is None
    assert look(watch, 1e6, 1e6) is None
    watch.heard(1e6, busy=True)
    watch.heard(1e6, busy=False)
    assert look(watch, 2e6, 1e6) is None


def test_a_loading_worker_has_a_patience_of_its_own():
    watch = Liveness(10.0, 0.0, start_timeout_s=600.0)
    watch.loads(50.0, True)
    watch.heard(100.0)  # the next component
    assert look(watch, 699.0, 699.0) is None
    assert look(watch, 701.0, 2.0) == 601.0
    watch.loads(702.0, False)
    assert look(watch, 1e6, 1e6) is None
    watch.heard(1e6, busy=True)
    assert watch.patience_s == 10.0


def test_any_word_is_a_sign_of_life():
    watch = Liveness(10.0, 0.0)
    watch.heard(0.0, busy=True)
    for now in range(1, 100):
        watch.heard(float(now))
        assert look(watch, float(now), 1.0) is None


def test_a_slow_unit_is_given_many_times_its_predicted_length():
    watch = Liveness(10.0, 0.0)
    watch.heard(0.0, busy=True, expected_s=60.0)
    assert watch.patience_s == HANG_FACTOR * 60.0
    for now in range(0, 1200, 4):
        assert look(watch, float(now), 4.0) is None
    assert look(watch, 1201.0, 5.0) == 1201.0
    watch.heard(1202.0, expected_s=0.0)
    assert watch.patience_s == 10.0


def test_a_machine_that_was_away_as_a_whole_is_not_a_hung_worker():
    """Both processes were stopped, or the host slept: the worker gets its full patience again."""
    watch = Liveness(10.0, 0.0)
    watch.heard(0.0, busy=True)
    assert look(watch, 4.0, 4.0) is None
    assert look(watch, 4.0 + 9.0 + PUMP_GAP_S, 6.0) is None
    assert look(watch, 4.0 + 9.0 + PUMP_GAP_S + 9.0, 9.0) is None
    assert look(watch, 4.0 + 9.0 + PUMP_GAP_S + 10.0, 1.0) is not None


def test_starts_come_later_and_later_until_one_works():
    starts = Starts()
    delays = []
    for _ in range(12):
        failed = starts.ended(100.0, was_ready=False, age_s=1.0)
        delays.append(starts.at - 100.0)
    assert failed == 12
    assert delays == sorted(delays)
    assert delays[-1] == 30.0
    assert starts.ended(100.0, was_ready=True, age_s=61.0) == 0
    assert starts.at - 100.0 == delays[0]
