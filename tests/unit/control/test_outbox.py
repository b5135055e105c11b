"""Messages: gathered, counted, at a distance, and sent again until they arrive."""

from __future__ import annotations

from elastic_agent.control.decisions.outbox import LINES_MAX, RETRY_MOST_S, Digest, Outbox, SendPace

PACE = SendPace(gather_s=1, pause_s=60)


def sent(outbox: Outbox, now: float) -> Digest:
    """The message that is due now, delivered."""
    digest = outbox.take(now)
    assert digest is not None
    outbox.delivered(now)
    return digest


def test_a_thousand_events_of_one_cause_are_one_message_and_a_count() -> None:
    """The last text stands, and the number."""
    outbox = Outbox(PACE)
    for number in range(1000):
        outbox.add("disk", f"{number} left", number / 2000)
    assert sent(outbox, 1.0) == Digest((("999 left", 1000),), 1000)
    assert outbox.due_at() is None


def test_a_thousand_causes_are_one_message_of_bounded_length() -> None:
    """Twenty are named, the others counted."""
    outbox = Outbox(PACE)
    for number in range(1000):
        outbox.add(f"cause {number}", "text", 0.0)
    digest = sent(outbox, 1.0)
    assert (len(digest.lines), digest.total, digest.unlisted) == (LINES_MAX, 1000, 1000 - LINES_MAX)


def test_the_first_event_waits_for_others_only_as_long_as_said() -> None:
    """Nothing is due before the gathering ends, and at its end everything is."""
    outbox = Outbox(PACE)
    outbox.add("a", "a", 10.0)
    outbox.add("b", "b", 10.9)
    assert outbox.take(10.99) is None
    assert sent(outbox, 11.0).total == 2


def test_messages_keep_their_distance() -> None:
    """What comes after a message waits until its pause is over."""
    outbox = Outbox(PACE)
    outbox.add("a", "a", 0.0)
    sent(outbox, 1.0)
    outbox.add("b", "b", 2.0)
    assert outbox.due_at() == 61.0
    assert sent(outbox, 61.0).lines == (("b", 1),)


def test_after_a_quiet_time_an_event_does_not_wait_for_the_pause() -> None:
    """An alarm an hour after the last goes out after the gathering alone."""
    outbox = Outbox(PACE)
    outbox.add("a", "a", 0.0)
    sent(outbox, 1.0)
    outbox.add("b", "b", 3600.0)
    assert outbox.due_at() == 3601.0


def test_a_message_that_failed_is_sent_again_with_what_came_since() -> None:
    """Nothing is lost, the first event stays first, and counts add up."""
    outbox = Outbox(PACE)
    outbox.add("a", "old", 0.0)
    assert outbox.take(1.0)
    outbox.add("b", "b", 1.5)
    outbox.add("a", "new", 1.6)
    outbox.failed(2.0)
    assert sent(outbox, 3.0) == Digest((("new", 2), ("b", 1)), 3)


def test_pauses_between_tries_double_up_to_a_limit() -> None:
    """A dead mail server is asked ever more rarely, and at least every five minutes."""
    outbox, now, pauses = Outbox(PACE), 1.0, []
    outbox.add("a", "a", 0.0)
    for _ in range(12):
        assert outbox.take(now) is not None
        pauses.append(outbox.failed(now))
        now += pauses[-1]
    assert pauses[:4] == [1, 2, 4, 8]
    assert pauses[-1] == max(pauses) == RETRY_MOST_S


def test_a_server_may_ask_for_a_longer_pause_but_not_for_ever() -> None:
    """Retry-After counts, up to an hour."""
    outbox = Outbox(PACE)
    outbox.add("a", "a", 0.0)
    outbox.take(1.0)
    assert outbox.failed(1.0, retry_after_s=30) == 30
    outbox.take(31.0)
    assert outbox.failed(31.0, retry_after_s=1e9) == 3600


def test_only_one_message_is_under_way() -> None:
    """A second is not begun before the first has arrived or failed."""
    outbox = Outbox(SendPace(0, 0))
    outbox.add("a", "a", 0.0)
    assert outbox.take(0.0) is not None
    outbox.add("b", "b", 1.0)
    assert outbox.take(100.0) is None


def test_what_waits_and_what_is_under_way_is_the_backlog() -> None:
    """A program that ends can keep what did not arrive."""
    outbox = Outbox(SendPace(0, 0))
    outbox.add("a", "a", 0.0, 3)
    outbox.take(0.0)
    outbox.add("b", "b", 1.0)
    assert outbox.backlog() == [("a", "a", 3), ("b", "b", 1)]


def test_what_comes_while_the_last_message_is_under_way_is_due_once_that_has_arrived() -> None:
    """The job ends, and nothing later is worth the pause between two messages."""
    outbox = Outbox(SendPace(gather_s=10, pause_s=60))
    outbox.add("a", "a", 0.0)
    outbox.take(10.0)
    outbox.add("ended", "the job ended", 10.5)
    outbox.hurry(11.0)
    outbox.delivered(12.0)
    assert outbox.due_at() == 11.0
