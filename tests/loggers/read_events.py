#!/usr/bin/env python3
"""Prints what TensorBoard reads from the event files of a folder, as JSON.

    read_events.py FOLDER      exits 77 where this Python has no tensorboard
"""
import json
import math
import sys

try:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator as ServerEventAccumulator
    from tensorboard.plugins.hparams import api_pb2, metadata
    from tensorboard.util import tensor_util
except ImportError as error:
    print(error, file=sys.stderr)
    sys.exit(77)


def number(value):
    """JSON has no number for what is not finite."""
    return value if math.isfinite(value) else str(value)


def served_scalars(folder):
    """As TensorBoard's server reads them: as tensors."""
    events = ServerEventAccumulator(folder, size_guidance={}, tensor_size_guidance={"scalars": 0})
    events.Reload()
    tags = [tag for tag in events.Tags()["tensors"] if events.SummaryMetadata(tag).plugin_data.plugin_name == "scalars"]
    return {tag: [[e.step, number(tensor_util.make_ndarray(e.tensor_proto).item())] for e in events.Tensors(tag)] for tag in tags}


def main(folder):
    events = EventAccumulator(folder, size_guidance={"scalars": 0})
    events.Reload()
    scalars = {tag: [[e.step, number(e.value)] for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
    out = {"scalars": scalars, "served": served_scalars(folder), "hparams": {}, "types": {}, "metrics": [], "status": None}
    contents = {}
    if metadata.PLUGIN_NAME in {m.plugin_data.plugin_name for m in events.summary_metadata.values()}:
        contents = events.PluginTagToContent(metadata.PLUGIN_NAME)
    if metadata.SESSION_START_INFO_TAG in contents:
        start = metadata.parse_session_start_info_plugin_data(contents[metadata.SESSION_START_INFO_TAG])
        for name, value in start.hparams.items():
            out["hparams"][name] = getattr(value, value.WhichOneof("kind"))
    if metadata.EXPERIMENT_TAG in contents:
        experiment = metadata.parse_experiment_plugin_data(contents[metadata.EXPERIMENT_TAG])
        out["types"] = {info.name: api_pb2.DataType.Name(info.type) for info in experiment.hparam_infos}
        out["metrics"] = [info.name.tag for info in experiment.metric_infos]
    if metadata.SESSION_END_INFO_TAG in contents:
        end = metadata.parse_session_end_info_plugin_data(contents[metadata.SESSION_END_INFO_TAG])
        out["status"] = api_pb2.Status.Name(end.status)
    json.dump(out, sys.stdout, allow_nan=False)


main(sys.argv[1])
