"""Neural network inference in a network card with a photonic multiplier, begun by counts instead of
by a control program.

The idea is Lightning's (Zhong et al., SIGCOMM 2023, doi 10.1145/3603269.3604821): the data path
counts what passes, and a count that is complete begins what comes next, so that light never waits
for software. Here it is cycle by cycle arithmetic: no light, no clock, no noise of an analogue
device. Pure.

Arithmetic. Magnitudes have 8 bits. A multiplication gives the upper 8 bits of its 16-bit product,
as the published emulation of that card's multiplier does (16 lanes, 10 cycles:
rtl/emulate/photonic_multiplier.v of github.com/hipersys-team/lightning); signs are kept beside it
and applied in the digital sum. Between layers, negative sums become 0, the others are shifted right
by `shift` and limited to 255.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

TOP = 255
Row = Sequence[int]


@dataclass(frozen=True, slots=True)
class Layer:
    """weights: a row for each output, in it a weight (-255 to 255) for each input; shift: bits that
    its sums lose at the end.
    """

    weights: Sequence[Row]
    shift: int = 0


@dataclass(frozen=True, slots=True)
class Core:
    """lanes: multiplications begun a cycle. In cycles: light, until their results are there;
    digital, from the last of a row to its output; control, what software takes to begin the next
    row, where it does (`stop_and_go`).
    """

    lanes: int = 16
    light: int = 10
    digital: int = 4
    control: int = 100

    def words(self, values: int) -> int:
        """Cycles it takes to begin this many multiplications."""
        return -(-values // self.lanes)


@dataclass(frozen=True, slots=True)
class Answer:
    """sums of the last layer; cycles from the query's first byte; actions: how often each count was
    complete.
    """

    sums: tuple[int, ...]
    cycles: int
    actions: dict[str, int]


class _Counts:
    """The table of counts and actions: what is counted, how many there must be, what is done
    then.
    """

    def __init__(self) -> None:
        self._table: dict[str, tuple[int, Callable[[], None]]] = {}
        self._seen: dict[str, int] = {}
        self.fired: dict[str, int] = {}

    def set(self, what: str, target: int, action: Callable[[], None]) -> None:
        self._table[what], self._seen[what] = (target, action), 0

    def saw(self, what: str) -> None:
        self._seen[what] += 1
        target, action = self._table[what]
        if self._seen[what] == target:
            self._seen[what] = 0
            self.fired[what] = self.fired.get(what, 0) + 1
            action()


class _Machine:
    def __init__(
        self,
        core: Core,
        layers: Sequence[Layer],
        query: Row,
        arrivals: Sequence[int],
        stop_and_go: bool,
    ) -> None:
        self._core, self._layers, self._arrivals, self._stop_and_go = (
            core,
            layers,
            arrivals,
            stop_and_go,
        )
        # cycle; nothing begins before; words of the query that have come
        self._now, self._idle_until, self._present = 0, 0, 0
        self._layer, self._row, self._word = 0, 0, 0  # what is begun next
        self._inputs, self._outputs = list(query), [0] * len(layers[0].weights)
        # when it comes out of the light, row, sum of one word
        self._flying: deque[tuple[int, int, int]] = deque()
        self._storing: deque[tuple[int, int]] = deque()  # when it is an output, row
        self._arriving = 0  # the row whose words come out of the light
        self._may_begin, self._done = not stop_and_go, False
        self._counts = _Counts()
        self._counts.set("query words", core.words(len(query)), self._begin)
        self._configure()

    def _configure(self) -> None:
        rows, words = len(self._outputs), self._core.words(len(self._inputs))
        self._counts.set("words begun", words, self._next_row)
        self._counts.set("words come", words, self._close_row)
        self._counts.set("outputs of a layer", rows, self._next_layer)

    def _begin(self) -> None:
        self._may_begin = True

    def _next_row(self) -> None:
        self._row, self._word = self._row + 1, 0
        self._may_begin = not self._stop_and_go and self._row < len(self._outputs)

    def _close_row(self) -> None:
        self._storing.append((self._now + self._core.digital, self._arriving))

    def _next_layer(self) -> None:
        if self._layer + 1 == len(self._layers):
            self._done = True
            return
        shift = self._layers[self._layer].shift
        self._inputs = [min(max(total, 0) >> shift, TOP) for total in self._outputs]
        self._layer, self._row, self._word = self._layer + 1, 0, 0
        self._outputs = [0] * len(self._layers[self._layer].weights)
        self._may_begin = True
        self._configure()

    def run(self) -> Answer:
        while not self._done:
            self._cycle()
            self._now += 1
        return Answer(tuple(self._outputs), self._now, self._counts.fired)

    def _cycle(self) -> None:
        # First, so that an action is seen in the cycle after the count that was complete, as with
        # registers.
        if (
            self._may_begin
            and self._now >= self._idle_until
            and (self._layer or self._row or self._word < self._present)
        ):
            self._shine()
        while self._present < len(self._arrivals) and self._arrivals[self._present] <= self._now:
            self._present += 1
            self._counts.saw("query words")
        if self._flying and self._flying[0][0] == self._now:
            _, self._arriving, total = self._flying.popleft()
            self._outputs[self._arriving] += total
            self._counts.saw("words come")
        if self._storing and self._storing[0][0] == self._now:
            self._storing.popleft()
            if self._stop_and_go:
                self._may_begin, self._idle_until = (
                    self._row < len(self._outputs),
                    self._now + 1 + self._core.control,
                )
            self._counts.saw("outputs of a layer")

    def _shine(self) -> None:
        part = slice(self._word * self._core.lanes, (self._word + 1) * self._core.lanes)
        total = 0
        for value, weight in zip(
            self._inputs[part], self._layers[self._layer].weights[self._row][part], strict=True
        ):
            product = value * abs(weight) >> 8
            total += product if weight >= 0 else -product
        self._flying.append((self._now + self._core.light, self._row, total))
        self._word += 1
        self._counts.saw("words begun")


def infer(
    core: Core,
    layers: Sequence[Layer],
    query: Row,
    arrivals: Sequence[int],
    *,
    stop_and_go: bool = False,
) -> Answer:
    """Run one query (values 0 to 255) through the layers.

    arrivals: the cycle in which each word (`core.lanes` bytes) of the query is there, in order.
    stop_and_go: software waits for the query and for every row's output before it begins the next
    row. Raises: ValueError - shapes that do not fit, or values.
    """
    width = len(query)
    if (
        not layers
        or not width
        or len(arrivals) != core.words(width)
        or list(arrivals) != sorted(arrivals)
    ):
        raise ValueError(
            f"a query of {width} bytes needs layers and {core.words(width)} arrivals in order"
        )
    if min(core.lanes, core.light, core.digital) < 1 or core.control < 0:
        raise ValueError(f"{core}: lanes, light and digital are 1 at least, control 0")
    if not all(0 <= value <= TOP for value in query):
        raise ValueError(f"a query's values are 0 to {TOP}")
    for number, layer in enumerate(layers):
        if not layer.weights or any(len(row) != width for row in layer.weights) or layer.shift < 0:
            raise ValueError(
                f"layer {number}: its rows must have {width} weights, its shift must not be negative"
            )
        if not all(-TOP <= weight <= TOP for row in layer.weights for weight in row):
            raise ValueError(f"layer {number}: weights are {-TOP} to {TOP}")
        width = len(layer.weights)
    return _Machine(core, layers, query, arrivals, stop_and_go).run()


def expected_cycles(
    core: Core, shape: Sequence[int], cycles_a_word: float, *, stop_and_go: bool = False
) -> float:
    """The latency model: cycles of a query through layers of these widths (the query's first),
    whose words come at a steady rate.

    Counts begin a row as soon as the words of the one before are on their way, so that a layer
    costs its words and one way through light and digital logic, and the query arrives while its
    first row is begun. Stop and go pays that way, and the software, for every row.
    """
    words = [core.words(width) for width in shape[:-1]]
    rows = shape[1:]
    path = core.light + core.digital
    coming = words[0] * cycles_a_word
    if stop_and_go:
        return coming + sum(
            count * (each + path + core.control) for count, each in zip(rows, words, strict=True)
        )
    return max(coming - words[0], 0) + sum(
        count * each + path for count, each in zip(rows, words, strict=True)
    )
