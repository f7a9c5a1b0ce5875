"""Read a study file: variants of a training run, their seeds, and what is compared with what.

    data = "cifar100"                # as for `transnet train`; the command line can replace it
    seeds = 3                        # seeds 0, 1 and 2; or a list of seeds
    save_predictions = true          # write predictions.npz into each run's folder

    [train]                          # any option of `transnet train`, for all variants
    epochs = 60

    [variants.base]                  # any option, for this variant
    transforms = "r0"
    times = 2                        # train for twice the epochs

    [variants.t2]
    transforms = "r0,r1"
    seeds = 10                       # this variant has seeds of its own

    [[compare]]
    a = "t2"
    b = "base"

A study can take variants from another file: ``from = "kinds"`` with ``use = ["base", "t2"]``; its own ``[variants.t2]``
then changes that variant. A file with ``queue`` names other files instead, and the folder of each, which is relative to
that of the queue: ``queue = [{file = "fast.toml", out = "cifar100"}]``.
"""

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from importlib.resources import files
from pathlib import Path

from transnet import d4
from transnet.errors import ConfigError, FileError
from transnet.runs.config import TrainConfig, data_name
from transnet.study.toml_lines import Place, line_numbers

Options = Mapping[str, object]

_OPTIONS = {option.name for option in fields(TrainConfig)} - {"data", "out", "seed", "resume"}
_OF_STUDY = {"data", "seeds", "name", "from", "use", "save_predictions", "train", "variants", "compare", "queue"}
_OF_VARIANT = {"seeds", "times"}
_MOST_SEEDS = 10_000
_DEEPEST = 5  # files that lead from one to the next
_BUILTIN = files("transnet.study").joinpath("files")


@dataclass(frozen=True)
class Variant:
    """One way to train.

    Attributes:
        name: as in the names of its runs.
        options: what differs from the study's common options.
        times: factor on the epochs.
        seeds: its own seeds; None: the study's.
    """

    name: str
    options: Options = field(default_factory=dict)
    times: int = 1
    seeds: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Comparison:
    """Two variants; ``a`` − ``b`` is of interest."""

    a: str
    b: str


@dataclass(frozen=True)
class QueueEntry:
    """A study of a queue, and the folder of its runs, relative to the queue's; empty for the queue's own."""

    study: "Study"
    out: str = ""


@dataclass(frozen=True)
class Study:
    """What a study file says.

    Attributes:
        file: where it came from, for messages.
        name: the first part of the runs' names; ``{data}`` and ``{recipe}`` are filled in.
        data: as for `transnet train`; empty if the command line has to give it.
        seeds: of every variant without seeds of its own.
        train: options that all variants share.
        variants: by name.
        compare: pairs of variants.
        save_predictions: whether each run leaves ``predictions.npz``.
        queue: other files instead of variants.
    """

    file: str
    name: str
    data: str = ""
    seeds: tuple[int, ...] = (0,)
    train: Options = field(default_factory=dict)
    variants: Mapping[str, Variant] = field(default_factory=dict)
    compare: tuple[Comparison, ...] = ()
    save_predictions: bool = False
    queue: tuple[QueueEntry, ...] = ()

    @property
    def series(self) -> str:
        """The first part of the runs' names, filled in."""
        data = re.sub(r"[^A-Za-z0-9_.]+", "_", data_name(self.data).removesuffix(".npz"))
        recipe = str(self.train.get("recipe", TrainConfig.recipe))
        return self.name.replace("{data}", data).replace("{recipe}", recipe)

    def changed(self, *, data: str | None = None, seeds: int | None = None, train: Options | None = None) -> "Study":
        """The study with other data, at least the seeds 0…``seeds``−1 for every variant, or other common options."""
        variants = dict(self.variants)
        if seeds is not None:
            if not 1 <= seeds <= _MOST_SEEDS:
                raise ConfigError(f"{seeds} was given; at least 1 is needed", field="seeds")
            for name, variant in variants.items():
                own = variant.seeds and tuple(sorted({*variant.seeds, *range(seeds)}))
                variants[name] = replace(variant, seeds=own)
        return replace(
            self,
            data=data or self.data,
            seeds=self.seeds if seeds is None else tuple(range(seeds)),
            train={**self.train, **(train or {})},
            variants=variants,
        )

    def seeds_of(self, variant: Variant) -> tuple[int, ...]:
        """The seeds that a variant is trained with."""
        return self.seeds if variant.seeds is None else variant.seeds

    def config(self, variant: Variant, seed: int, out: str) -> TrainConfig:
        """The settings of one run."""
        options = {**self.train, **variant.options}
        recipe = str(options.pop("recipe", TrainConfig.recipe))
        given = {"tensorboard": False, **options, "seed": seed, "resume": True}
        config = TrainConfig.for_data(data_name(self.data), out, recipe=recipe, **given)
        return replace(config, epochs=config.epochs * variant.times)  # a budget in passes would replace epochs here


def builtin_names() -> list[str]:
    """The studies that come with the package."""
    return sorted(file.name.removesuffix(".toml") for file in _BUILTIN.iterdir() if file.name.endswith(".toml"))


def read_study(source: str | Path, *, beside: Path | None = None, depth: int = 0) -> Study:
    """Read a study file.

    Args:
        source: the path of a file that ends in .toml, or the name of a built-in study.
        beside: the file that names it. A relative path is then relative to that file's folder.
        depth: how many files led to it.

    Raises:
        FileError: if there is no such file, or if it is not TOML.
        ConfigError: if an entry is unknown or wrong; the message names the file, the line and the key.
    """
    if depth > _DEEPEST:
        raise FileError(f"{beside}: it names a file that leads back to it")
    path = Path(beside.parent if beside else "", source)
    if path.suffix == ".toml":
        name, file = path.stem, str(path)
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise FileError(
                f"{path} does not exist; give a study file, or one of {' '.join(builtin_names())}"
            ) from None
        except (OSError, UnicodeDecodeError) as error:
            raise FileError(f"{path} cannot be read ({error})") from None
    elif str(source) in builtin_names():
        name, file = str(source), f"{source}.toml (built-in)"
        text = _BUILTIN.joinpath(f"{source}.toml").read_text(encoding="utf-8")
    else:
        raise FileError(f"unknown study {str(source)!r}; give a .toml file, or one of {' '.join(builtin_names())}")
    try:
        content = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise FileError(f"{file} is not a TOML file: {error}") from None
    return _Reader(file, text, path, depth).study(name, content)


class _Reader:
    """Check a file's content entry by entry."""

    def __init__(self, file: str, text: str, path: Path, depth: int) -> None:
        self.file, self.path, self.depth = file, path, depth
        self.lines = line_numbers(text)

    def error(self, at: Place, message: str) -> ConfigError:
        """An error that names the file and the line of an entry."""
        while at and at not in self.lines:
            at = at[:-1]
        where = f", line {self.lines[at]}" if at in self.lines else ""
        return ConfigError(f"{self.file}{where}: {message}")

    def study(self, name: str, content: dict[str, object]) -> Study:
        self._check_keys((), content, _OF_STUDY)
        if "queue" in content:
            self._check_keys((), content, {"queue"}, why="a file with `queue` has no other entries; ")
            return Study(self.file, name, queue=self._queue(content["queue"]))
        base = Study(self.file, name)
        variants: dict[str, Variant] = {}
        if "from" in content:
            base = self._other(("from",), content["from"])
            variants = dict(base.variants)
            if "use" in content:
                names = self._names(("use",), content["use"])
                for one in names:
                    self._check_variant(("use",), one, variants)
                variants = {one: variants[one] for one in names}
        elif "use" in content:
            raise self.error(("use",), "use: only variants of another file can be chosen; name that file as `from`")
        for one, table in self._table(("variants",), content.get("variants", {})).items():
            variants[one] = self._variant(one, table, variants.get(one))
        if not variants:
            raise self.error((), "it has no variants; add one, such as [variants.base]")
        compare = []
        for i, pair in enumerate(self._list(("compare",), content.get("compare", []))):
            table = self._table(("compare", i), pair)
            self._check_keys(("compare", i), table, {"a", "b"})
            sides = [self._text(("compare", i, side), table.get(side)) for side in ("a", "b")]
            for side, one in zip(("a", "b"), sides, strict=True):
                self._check_variant(("compare", i, side), one, variants)
            compare.append(Comparison(*sides))
        save = content.get("save_predictions", base.save_predictions)
        if not isinstance(save, bool):
            raise self.error(("save_predictions",), f"save_predictions: {save!r} was given; true or false is needed")
        study = Study(
            file=self.file,
            name=self._text(("name",), content.get("name", base.name if "from" in content else name)),
            data=self._text(("data",), content.get("data", base.data), empty=True),
            seeds=self._seeds(("seeds",), content["seeds"]) if "seeds" in content else base.seeds,
            train={**base.train, **self._options(("train",), self._table(("train",), content.get("train", {})))},
            variants=variants,
            compare=tuple(compare) or tuple(c for c in base.compare if {c.a, c.b} <= variants.keys()),
            save_predictions=save,
        )
        self._check_options(study)
        return study

    def _queue(self, value: object) -> tuple[QueueEntry, ...]:
        found = []
        for i, entry in enumerate(self._list(("queue",), value)):
            table = {"file": entry} if isinstance(entry, str) else self._table(("queue", i), entry)
            self._check_keys(("queue", i), table, {"file", "out"})
            at: Place = ("queue", i, "file")
            out = self._text(("queue", i, "out"), table.get("out", ""), empty=True)
            study = self._other(at, table.get("file"))
            if study.queue:
                raise self.error(at, f"{study.file} is a queue itself; list its files instead")
            found.append(QueueEntry(study, out))
        if not found:
            raise self.error(("queue",), "queue: it is empty")
        return tuple(found)

    def _other(self, at: Place, value: object) -> Study:
        """Another study, which an entry names."""
        try:
            return read_study(self._text(at, value), beside=self.path, depth=self.depth + 1)
        except FileError as error:
            raise self.error(at, error.message) from None

    def _variant(self, name: str, value: object, before: Variant | None) -> Variant:
        at: Place = ("variants", name)
        if not re.fullmatch(r"[A-Za-z0-9_.]+(-[A-Za-z0-9_.]+)*", name):
            raise self.error(at, f"{name!r} cannot be a variant's name: use letters, digits, '.', '_' and '-'")
        table = self._table(at, value)
        options = self._options(at, {key: item for key, item in table.items() if key not in _OF_VARIANT}, _OF_VARIANT)
        before = before or Variant(name)
        times = table.get("times", before.times)
        if not isinstance(times, int) or isinstance(times, bool) or times < 1:
            raise self.error((*at, "times"), f"times: {times!r} was given; a whole number from 1 is needed")
        options = {**before.options, **options}
        try:
            d4.parse(str(options.get("transforms", TrainConfig.transforms)))
        except ValueError as error:
            raise self.error((*at, "transforms"), str(error)) from None
        seeds = self._seeds((*at, "seeds"), table["seeds"]) if "seeds" in table else before.seeds
        return Variant(name, options, times, seeds)

    def _options(self, at: Place, table: Options, others: Iterable[str] = ()) -> Options:
        self._check_keys(at, table, _OPTIONS | set(others))
        for key, value in table.items():
            if isinstance(value, dict | list):
                raise self.error((*at, key), f"{key}: {value!r} was given; a single value is needed")
        return table

    def _check_options(self, study: Study) -> None:
        """Build every variant's settings once, so that a wrong value is found before anything is trained."""
        for variant in study.variants.values():
            try:
                replace(study, data=study.data or "data").config(variant, 0, "out")
            except ValueError as error:
                message = str(error)
                found = getattr(error, "field", None) or message.lstrip("-").partition(":")[0].replace("-", "_")
                at: Place = ("variants", variant.name) if found in variant.options else ("train",)
                raise self.error((*at, found), f"variant {variant.name}: {message}") from None

    def _seeds(self, at: Place, value: object) -> tuple[int, ...]:
        if type(value) is int and 0 < value <= _MOST_SEEDS:
            return tuple(range(value))
        seeds = [seed for seed in value if type(seed) is int and seed >= 0] if isinstance(value, list) else []
        if not seeds or seeds != value or len(set(seeds)) < len(seeds):
            raise self.error(at, f"seeds: {value!r} was given; a number of seeds from 1, or a list of seeds, is needed")
        return tuple(seeds)

    def _check_keys(self, at: Place, table: Options, known: set[str], why: str = "") -> None:
        for key in table:
            if key not in known:
                near = difflib.get_close_matches(key, known, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"known are {' '.join(sorted(known))}"
                raise self.error((*at, key), f"unknown key {key!r}; {why}{hint}")

    def _check_variant(self, at: Place, name: str, variants: Mapping[str, Variant]) -> None:
        if name not in variants:
            raise self.error(at, f"{at[-1]}: unknown variant {name!r}; known are {' '.join(variants)}")

    def _text(self, at: Place, value: object, *, empty: bool = False) -> str:
        if not isinstance(value, str) or not (value or empty):
            raise self.error(at, f"{at[-1]}: {'nothing' if value is None else repr(value)} was given; a text is needed")
        return value

    def _names(self, at: Place, value: object) -> list[str]:
        return [self._text((*at, i), name) for i, name in enumerate(self._list(at, value))]

    def _list(self, at: Place, value: object) -> list[object]:
        if not isinstance(value, list):
            raise self.error(at, f"{at[-1]}: {value!r} was given; a list is needed")
        return value

    def _table(self, at: Place, value: object) -> dict[str, object]:
        if not isinstance(value, dict):
            raise self.error(at, f"{at[-1]}: {value!r} was given; a table is needed")
        return value
