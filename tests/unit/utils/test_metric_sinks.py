# Copyright (c) 2026 Relax Authors. All Rights Reserved.
import subprocess
import sys
import threading
import time

from relax.utils.metric_collector import Collector
from relax.utils.metric_sinks import BackgroundSink, TensorBoardSink
from relax.utils.metrics import MemorySink, Metrics


def test_tensorboard_reads_back_what_was_logged(tmp_path):
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    sink = TensorBoardSink(tmp_path)
    sink.write(3, {"train/lr": 0.5, "train/grad_norm": 2.0})
    sink.close()
    (file,) = tmp_path.glob("events.out.tfevents.*")
    events = [event for event in EventFileLoader(str(file)).Load() if event.summary.value]
    values = {value.tag: value.tensor.float_val[0] for event in events for value in event.summary.value}
    assert [event.step for event in events] == [3]
    assert values == {"train/lr": 0.5, "train/grad_norm": 2.0}


def test_tensorboard_needs_no_torch(tmp_path):
    code = (
        "import sys; from pathlib import Path; from relax.utils.metric_sinks import TensorBoardSink\n"
        "sink = TensorBoardSink(Path(sys.argv[1])); sink.write(0, {'train/lr': 1.0}); sink.close()\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)


class StuckSink:
    """Blocks in `write` until `release` is set."""

    def __init__(self) -> None:
        self.entered, self.release = threading.Event(), threading.Event()
        self.steps: list[int] = []

    def write(self, step, values):
        self.entered.set()
        self.release.wait(30)
        self.steps.append(step)

    def close(self):
        pass


def test_a_stuck_sink_loses_rows_and_says_how_many():
    """U7: a tracker that does not answer costs rows of its own, never a moment of training."""
    stuck = StuckSink()
    sink = BackgroundSink(stuck, name="stuck", capacity=2)
    sink.write(0, {})
    assert stuck.entered.wait(30)
    for step in range(1, 6):  # two are queued, three are lost; none of the calls waits
        sink.write(step, {})
    assert sink.dropped == 3
    stuck.release.set()
    sink.close()
    assert stuck.steps == [0, 1, 2]


def test_U7_a_tracker_that_takes_a_second_per_row_does_not_lengthen_a_step():
    class Slow(MemorySink):
        def write(self, step, values):
            time.sleep(1.0)
            super().write(step, values)

    slow = Slow()
    sink = BackgroundSink(slow, name="slow", close_timeout_s=0.1)
    metrics, collector, started = Metrics(), Collector([sink]), time.monotonic()
    for step in range(50):
        metrics.gauge("train/lr", 1.0)
        collector.write(step, metrics.take())
    assert time.monotonic() - started < 0.5  # fifty rows; one alone would have taken a second
    assert sink.dropped == 0
    sink.close()


def test_a_failing_sink_is_given_up_and_training_goes_on():
    class Broken(MemorySink):
        def write(self, step, values):
            raise OSError("disk full")

    sink = BackgroundSink(Broken(), name="broken")
    sink.write(0, {})
    sink.close()
    sink.write(1, {})
    assert isinstance(sink.error, OSError)
    assert sink.dropped == 2  # the row that failed, and the one after it


def test_closing_writes_what_is_queued():
    memory = MemorySink()
    sink = BackgroundSink(memory, name="memory")
    for step in range(50):
        sink.write(step, {"train/lr": float(step)})
    sink.close()
    assert memory.series("train/lr") == [float(step) for step in range(50)]
