# Copyright (c) 2026 Relax Authors. All Rights Reserved.
import io

from relax.utils.console import Progress, duration, step_text


def test_durations_read_as_clock_time():
    assert [duration(s) for s in (0.4, 75, 3675)] == ["0:00", "1:15", "1:01:15"]


def test_a_step_shows_reward_speed_age_and_who_waited():
    text = step_text(
        11,
        40,
        {
            "rollout/reward/mean": 0.68,
            "rollout/staleness_steps/max": 1.0,
            "perf/wait_s/rollout": 0.04,
            "perf/wait_s/actor": 0.12,
        },
        812.4,
    )
    assert text == "step 12/40  reward 0.680  812 tokens/s  staleness 1  waits actor 0.1s rollout 0.0s"


def test_what_was_not_measured_is_not_printed():
    assert step_text(0, 2, {}) == "step 1/2"


def test_the_estimate_counts_only_steps_of_this_run():
    # a resume at step 10 of 40: two steps took 4 s, 28 are left, so 56 s
    times = iter([0.0, 4.0])
    out = io.StringIO()
    progress = Progress(40, now=lambda: next(times), start=10, stream=out)
    progress.step(11, {})
    assert out.getvalue() == "step 12/40  ETA 0:56\n"


def test_the_speed_is_that_of_the_whole_run():
    # 300 and 0 tokens reported in steps that end after 2 s and 4 s: 150, then 75 a second
    times = iter([0.0, 2.0, 4.0])
    out = io.StringIO()
    progress = Progress(2, now=lambda: next(times), stream=out)
    progress.step(0, {"rollout/sampled_tokens": 300.0})
    progress.step(1, {"rollout/sampled_tokens": 0.0})
    assert [line.split("  ")[1] for line in out.getvalue().splitlines()] == ["150 tokens/s", "75 tokens/s"]


def test_no_control_characters_off_a_terminal():
    out = io.StringIO()
    progress = Progress(2, now=lambda: 0.0, stream=out)
    progress.status("waiting for 3 groups")
    progress.step(0, {})
    assert "\r" not in out.getvalue()


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_the_status_line_is_wiped_before_a_step():
    out = Terminal()
    progress = Progress(2, now=lambda: 0.0, stream=out)
    progress.status("busy")
    progress.step(0, {})
    assert out.getvalue() == "\rbusy\r    \rstep 1/2  ETA 0:00\n"
