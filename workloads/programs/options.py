"""The options of each program, declared once: its command line is made from them, and a plan's
`args` are checked against them.

Nothing here needs torch, so that a plan can be refused where there is none.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence

from ..training.compression import WANTED, read_compression
from ..training.models import MODELS
from .option import MANY, Option
from .serve_options import SERVE, conflicts_of_serve

EXCHANGES = ("wires", "gloo", "aggregate", "datagrams")
OF_SITES = ("site_every", "outer_lr", "outer_momentum", "site_share")
"""Of train: what averages between sites are like."""


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
            "site_every",
            "whole",
            0,
            "iterations between averages of sites, inside which gradients are averaged in each; 0: ranks are all alike",
            least=0,
            most=MANY,
            weights=True,
            later=True,
        ),
        Option(
            "outer_lr",
            "number",
            0.7,
            "learning rate of the step between sites; with outer_momentum 0, 1 takes the average as it is",
            above=0,
            most=16,
            weights=True,
            later=True,
        ),
        Option(
            "outer_momentum",
            "number",
            0.9,
            "Nesterov's momentum of that step",
            least=0,
            most=1,
            weights=True,
            later=True,
        ),
        Option(
            "site_share",
            "number",
            1.0,
            "share of the sites, drawn for each average, whose change counts",
            above=0,
            most=1,
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
            "relay",
            "word",
            "chunks",
            "transfers are passed on in chunks, or once they are whole: for comparison",
            choices=("chunks", "whole"),
        ),
        Option(
            "credits",
            "size",
            0,
            "bytes that are on their way to a rank at most, of all transfers; 0: TCP decides",
            least=0,
            most=1 << 40,
        ),
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
            "domain",
            "whole",
            0,
            "ranks of a domain, which pass tokens on to the receiver's rail; 0: none",
            least=0,
            most=1 << 16,
        ),
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
    "serve": SERVE,
}
"""By the program's name, which is that of its module."""


def conflicts(
    program: str, args: Mapping[str, object], nccl: bool, ranks: int = 0
) -> Iterator[tuple[str, str]]:
    """What values, each good by itself, cannot be together: the option and why. nccl: the job's
    sums are NCCL's. ranks: how many a job of serve has.
    """
    value = {option.name: args.get(option.name, option.default) for option in OPTIONS[program]}
    if program == "serve":
        yield from conflicts_of_serve(value, ranks, nccl)
    if program == "moe" and (domain := int(str(value["domain"]))) and ranks % domain:
        yield (
            "domain",
            f"{domain}: domains of {domain} do not divide {ranks} ranks; take a number that divides them, or 0",
        )
    if program == "replay" and nccl and value["credits"] not in (0, "0"):
        yield (
            "credits",
            f"{value['credits']}: where a job has GPUs NCCL carries its transfers; backend gloo has credits",
        )
    if program != "train":
        return
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
    yield from _conflicts_of_sites(value, nccl)
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


def fixed(args: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Why a job of train with these options has as many ranks as it began with: the option and
    why.
    """
    value = {option.name: args.get(option.name, option.default) for option in OPTIONS["train"]}
    for name, usual in (
        ("exchange", "wires"),
        ("compress", "none"),
        ("sync_every", 1),
        ("site_every", 0),
    ):
        if value[name] != usual:
            yield name, f"{value[name]}: only a job with {usual} takes new ranks while it runs"


def _conflicts_of_sites(value: Mapping[str, object], nccl: bool) -> Iterator[tuple[str, str]]:
    if not value["site_every"]:
        usual = {option.name: option.default for option in OPTIONS["train"]}
        for name in OF_SITES[1:]:
            if value[name] != usual[name]:
                yield name, f"{value[name]}: sites are averaged with site_every only"
        return
    if nccl or value["exchange"] != "wires":
        by = "NCCL" if nccl else value["exchange"]
        yield (
            "site_every",
            f"{value['site_every']}: {by} has no sums inside a site; backend gloo with exchange wires has",
        )
    if value["sync_every"] != 1:
        yield (
            "sync_every",
            f"{value['sync_every']}: with site_every ranks of a site never train alone",
        )
    if value["site_share"] != 1 and value["compress"] != "none":
        yield (
            "site_share",
            f"{value['site_share']}: with compress a site that is left out would still send what it left out before",
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
