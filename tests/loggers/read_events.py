#!/usr/bin/env python3
"""Prints what TensorBoard reads from the event files of a folder, as JSON.

    read_events.py FOLDER [LISTS]   LISTS: lists of numbers as JSON, of which torch.utils.tensorboard makes
                                    histograms too; exits 77 if this Python has no tensorboard
"""
import base64
import json
import math
import sys
import tempfile

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


def served_tags(events, plugin):
    return [tag for tag in events.Tags()["tensors"] if events.SummaryMetadata(tag).plugin_data.plugin_name == plugin]


def served(events):
    """As TensorBoard's server reads them: as tensors."""
    array = lambda event: tensor_util.make_ndarray(event.tensor_proto)
    scalars = {tag: [[e.step, number(array(e).item())] for e in events.Tensors(tag)] for tag in served_tags(events, "scalars")}
    texts = {tag: [[e.step, [text.decode() for text in array(e).flatten()]] for e in events.Tensors(tag)] for tag in served_tags(events, "text")}
    # An image is its width, its height and the file.
    images = {tag: [[e.step, int(array(e)[0]), int(array(e)[1])] for e in events.Tensors(tag)] for tag in served_tags(events, "images")}
    histograms = {tag: [[e.step, list(array(e).shape)[1]] for e in events.Tensors(tag)] for tag in served_tags(events, "histograms")}
    return scalars, texts, images, histograms


def histogram_fields(value):
    return {
        "min": value.min,
        "max": value.max,
        "num": value.num,
        "sum": value.sum,
        "sum_squares": value.sum_squares,
        "limits": list(value.bucket_limit),
        "counts": list(value.bucket),
    }


def histograms_of_torch(lists):
    import numpy
    from torch.utils.tensorboard import SummaryWriter
    from torch.utils.tensorboard.summary import make_histogram

    with tempfile.TemporaryDirectory() as folder:
        writer = SummaryWriter(folder)
        bins = writer.default_bins
        writer.close()
    return [histogram_fields(make_histogram(numpy.array(values, dtype=float), bins)) for values in lists]


def main(folder, lists=None):
    events = EventAccumulator(folder, size_guidance={"scalars": 0, "images": 0, "histograms": 0})
    events.Reload()
    scalars = {tag: [[e.step, number(e.value)] for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
    out = {"scalars": scalars, "hparams": {}, "types": {}, "metrics": [], "status": None}
    server = ServerEventAccumulator(folder, size_guidance={}, tensor_size_guidance=dict.fromkeys(("scalars", "text", "images", "histograms"), 0))
    server.Reload()
    out["served"], out["texts"], out["served_images"], out["served_histograms"] = served(server)
    out["images"] = {
        tag: [[e.step, e.width, e.height, base64.b16encode(e.encoded_image_string).decode()] for e in events.Images(tag)] for tag in events.Tags()["images"]
    }
    out["histograms"] = {tag: [[e.step, histogram_fields(e.histogram_value)] for e in events.Histograms(tag)] for tag in events.Tags()["histograms"]}
    if lists is not None:
        out["torch"] = histograms_of_torch(json.loads(lists))
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


main(*sys.argv[1:])
