"""A page for each component with its options, from `trainer list`, `trainer describe` and `trainer schema`."""
import json
import re
import subprocess

# The kinds of components in the order of the navigation.
KINDS = {
    "model": "Models",
    "data": "Data modules",
    "image_transform": "Image transforms",
    "optimizer": "Optimizers",
    "lr_scheduler": "Schedules",
    "metric": "Metrics",
    "callback": "Callbacks",
    "logger": "Loggers",
    "profiler": "Profilers",
    "strategy": "Strategies",
    "precision": "Precisions",
    "checkpoint_writer": "Checkpoint writers",
    "key_map": "Key maps of weights",
}


def call(trainer, *arguments):
    return subprocess.run([trainer, *arguments], check=True, capture_output=True, text=True).stdout


def listed(trainer):
    """Names and descriptions of all components by kind."""
    kinds, kind = {}, None
    for line in call(trainer, "list").split("\n"):
        if line.endswith(":") and not line.startswith(" "):
            kind = kinds.setdefault(line[:-1], {})
        elif line.startswith("  "):
            name, _, text = line.strip().partition("  ")
            kind[name] = text.strip()
    return kinds


def cell(text):
    return text.replace("|", "\\|").replace("<", "&lt;")


def breakable(name):
    """The name of an option, which a narrow screen may break after an underscore."""
    return "<code>" + name.replace("_", "_<wbr>") + "</code>"


HEADER = "| option | type | default | |\n|---|---|---|---|\n"


def table(description):
    """What `trainer describe` prints below its title: its tables as Markdown, and its lines of text."""
    text, rows, inside = [], [], False
    for line in description.split("\n")[1:] + [""]:
        if re.match(r"  option +type +default +meaning$", line):
            inside = True
        elif not line.strip():
            if rows:
                text.append(HEADER + "\n".join(rows))
                rows, inside = [], False
        elif inside:
            name, kind, default, meaning = re.split(r" {2,}", line.strip(), maxsplit=3)
            rows.append(f"| {breakable(name)} | {cell(kind)} | {'*required*' if default == 'required' else f'`{cell(default)}`'} | {cell(meaning)} |")
        else:
            text.append(cell(line.strip()).replace("data.NAME", "`data.NAME`"))
    return "\n\n".join(text) + "\n"


def type_of(schema):
    """A short text for the type of a value in the schema."""
    if "$ref" in schema:
        return schema["$ref"].split("/")[-1]
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return " or ".join(dict.fromkeys(type_of(one) for one in schema[key]))
    if "enum" in schema:
        return "one of " + ", ".join(f"`{one}`" for one in schema["enum"])
    if schema.get("type") == "array":
        return "list of " + type_of(schema.get("items", {}))
    kind = schema.get("type", "any")
    return " or ".join(kind) if isinstance(kind, list) else kind


def nested(options, heading):
    """Tables of the options that are maps or lists of maps."""
    text = ""
    for name, schema in options.items():
        inner = schema.get("items", schema) if isinstance(schema.get("items", {}), dict) else schema
        properties = inner.get("properties")
        if not properties or "class_path" in properties:
            continue
        which = "An element" if inner is not schema else "The value"
        text += f"\n{heading} `{name}`\n\n{which} has these keys:\n\n| key | type | default | |\n|---|---|---|---|\n"
        for key, value in properties.items():
            default = f"`{cell(json.dumps(value['default']))}`" if "default" in value else ""
            text += f"| {breakable(key)} | {cell(type_of(value))} | {default} | {cell(value.get('description', ''))} |\n"
    return text


def file_name(name):
    return re.sub(r"[^\w-]", "_", name)


def write(trainer, write_page):
    """Writes the pages by `write_page(path, text)`; returns lines of the navigation."""
    schema = json.loads(call(trainer, "schema"))
    navigation = ["- reference/index.md"]
    overview = "# Options\n\nThese pages have the options of each component, as `trainer describe NAME` shows them. [The config](../config.md) says how a config uses them.\n\n"
    overview += "- [The top keys of a config](config.md)\n- [The Trainer](trainer.md)\n"
    for what, title, properties in (("config", "The top keys of a config", schema["properties"]),
                                    ("trainer", "The Trainer", schema["properties"]["trainer"]["properties"])):
        parts = {key: value for key, value in properties.items() if key != "trainer"}
        write_page(f"reference/{what}.md", f"# {title}\n\n{table(call(trainer, 'describe', what))}" + nested(parts, "##"))
        navigation.append(f"- reference/{what}.md")
    components = listed(trainer)
    unknown = components.keys() - KINDS.keys()
    if unknown:
        raise SystemExit(f"reference_pages.py: KINDS lacks {', '.join(sorted(unknown))}, which `trainer list` has")
    for kind, title in KINDS.items():
        by_name = {}
        for variant in schema["$defs"].get(kind, {}).get("oneOf", []):
            if "properties" in variant:
                by_name[variant["properties"]["class_path"]["const"]] = variant["properties"].get("init_args", {}).get("properties", {})
        index = f"# {title}\n\n| | |\n|---|---|\n"
        navigation += [f"- {title}:", f"    - reference/{kind}/index.md"]
        overview += f"- [{title}]({kind}/index.md)\n"
        for name, text in components.get(kind, {}).items():
            path = f"{kind}/{file_name(name)}.md"
            page = f"# {name}\n\n{table(call(trainer, 'describe', name))}"
            write_page(f"reference/{path}", page + nested(by_name.get(name, {}), "##"))
            navigation.append(f'    - "{name}": reference/{path}')
            index += f"| [`{name}`]({file_name(name)}.md) | {cell(text)} |\n"
        write_page(f"reference/{kind}/index.md", index)
    write_page("reference/index.md", overview)
    return navigation
