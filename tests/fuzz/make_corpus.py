#!/usr/bin/env python3
"""Writes the inputs that fuzzing begins with into tests/fuzz/corpus, from the fixtures and presets of the repository."""
import gzip
import json
import os
import struct
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
FIXTURES = os.path.join(ROOT, "tests", "checkpoint", "fixtures")


def put(target, name, data):
    folder = os.path.join(HERE, "corpus", target)
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, name), "wb") as file:
        file.write(data)


def read(*parts):
    with open(os.path.join(*parts), "rb") as file:
        return file.read()


def safetensors_header():
    def header(name, json, size):
        put("safetensors_header", name, struct.pack("<H", size) + json)

    for name in ("model", "optimizer", "state"):
        data = read(FIXTURES, "v1", "epoch=3-step=1000.ckpt", name + ".safetensors")
        (length,) = struct.unpack("<Q", data[:8])
        header(name, data[8:8 + length], len(data) - 8 - length)
    header("empty", b"{}", 0)
    header("metadata", b'{"__metadata__":{"format":"pt","alias:b":"a"},"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}', 4)
    header("zero_size", b'{"a":{"dtype":"BF16","shape":[0,4],"data_offsets":[0,0]},"b":{"dtype":"BOOL","shape":[2],"data_offsets":[0,2]}}  ', 2)
    header("overflow", b'{"a":{"dtype":"F64","shape":[4294967296,4294967296],"data_offsets":[0,0]}}', 0)
    header("hole", b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}}', 3)
    header("escapes", b'{"\\u00fc\\n\\ud83d\\ude00":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', 1)


def pytorch():
    folder = os.path.join(FIXTURES, "pytorch")
    for name in ("network.pt", "lightning.ckpt", "plain.pt", "views.pt", "whole_module.pt"):
        put("pytorch_zip", name, read(folder, name))
        with zipfile.ZipFile(os.path.join(folder, name)) as archive:
            pickle = next(entry for entry in archive.namelist() if entry.endswith("/data.pkl"))
            put("pytorch_pickle", name + ".pkl", archive.read(pickle))
    put("pytorch_pickle", "system", b"\x80\x02cposix\nsystem\nX\x04\x00\x00\x00true\x85R.")
    put("pytorch_pickle", "itself", b"\x80\x02]q\x00h\x00a.")
    put("pytorch_pickle", "long", b"\x80\x02}X\x01\x00\x00\x00a\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x00\x01s.")


def tables():
    rows = b"id,colour,price\n1,red,2.5\n2,\"a \"\"b\"\",\n\",\n\n3,NA,-1e3\n"
    for name, data in (("plain", rows), ("crlf", rows.replace(b"\n", b"\r\n")), ("mark", b"\xef\xbb\xbf" + rows[:-1]), ("ragged", rows + b"1,2\n"),
                       ("open_quote", rows + b'4,"x'), ("stray_quote", rows + b'4,x"y",\n'), ("after_quote", rows + b'4,"x"y,\n'),
                       ("nul", rows + b"4,\0,\n"), ("return", rows + b"4,\r,\n"), ("one_column", b"when\n2024-02-29T10:00:00.5+01:00\n\n")):
        put("csv_table", name, data)
    folder = os.path.join(ROOT, "tests", "tables", "fixtures")
    for name in ("fortran", "version2", "scalar", "nothing", "big_endian", "complex", "fields"):
        put("npy_header", name, read(folder, name + ".npy"))


def idx():
    images = struct.pack(">BBBBIII", 0, 0, 8, 3, 2, 3, 4) + bytes(range(24))
    labels = struct.pack(">BBBBI", 0, 0, 8, 1, 5) + bytes(5)
    for name, dims, data in (("images", 3, images), ("labels", 1, labels), ("too_long", 1, labels + b"x"), ("too_short", 3, images[:-1]),
                             ("wrong_type", 1, b"\0\0\x0d\x01" + labels[4:]), ("large", 3, images[:4] + b"\xff" * 12),
                             ("gzip", 3, gzip.compress(images, mtime=0)), ("gzip_cut", 1, gzip.compress(labels, mtime=0)[:-6]),
                             ("gzip_zeros", 1, gzip.compress(struct.pack(">BBBBI", 0, 0, 8, 1, 900_000) + bytes(900_000), mtime=0))):
        put("idx", name, bytes([dims]) + data)


def images():
    folder = os.path.join(ROOT, "tests", "images", "fixtures")
    # The first byte has the options: 1 grey, 2 without orientation, 4 scaled.
    for name, options in (("colour.jpg", 0), ("progressive.jpg", 4), ("restart.jpg", 1), ("ycck.jpg", 0), ("turned6.jpg", 4), ("palette.png", 1),
                          ("interlaced.png", 0), ("grey16.png", 0), ("turned6.png", 2), ("grey2.png", 0), ("bomb.png", 0), ("lossy.webp", 0),
                          ("lossless.webp", 1), ("turned8.webp", 0)):
        put("images", name, bytes([options]) + read(folder, name))


def config():
    folder = os.path.join(ROOT, "configs")
    for name in sorted(os.listdir(folder)):
        if name.endswith(".yaml"):
            put("config", name, read(folder, name))
    for name, text in {
        "options": "number: 3\nrate: 1e-3\nflag: true\nname: 'x y'\nmaybe: ~\nlist: [1, 2]\nmap: {a: 1.0}\nlength: 10ep\nlimit: 0.5\nthreads: auto\n",
        "references": "a: 1\nb: ${a}\nc: {d: '${b} and ${env:HOME}', e: $${x}}\n",
        "cycle": "a: ${b}\nb: ${a}\n",
        "aliases": "a: &x [1, 2]\nb: [*x, *x]\nc: &y {k: *x}\nd: *y\n",
        "itself": "a: &a [*a]\n",
        "merge_key": "a: &a {x: 1}\nb: {<<: *a}\n",
        "texts": "a: |\n  two\n  lines\nb: >-\n  folded\n  text\nc: \"\\u00fc\\t\"\nd: 'it''s'\ne: 010\nf: 0x1F\ng: .nan\nh: yes\n",
        "documents": "a: 1\n---\nb: 2\n",
        "nested": "[" * 70 + "]" * 70,
    }.items():
        put("config", name, text.encode())


def run_log():
    table = b"step,epoch,\"a,\"\"b\",loss\n5,0,,2.5\n10,0,nan,-inf\n15,1,1e-05,\n"
    lines = b'{"step":5,"epoch":0,"loss":2.5}\n{"step":10,"a\\u00e9\\ud83d\\ude00\\n":"NaN","b":null}\n{"loss":1e3,"step":11}\n'
    for name, kind, data in (("table", b"\0", table), ("table_cut", b"\0", table[:-4]), ("crlf", b"\0", table.replace(b"\n", b"\r\n")),
                             ("fields", b"\0", table + b"20,1,1\n"), ("header", b"\0", b"step,epoch,loss"), ("lines", b"\1", lines),
                             ("lines_cut", b"\1", lines[:-5]), ("nested", b"\1", b'{"step":1,"a":[1]}\n'), ("surrogate", b"\1", b'{"step":1,"\\ud83d":1}\n')):
        put("run_log", name, kind + data)


def sweep():
    grid = "method: grid\nmetric: m\nspace: {a.lr: [0.1, 1], b: [[1, 2], {class_path: x}]}\n"
    put("sweep", "grid", grid.encode())
    put("sweep", "random", b"method: random\ntrials: 4\nseed: 3\nmetric: m\nmode: max\nvalue: last\nspace:\n  a: {min: 1e-4, max: 0.1, scale: log}\n  b: {min: 1, max: 9, integer: true}\n  c: {min: 0, max: 1, step: 0.25}\n")
    put("sweep", "seeds", grid.encode() + b"seeds: [3, 4]\nhalving: {factor: 3, min_steps: 5, promotion: async}\n")
    put("sweep", "unknown_key", grid.encode() + b"seed_s: 3\n")
    record = {"status": "paused", "target": 1, "rungs": [0.5, None], "value": 0.5, "epochs": 1, "steps": 4, "seconds": 0.1, "reason": "", "run": "trial_0000/fulgur_logs/version_0"}
    pending = {"status": "pending", "target": 0, "rungs": [], "value": None, "epochs": 0, "steps": 0, "seconds": None, "reason": "x", "run": ""}
    state = {"version": 1, "sweep": grid + "halving: {min_epochs: 1}\n", "config": "trainer: {max_epochs: 9}\n", "length": 9, "trials": [record, record, pending, pending]}
    put("sweep", "state", json.dumps(state, indent=2).encode())


def tokenizer():
    byte_level = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    bpe = {
        "version": "1.0",
        "added_tokens": [{"id": 9, "content": "<s>", "lstrip": True, "rstrip": True, "special": True}, {"id": 10, "content": "ba"}],
        "pre_tokenizer": byte_level,
        "post_processor": {"type": "RobertaProcessing", "sep": ["<s>", 9], "cls": ["<s>", 9]},
        "decoder": byte_level,
        "model": {"type": "BPE", "unk_token": "?", "fuse_unk": True, "merges": ["a b", ["\u0120", "ab"]],
                  "vocab": {"?": 0, "a": 1, "b": 2, "ab": 3, "\u0120": 4, "\u0120ab": 5}},
    }
    pieces = {
        "added_tokens": [{"id": 5, "content": "[x]", "special": True}, {"id": 6, "content": "\u00c4B", "normalized": True}],
        "normalizer": {"type": "BertNormalizer", "strip_accents": None, "lowercase": True},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "[x]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                           "pair": [], "special_tokens": {"[x]": {"id": "[x]", "ids": [5], "tokens": ["[x]"]}}},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {"unk_token": "?", "continuing_subword_prefix": "##", "max_input_chars_per_word": 4, "vocab": {"?": 0, "a": 1, "##b": 2, "##": 3, ".": 4}},
    }
    put("tokenizer", "bpe", json.dumps(bpe).encode())
    put("tokenizer", "word_piece", json.dumps(pieces).encode())
    bpe["model"]["ignore_merges"] = True
    byte_level["use_regex"] = byte_level["add_prefix_space"] = False
    put("tokenizer", "whole_words", json.dumps(bpe).encode())
    pieces["model"]["vocab"]["a"] = 1 << 23
    put("tokenizer", "large_id", json.dumps(pieces).encode())
    put("tokenizer", "deep", b'{"truncation":' + b"[" * 4000 + b"]" * 4000 + b"}")
    put("tokenizer", "unknown", b'{"model":{"type":"Unigram","vocab":[["a",-1.5]]}}')


def shard_index():
    put("shard_index", "two", b'{"metadata":{"total_size":8},"weight_map":{"a.weight":"model-00001-of-00002.safetensors","b":"model-00002-of-00002.safetensors"}}')
    put("shard_index", "empty", b'{"weight_map":{}}')
    put("shard_index", "other_folder", b'{"weight_map":{"a":"../a.safetensors"}}')
    put("shard_index", "number", b'{"weight_map":{"a":1}}')
    put("shard_index", "list", b'[{"weight_map":{"a":"a.safetensors"}}]')
    put("shard_index", "nul", b'{"weight_map":{"a":"a\\u0000.safetensors"}}')
    put("shard_index", "twice", b'{"weight_map":{"a":"a.bin","a":"b.bin"},"weight_map":{"c":"c.bin"}}')


if __name__ == "__main__":
    safetensors_header()
    pytorch()
    idx()
    tables()
    images()
    config()
    run_log()
    shard_index()
    sweep()
    tokenizer()
