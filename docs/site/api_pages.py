"""A page for each public header with its classes and functions, from Doxygen's XML."""
import html
import re
import xml.etree.ElementTree as ElementTree

DOCUMENTED = ("class", "struct", "union")
HIDDEN = ("private", "package")


def prose(element, links):
    """The text of a description as Markdown."""
    if element is None:
        return ""

    def escaped(text):
        return re.sub(r"([\\*\[\]<`|]|(?<!\w)_|_(?!\w))", r"\\\1", text or "")

    def inline(node):
        out = escaped(node.text)
        for child in node:
            inner = "".join(child.itertext())
            if child.tag == "computeroutput":
                out += f"`{inner}`"
            elif child.tag == "ref":
                target = links.get(child.get("refid"))
                out += f"[{escaped(inner)}]({target})" if target else escaped(inner)
            elif child.tag == "ulink":
                out += f"[{escaped(inner)}]({child.get('url')})"
            elif child.tag in ("emphasis", "bold"):
                out += f"*{inline(child)}*"
            elif child.tag == "linebreak":
                out += "  \n"
            elif child.tag in BLOCKS:
                out += "\n\n" + BLOCKS[child.tag](child) + "\n\n"
            else:
                out += inline(child)
            out += escaped(child.tail)
        return out

    def listed(node):
        mark = "1." if node.tag == "orderedlist" else "-"
        return "\n".join(f"{mark} " + re.sub(r"\n+", "\n  ", inline(item).strip()) for item in node.findall("listitem"))

    def table(node):
        rows = [[inline(entry).strip().replace("\n", " ") for entry in row.findall("entry")] for row in node.findall("row")]
        lines = ["| " + " | ".join(row) + " |" for row in rows]
        return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]]) if rows else ""

    def code(node):
        return "```cpp\n" + "".join(node.itertext()).strip("\n") + "\n```"

    BLOCKS = {
        "para": lambda node: inline(node).strip(),
        "itemizedlist": listed,
        "orderedlist": listed,
        "table": table,
        "programlisting": lambda node: "```cpp\n" + "\n".join("".join(with_spaces(line)) for line in node.findall("codeline")) + "\n```",
        "verbatim": code,
        "parameterlist": lambda node: "\n".join(
            f"- `{''.join(item.find('parameternamelist').itertext()).strip()}`: {inline(item.find('parameterdescription')).strip()}"
            for item in node.findall("parameteritem")),
        "simplesect": lambda node: inline(node).strip(),
    }

    def with_spaces(node):
        yield " " if node.tag == "sp" else node.text or ""
        for child in node:
            yield from with_spaces(child)
            yield child.tail or ""

    return re.sub(r"\n{3,}", "\n\n", inline(element)).strip()


def plain(element):
    text = "" if element is None else re.sub(r"\s+", " ", "".join(element.itertext())).strip()
    for wide, narrow in (("< ", "<"), (" >", ">"), (" &", "&"), (" *", "*"), ("FULGUR_API ", "")):
        text = text.replace(wide, narrow)
    return text


def template_of(element):
    parameters = element.find("templateparamlist")
    if parameters is None:
        return ""
    return "template <" + ", ".join(" ".join(filter(None, (plain(one.find("type")), one.findtext("declname")))) for one in parameters) + ">\n"


def declaration(member):
    """A member as C++ declares it."""
    kind, name = member.get("kind"), member.findtext("name")
    text = template_of(member)
    if kind == "define":
        parameters = [one.findtext("defname") for one in member.findall("param")]
        return f"#define {name}" + (f"({', '.join(parameters)})" if any(parameters) else "")
    if kind == "enum":
        values = ", ".join(value.findtext("name") for value in member.findall("enumvalue"))
        return f"enum {'class ' if member.get('strong') == 'yes' else ''}{name} {{ {values} }};"
    if kind == "typedef":
        return text + f"using {name} = {plain(member.find('type'))};"
    if kind == "variable":
        initial = plain(member.find("initializer"))
        initial = "" if len(initial) > 100 else initial if initial.startswith(("{", "=")) or not initial else "= " + initial
        return text + f"{'static ' if member.get('static') == 'yes' else ''}{plain(member.find('type'))} {name}{member.findtext('argsstring') or ''} {initial}".rstrip() + ";"
    arguments = re.sub(r"\s+", " ", member.findtext("argsstring") or "").replace("< ", "<").replace(" >", ">")
    # As the project writes them: `T& name`, `= 0`.
    arguments = re.sub(r" ([&*]+(?:\.\.\.)?) ?(?=\w)", r"\1 ", arguments)
    arguments = re.sub(r"\)( const)?( noexcept)?( override)?=(0|default|delete)$", r")\1\2\3 = \4", arguments)
    arguments = re.sub(r"(?<=[\w>])=(?=[\w{\"])", " = ", arguments)
    virtual = "virtual " if member.get("virt") in ("virtual", "pure-virtual") and "override" not in arguments else ""
    static = "static " if member.get("static") == "yes" else ""
    explicit = "explicit " if member.get("explicit") == "yes" else ""
    return text + (f"{static}{virtual}{explicit}{plain(member.find('type'))} {name}{arguments}".strip()).replace("  ", " ") + ";"


def described(member, links):
    brief, rest = (prose(member.find(tag), links) for tag in ("briefdescription", "detaileddescription"))
    # Doxygen divides a paragraph after its first sentence.
    return (brief + ("\n\n" if rest.startswith(("- ", "1. ", "|", "```")) else " ") + rest).strip()


def members_of(compound, links):
    """First the members with text, each with its text; then the declarations of the others."""
    text, bare = "", []
    members = [one for one in compound.iter("memberdef") if one.get("prot") not in HIDDEN and one.get("kind") != "friend"]
    for member in sorted(members, key=lambda one: int(one.find("location").get("line") or 0)):
        about = described(member, links)
        if member.get("kind") == "enum":
            values = [(value.findtext("name"), described(value, links)) for value in member.findall("enumvalue")]
            about += "".join(f"\n\n- `{name}`: {' '.join(words.split())}" for name, words in values if words)
        if about:
            text += f"```cpp\n{declaration(member)}\n```\n\n{about}\n\n"
        elif not (member.findtext("name") or "").startswith("~"):
            bare.append(declaration(member))
    if bare:
        text += "```cpp\n" + "\n".join(bare) + "\n```\n\n"
    return text


def write(folder, write_page):
    """Writes the pages by `write_page(path, text)`; returns lines of the navigation."""
    def compound(refid):
        return ElementTree.parse(folder / f"{refid}.xml").getroot().find("compounddef")

    index = ElementTree.parse(folder / "index.xml").getroot()
    headers, classes, links = {}, {}, {}
    for one in index.findall("compound"):
        if one.get("kind") == "file" and one.findtext("name").endswith(".h"):
            parsed = compound(one.get("refid"))
            headers[parsed.find("location").get("file")] = parsed
        elif one.get("kind") in DOCUMENTED and "detail" not in one.findtext("name").split("::"):
            classes[one.get("refid")] = compound(one.get("refid"))
    by_header, free = {}, {}
    for refid, one in classes.items():
        place = one.find("location")
        if one.get("prot") not in HIDDEN and "@" not in one.findtext("compoundname"):
            by_header.setdefault(place.get("file"), []).append((int(place.get("line")), refid, one))
            links[refid] = f"{page_of(place.get('file'))}#{refid}"
    for one in index.findall("compound"):
        if one.get("kind") == "namespace" and "detail" not in one.findtext("name").split("::"):
            for member in compound(one.get("refid")).iter("memberdef"):
                free.setdefault(member.find("location").get("file"), []).append(member)
    groups = {}
    for path in sorted(headers):
        if "/include/fulgur/" not in path or path.startswith("simulated_cuda/"):
            continue
        name = path.split("/include/")[1]
        near = {refid: "../" * page_of(path).count("/") + target for refid, target in links.items()}
        about = described(headers[path], near)
        text = f"# {name.removeprefix('fulgur/')}\n\n`#include <{name}>`\n\n{about}\n\n"
        count = 0
        for _, refid, one in sorted(by_header.get(path, []), key=lambda entry: entry[:2]):
            full = one.findtext("compoundname")
            bases = ", ".join(html.unescape(base.text or "").replace("< ", "<").replace(" >", ">") for base in one.findall("basecompoundref"))
            title = full.removeprefix("fulgur::")
            text += f"## {title.replace('<', '&lt;')} {{#{refid}}}\n\n"
            text += f"```cpp\n{template_of(one)}{one.get('kind')} {full}{' : ' + bases if bases else ''};\n```\n\n"
            text += described(one, near) + "\n\n" + members_of(one, near)
            count += 1
        wrapper = ElementTree.Element("free")
        wrapper.extend(free.get(path, []))
        wrapper.extend(one for one in headers[path].iter("memberdef") if one.get("kind") == "define" and described(one, near))
        functions = members_of(wrapper, near)
        if functions:
            text += "## Functions, types and macros\n\n" + functions
        if count or functions:
            write_page(f"api/{page_of(path)}", text)
            groups.setdefault(path.split("/")[0], []).append((name.split("/", 2)[-1].removesuffix(".h"), f"api/{page_of(path)}"))
    overview = "# API\n\nThe public headers by folder, with what their comments say. [Architecture](../architecture.md) describes the folders.\n\n"
    navigation = ["- api/index.md"]
    for group, pages in groups.items():
        navigation.append(f"- {group}:")
        navigation += [f'    - "{title}": {path}' for title, path in pages]
        overview += f"## {group}\n\n" + "".join(f"- [{title}]({path.removeprefix('api/')})\n" for title, path in pages) + "\n"
    write_page("api/index.md", overview)
    return navigation


def page_of(header):
    """core/include/fulgur/core/state/batch.h: core/state/batch.md."""
    return header.split("/include/fulgur/")[-1].removesuffix(".h") + ".md"
