"""What a row of the table is. rows.py has them all."""

from dataclasses import dataclass, field


@dataclass
class Work:
    """What is trained: a preset and what is changed in it. `{configs}`, `{plugin}`, `{text}` and `{scratch}` are filled in."""

    title: str
    options: list[str]
    quick: list[str]  # instead, where only the running counts
    text: bool = False  # the preset reads a text by FULGUR_TEXT


@dataclass
class Technique:
    """`trainer fit` on `work` with the options `off`, and with those of `on`. Without `work` there is nothing to run: `why`."""

    name: str
    title: str
    line: str  # of YAML, or what else switches it on
    work: Work | None = None
    off: list[str] = field(default_factory=list)
    on: list[str] = field(default_factory=list)
    result: str = "val_acc"  # metric of the fit
    gpu: bool = False  # needs one
    always: bool = False  # is always so in Fulgur; `off` is what a user's module would have to do
    why: str = ""
    note: str = ""

    def unavailable(self, has_gpu: bool) -> str:
        if self.work is None:
            return self.why
        return "not measured: no GPU" if self.gpu and not has_gpu else ""
