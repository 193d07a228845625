"""The options of each program, declared once: its command line is made from them, and a plan's
`args` are checked against them.

Nothing here needs torch, so that a plan can be refused where there is none.
"""

from __future__ import annotations

import argparse
import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ..training.compression import WANTED, read_compression
from ..training.models import MODELS

MANY = 10**9
EXCHANGES = ("wires", "gloo", "aggregate", "datagrams")


@dataclass(frozen=True, slots=True)
class Option:
    """One option, `--batch` on the command line and `batch` in a plan.

    kind: size is a number of bytes, which may be written 64K or 1G. least, most: the range, both
    included. above: as `least`, but not included. multiple: of what a value must be a multiple.
    weights: another value trains other weights, so a job with another value must not go on from
    this one's checkpoints. later: added to a program that had trainings already, which are those
    with its default. parse: of a text, which raises ValueError with the reason where it is none of
    this option's; form: what such a text must be, in words.
    """

    name: str
    kind: Literal["whole", "number", "size", "flag", "word", "text"]
    default: int | float | str | bool | None
    help: str
    least: float | None = None
    most: float | None = None
    above: float | None = None
    multiple: int = 1
    choices: tuple[int | str, ...] = ()
    short: str = ""
    weights: bool = False
    later: bool = False
    parse: Callable[[object], object] | None = None
    form: str = ""

    @property
    def wanted(self) -> str:
        """What a value must be, in words."""
        if self.parse is not None:
            return self.form
        if self.choices:
            return f"{', '.join(map(str, self.choices[:-1]))} or {self.choices[-1]}"
        if self.kind == "flag":
            return "true or false"
        text = {
            "whole": "a whole number",
            "number": "a number",
            "size": "a size such as 65536, 64K or 1G",
        }[self.kind]
        if self.above is not None:
            text += (
                f" above {self.above:g} and up to {self.most:.0f}"
                if self.most is not None
                else f" above {self.above:g}"
            )
        elif self.least is not None:
            text += f" from {self.least:.0f}" + (
                f" to {self.most:.0f}" if self.most is not None else " up"
            )
        return text + (f", a multiple of {self.multiple}" if self.multiple > 1 else "")

    def takes(self, value: object) -> bool:
        """Whether a value of a plan is one of this option's."""
        if self.parse is not None:
            return self._fault(value) is None
        if self.kind == "flag" or isinstance(value, bool):
            return self.kind == "flag" and isinstance(value, bool)
        if self.kind == "size" and isinstance(value, str):
            try:
                value = size(value)
            except argparse.ArgumentTypeError:
                return False
        if self.kind == "word" or isinstance(value, str):
            return value in self.choices
        if not isinstance(value, int) and not (isinstance(value, float) and self.kind == "number"):
            return False
        return (
            (self.least is None or value >= self.least)
            and (self.most is None or value <= self.most)
            and (self.above is None or value > self.above)
            and (not self.choices or value in self.choices)
            and (self.multiple == 1 or value % self.multiple == 0)
        )

    def reason(self, value: object) -> str:
        """What is to be added to `wanted` where `value` is none of this option's: `: because`, or
        nothing.
        """
        why = self._fault(value) if self.parse is not None else None
        return f": {why}" if why else ""

    def _fault(self, value: object) -> str | None:
        assert self.parse is not None
        try:
            self.parse(value)
        except ValueError as error:
            return str(error)
        return None

    def read(self, text: str) -> int | float | str:
        """The value of a word of the command line. Raises: argparse.ArgumentTypeError - it is none
        of this option's.
        """
        value: int | float | str = text
        with contextlib.suppress(ValueError):
            value = (
                int(text)
                if self.kind == "whole"
                else float(text)
                if self.kind == "number"
                else text
            )
        value = size(text) if self.kind == "size" else value
        if not self.takes(value):
            raise argparse.ArgumentTypeError(
                f"wanted {self.wanted}, got {text!r}{self.reason(value)}"
            )
        return value


def size(text: str) -> int:
    """The bytes that `text` such as 8, 64K or 1G names."""
    match = re.fullmatch(r"([0-9]{1,15})([KMG]?)B?", text.strip().upper())
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r}: not a size such as 8, 64K or 1G")
    return int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[match[2]]


OPTIONS: Mapping[str, tuple[Option, ...]] = {
    "train": (
        Option("model", "word", "mlp", "what is trained", choices=MODELS, weights=True),
        Option(
            "iterations",
            "whole",
            50,
            "train up to this iteration; 0: until stopped",
            least=0,
            most=MANY,
        ),
        Option(
            "batch",
            "whole",
            0,
            "samples per rank and iteration; 0: the model's usual",
            least=0,
            most=1 << 20,
            weights=True,
        ),
        Option(
            "hidden",
            "whole",
            0,
            "width of the model; 0: the usual one",
            least=0,
            most=1 << 16,
            multiple=32,
            weights=True,
        ),
        Option(
            "lr",
            "number",
            0.0,
            "learning rate; 0: the model's usual",
            least=0,
            most=MANY,
            weights=True,
        ),
        Option(
            "seed", "whole", 1, "of the weights and the data", least=0, most=1 << 53, weights=True
        ),
        Option("bucket_mb", "number", 25.0, "gradients sent together, MiB", above=0, most=1 << 16),
        Option(
            "compute_ms",
            "number",
            0.0,
            "forward and backward last at least so long",
            least=0,
            most=86_400_000,
        ),
        Option(
            "exchange",
            "word",
            "wires",
            "what carries sums: the project's own connections, torch's gloo, a packet switch that adds, or datagrams",
            choices=EXCHANGES,
        ),
        Option(
            "loss_bound",
            "number",
            0.02,
            "the share of a sum that datagrams may lose",
            least=0,
            most=1,
        ),
        Option(
            "compress",
            "text",
            "none",
            "what of a gradient travels",
            weights=True,
            later=True,
            parse=read_compression,
            form=WANTED,
        ),
        Option(
            "sync_every",
            "whole",
            1,
            "iterations a rank trains alone before weights are averaged",
            least=1,
            most=MANY,
            weights=True,
            later=True,
        ),
        Option(
            "checkpoint_every",
            "whole",
            100,
            "iterations between checkpoints; 0: only when stopped",
            least=0,
            most=MANY,
        ),
        Option(
            "checkpoint",
            "word",
            "sync",
            "whether training waits for the disk, or copies what a thread writes",
            choices=("sync", "async"),
        ),
        Option(
            "resume",
            "flag",
            False,
            "go on from the newest checkpoint common to all ranks (else drop them)",
        ),
        Option(
            "ungated",
            "flag",
            False,
            "do not ask which peers a slot reaches before sending: for comparison",
        ),
    ),
    "allreduce": (
        Option("minbytes", "size", 1 << 20, "smallest size", least=4, most=1 << 40, short="-b"),
        Option(
            "maxbytes",
            "size",
            None,
            "largest size; without it the smallest",
            least=4,
            most=1 << 40,
            short="-e",
        ),
        Option("stepfactor", "whole", 2, "factor between sizes", least=2, most=1 << 20, short="-f"),
        Option("iters", "whole", 5, "timed all-reduces per size", least=1, most=MANY, short="-n"),
        Option("warmup_iters", "whole", 1, "untimed ones before", least=0, most=MANY, short="-w"),
        Option("check", "whole", 1, "count wrong elements", choices=(0, 1), short="-c"),
        Option("loop", "flag", False, "repeat the smallest size until stopped"),
        Option(
            "seconds",
            "number",
            0.0,
            "with loop: stop after this long; 0: when stopped",
            least=0,
            most=MANY,
        ),
    ),
    "replay": (
        Option("iterations", "whole", 20, "iterations; 0: until stopped", least=0, most=MANY),
        Option("check", "whole", 1, "look at what arrives in the first", choices=(0, 1)),
        Option(
            "ungated",
            "flag",
            False,
            "do not ask which peers a slot reaches before sending: for comparison",
        ),
    ),
    "moe": (
        Option("iterations", "whole", 100, "iterations; 0: until stopped", least=0, most=MANY),
        Option(
            "tokens",
            "whole",
            1024,
            "tokens per rank and iteration",
            least=32,
            most=1 << 20,
            multiple=32,
        ),
        Option("width", "whole", 64, "numbers of a token", least=8, most=1 << 14),
        Option("top", "whole", 1, "experts of a token", choices=(1, 2)),
        Option(
            "capacity",
            "number",
            4.0,
            "tokens of a rank an expert takes, times its even share; 0: all",
            least=0,
            most=MANY,
        ),
        Option(
            "skew",
            "number",
            0.0,
            "exponent of Zipf's law of a rank's topics; 0: all alike",
            least=0,
            most=16,
        ),
        Option(
            "drift",
            "whole",
            0,
            "iterations between two shifts of the topics; 0: none",
            least=0,
            most=MANY,
        ),
        Option(
            "compute_ms",
            "number",
            0.0,
            "attention lasts at least so long",
            least=0,
            most=86_400_000,
        ),
        Option("lr", "number", 0.05, "learning rate", least=0, most=MANY),
        Option(
            "foretell",
            "flag",
            False,
            "say what the next iteration sends, which only synthetic data can: for comparison",
        ),
        Option("seed", "whole", 1, "of the weights and the data", least=0, most=1 << 31),
    ),
    "retrieve": (
        Option("iterations", "whole", 20, "iterations; 0: until stopped", least=0, most=MANY),
        Option("requests", "whole", 100, "requests of a rank in an iteration", least=1, most=MANY),
        Option("keys", "whole", 10_000, "keys in all", least=1, most=1 << 24),
        Option("bytes", "whole", 256, "bytes of a value", least=1, most=8896),
        Option(
            "skew", "number", 0.99, "exponent of Zipf's law; 0: all keys alike", least=0, most=16
        ),
        Option(
            "lookup_ms",
            "number",
            1.0,
            "time in which an owner finds a value, one at a time",
            least=0,
            most=60_000,
        ),
        Option("seed", "whole", 1, "of the requests", least=0, most=1 << 31),
    ),
}
"""By the program's name, which is that of its module."""


def conflicts(program: str, args: Mapping[str, object], nccl: bool) -> Iterator[tuple[str, str]]:
    """What values, each good by itself, cannot be together: the option and why. nccl: the job's
    sums are NCCL's.
    """
    if program != "train":
        return
    value = {option.name: args.get(option.name, option.default) for option in OPTIONS[program]}
    if value["exchange"] == "aggregate" and str(value["compress"]).startswith(("fp16", "topk")):
        why = (
            "adds whole int32 numbers"
            if value["compress"] == "fp16"
            else "only adds, it gathers nothing"
        )
        yield "compress", f"{value['compress']}: a packet switch {why}; powersgd works over it"
    if value["exchange"] == "datagrams":
        if str(value["compress"]).startswith("topk"):
            yield (
                "compress",
                f"{value['compress']}: what it gathers may not be lost, and datagrams carry sums alone; exchange wires has it",
            )
    elif value["loss_bound"] != 0.02:
        yield (
            "loss_bound",
            f"{value['loss_bound']:g}: {value['exchange']} loses nothing; only exchange datagrams may",
        )
    if not nccl:
        return
    if value["exchange"] != "wires":
        yield (
            "exchange",
            f"{value['exchange']}: where a job has GPUs NCCL carries its sums; with backend gloo it leaves them unused",
        )
    if value["compress"] != "none":
        yield (
            "compress",
            f"{value['compress']}: nothing is built that compresses what NCCL carries; backend gloo has it, on CPUs",
        )


def read(program: str, description: str, tokens: Sequence[str] | None = None) -> argparse.Namespace:
    """The program's options as its command line gives them; ends the process with usage and exit
    code 2 where it is wrong.
    """
    parser = argparse.ArgumentParser(prog=f"workloads.programs.{program}", description=description)
    for option in OPTIONS[program]:
        names = [*([option.short] if option.short else []), f"--{option.name.replace('_', '-')}"]
        if option.kind == "flag":
            parser.add_argument(*names, action="store_true", help=option.help)
            continue
        default = "" if option.default is None else f" (default {option.default})"
        parser.add_argument(
            *names,
            type=option.read,
            default=option.default,
            metavar=option.kind,
            help=option.help + default,
        )
    return parser.parse_args(tokens)
