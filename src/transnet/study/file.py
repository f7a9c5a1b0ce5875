"""Read a study file: variants of a training run, their seeds, and what is compared with what.

    data = "cifar100"                # as for `transnet train`; the command line can replace it
    seeds = 3                        # seeds 0, 1 and 2; or a list of seeds
    save_predictions = true          # write predictions.npz into each run's folder

    [train]                          # any option of `transnet train`, for all variants
    epochs = 60

    [variants.base-x2]               # any option, for this variant
    transforms = "r0"
    times = 2                        # train for twice as many epochs

    [variants.t2]
    transforms = "r0,r1"
    seeds = 10                       # this variant has seeds of its own

    [[compare]]
    a = "t2"
    b = "base-x2"

A study can take variants from another file: ``from = "kinds"`` with ``use = ["base", "t2"]``; its own ``[variants.t2]``
then changes that variant. A variant with ``best_of = "weights.toml"`` adds the options of that study's variant with the
highest validation accuracy, once the study is finished in the same folder. A file with ``queue`` names other files
instead, and the folder of each, which is relative to that of the queue:
``queue = [{file = "fast.toml", out = "cifar100"}]``.
"""

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, TypedDict, TypeVar, cast, get_type_hints

import msgspec
from msgspec import Meta

from transnet.errors import ConfigError, FileError, TransnetError
from transnet.runs import own_transforms
from transnet.runs.config import Count, Number, TrainConfig, data_name, from_dict

Options = Mapping[str, object]  # of `transnet train`, by name
Keys = tuple[str | int, ...]  # keys and indices that lead to an entry
T = TypeVar("T")

_MAX_SEEDS = 10_000
_MAX_DEPTH = 5  # of files that each name the next one
_BUILTIN = Path(__file__).parent / "files"

# The keys of each table, and their types. [train] and [variants.NAME] also have options.
_Text = Annotated[str, Meta(min_length=1)]
_FileName = Annotated[str, Meta(pattern=r"^[^/\\]+$")]  # a part of the runs' folder names
_Seeds = Annotated[int, Meta(ge=1, le=_MAX_SEEDS)] | Annotated[list[Number], Meta(min_length=1)]


class _Queued(TypedDict, total=False):
    file: _Text
    out: str


class _Queue(TypedDict):
    queue: Annotated[list[_Text | Options], Meta(min_length=1)]


class _Pair(TypedDict, total=False):
    a: _Text
    b: _Text


class _Variant(TypedDict, total=False):
    seeds: _Seeds
    times: Count
    best_of: _Text


class _Train(TypedDict):
    pass


_Study = TypedDict(
    "_Study",
    {
        "data": str, "seeds": _Seeds, "name": _FileName, "from": _Text, "use": list[_Text], "save_predictions": bool,
        "train": Options, "variants": dict[str, Options], "compare": list[Options],
    },
    total=False,
)  # fmt: skip
_OPTIONS = {option.name for option in fields(TrainConfig)} - {"data", "out", "seed", "resume"}


@dataclass(frozen=True)
class Variant:
    """One way to train."""

    name: str
    options: Options = field(default_factory=dict)  # what differs from the study's common options
    times: int = 1  # multiplies the epochs
    seeds: tuple[int, ...] = ()  # if empty, the study's seeds
    best_of: "Study | None" = None  # the study whose best variant on validation images adds its options to these


@dataclass(frozen=True)
class Comparison:
    """Two variants to compare: the report has the difference ``a`` − ``b``."""

    a: str
    b: str


@dataclass(frozen=True)
class Study:
    """The content of a study file: variants, or a queue of other studies."""

    file: str  # its path, for messages
    name: str  # the file's name by default; it may contain ``{data}`` and ``{recipe}``, see `series`
    data: str = ""  # as for `transnet train`; empty if the command line has to give it
    seeds: tuple[int, ...] = (0,)  # of every variant without seeds of its own
    train: Options = field(default_factory=dict)  # common options
    variants: Mapping[str, Variant] = field(default_factory=dict)
    compare: tuple[Comparison, ...] = ()
    save_predictions: bool = False  # whether each run leaves ``predictions.npz``
    queue: tuple[tuple["Study", str], ...] = ()  # studies and the folders of their runs, relative to the queue's

    @property
    def series(self) -> str:
        """The first part of the runs' names: ``name`` with the data and the recipe filled in."""
        data = re.sub(r"[^A-Za-z0-9_.]+", "_", data_name(self.data).removesuffix(".npz"))
        recipe = str(self.train.get("recipe", TrainConfig.recipe))
        return self.name.replace("{data}", data).replace("{recipe}", recipe)

    @property
    def device(self) -> str:
        """The device that the runs are trained on."""
        return str(self.train.get("device", TrainConfig.device))

    def changed(self, *, data: str | None = None, seeds: int | None = None, train: Options | None = None) -> "Study":
        """The study with other data or options, and with at least the seeds 0…``seeds``−1 for every variant."""
        study = replace(self, data=data or self.data, train={**self.train, **(train or {})})
        if seeds is None:
            return study
        if not 1 <= seeds <= _MAX_SEEDS:
            raise ConfigError(f"{seeds} was given; at least 1 and at most {_MAX_SEEDS:,} are needed", field="seeds")
        variants = {
            name: replace(one, seeds=tuple(sorted({*one.seeds, *range(seeds)}))) if one.seeds else one
            for name, one in self.variants.items()
        }
        return replace(study, seeds=tuple(range(seeds)), variants=variants)

    def config(self, variant: Variant, seed: int, out: str) -> TrainConfig:
        """The settings of one run."""
        options = {"tensorboard": False, **self.train, **variant.options, "seed": seed, "resume": True}
        recipe = str(options.pop("recipe", TrainConfig.recipe))
        config = TrainConfig.for_data(data_name(self.data), out, recipe=recipe, **options)
        return replace(config, epochs=config.epochs * variant.times)


def builtin_names() -> list[str]:
    """The studies that come with the package."""
    return sorted(file.stem for file in _BUILTIN.glob("*.toml"))


def read_study(source: str | Path, *, beside: Path | None = None, depth: int = 0) -> Study:
    """Read a study, given the path of a file that ends in .toml, or the name of a built-in study.

    If another file names this one, ``beside`` is that file, to which the path is relative, and ``depth`` counts the
    files that led here. An entry that is unknown or wrong raises a ConfigError with the file, the line and the key.
    """
    if depth > _MAX_DEPTH:
        raise FileError(f"{beside}: it names a file that leads back to it")
    path = Path(beside.parent if beside else "", source)
    known = f"give a .toml file, or one of {' '.join(builtin_names())}"
    if path.suffix != ".toml":
        if str(source) not in builtin_names():
            raise FileError(f"unknown study {str(source)!r}; {known}")
        path = _BUILTIN / f"{source}.toml"
    try:
        text = path.read_text(encoding="utf-8")
        content = tomllib.loads(text)
    except FileNotFoundError:
        raise FileError(f"{path} does not exist; {known}") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise FileError(f"{path} is not a TOML file: {error}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"{path} cannot be read ({error})") from None
    reader = _Reader(path, text, depth)
    return reader.queue(content) if "queue" in content else reader.study(content)


class _Reader:
    """Turn a file's content into a `Study`. Every mistake is reported with its line."""

    def __init__(self, path: Path, text: str, depth: int) -> None:
        self.path, self.text, self.depth = path, text, depth
        self.file = path.name if path.parent == _BUILTIN else str(path)

    def error(self, at: Keys, message: str) -> ConfigError:
        line = _line_of(at, self.text)
        return ConfigError(f"{self.file}{f', line {line}' if line else ''}: {message}")

    def check(self, at: Keys, table: Options, kind: type[T], *, options: bool = False) -> T:
        """Return a table after checking its keys and values; it may have ``options`` as well."""
        types = get_type_hints(kind, include_extras=True)
        known = types.keys() | (_OPTIONS if options else set())
        for key, value in table.items():
            if key not in known:
                near = difflib.get_close_matches(key, known, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"known are {' '.join(sorted(known))}"
                raise self.error((*at, key), f"unknown key {key!r}; {hint}")
            try:
                if key in types:
                    msgspec.convert(value, types[key])
                else:
                    from_dict({"data": "", "out": "", key: value})
            except TransnetError as error:
                raise self.error((*at, key), str(error)) from None
            except msgspec.ValidationError as error:
                reason = str(error).replace("`", "").replace("array", "list")
                raise self.error((*at, key), f"{key}: {value!r} was given; {reason}") from None
        return cast(T, table)

    def queue(self, content: Options) -> Study:
        found = []
        for i, entry in enumerate(self.check((), content, _Queue)["queue"]):
            table = self.check(("queue", i), {"file": entry} if isinstance(entry, str) else entry, _Queued)
            study = self.read_other(("queue", i), table.get("file", ""))
            if study.queue:
                raise self.error(("queue", i), f"{study.file} is a queue itself; list its files instead")
            found.append((study, table.get("out", "")))
        return Study(self.file, self.path.stem, queue=tuple(found))

    def study(self, given: Options) -> Study:
        content = self.check((), given, _Study)
        if "use" in content and "from" not in content:
            raise self.error(("use",), "use: only variants of another file can be chosen; name that file as `from`")
        base = self.read_other(("from",), content["from"]) if "from" in content else Study(self.file, self.path.stem)
        variants = {name: self.pick(base.variants, ("use",), name) for name in content.get("use", base.variants)}
        for name, table in content.get("variants", {}).items():
            variants[name] = self.variant(("variants", name), table, variants.get(name, Variant(name)))
        if not variants:
            raise self.error((), "it has no variants; add one, such as [variants.base]")
        compare = []
        for i, entry in enumerate(content.get("compare", [])):
            pair = self.check(("compare", i), entry, _Pair)
            a, b = pair.get("a", ""), pair.get("b", "")
            for side, name in (("a", a), ("b", b)):
                self.pick(variants, ("compare", i, side), name)
            compare.append(Comparison(a, b))
        common = content.get("train", {})
        self.check(("train",), common, _Train, options=True)
        self.check_transforms({**base.train, **common}, variants.values())
        return Study(
            file=self.file,
            name=content.get("name", base.name),
            data=content.get("data", base.data),
            seeds=self.seeds((), content.get("seeds", base.seeds)),
            train={**base.train, **common},
            variants=variants,
            compare=tuple(compare or (pair for pair in base.compare if {pair.a, pair.b} <= variants.keys())),
            save_predictions=content.get("save_predictions", base.save_predictions),
        )

    def check_transforms(self, common: Options, variants: Iterable[Variant]) -> None:
        """Raise if a transform is unknown: the study's own ones may be given for all variants or for one of them."""
        for one in (Variant(""), *variants):
            config = from_dict({"data": "", "out": "", **common, **one.options})
            at = ("variants", one.name, "transforms") if "transforms" in one.options else ("train", "transforms")
            try:
                own_transforms.check_names(config.names, own_transforms.parse(config.transform))
            except TransnetError as error:
                raise self.error(at, str(error)) from None

    def read_other(self, at: Keys, source: str) -> Study:
        try:
            return read_study(source, beside=self.path, depth=self.depth + 1)
        except FileError as error:
            raise self.error(at, error.message) from None

    def variant(self, at: Keys, given: Options, before: Variant) -> Variant:
        if not re.fullmatch(r"[A-Za-z0-9_.]+(-[A-Za-z0-9_.]+)*", before.name):
            raise self.error(at, f"{before.name!r} cannot be a variant's name: use letters, digits, '.', '_' and '-'")
        table = self.check(at, given, _Variant, options=True)
        own = {key: value for key, value in given.items() if key in _OPTIONS}
        seeds = self.seeds(at, table.get("seeds", before.seeds))
        best_of = self.read_other((*at, "best_of"), table["best_of"]) if "best_of" in table else before.best_of
        candidates = best_of.variants.values() if best_of else ()
        if best_of and not (
            candidates and all({**best_of.train, **one.options}.get("val_fraction") for one in candidates)
        ):
            raise self.error((*at, "best_of"), f"best_of: {best_of.file} needs variants, each with a val_fraction")
        return Variant(before.name, {**before.options, **own}, table.get("times", before.times), seeds, best_of)

    def seeds(self, at: Keys, given: int | Sequence[int]) -> tuple[int, ...]:
        seeds = tuple(range(given)) if isinstance(given, int) else tuple(given)
        if len(set(seeds)) < len(seeds):
            raise self.error((*at, "seeds"), f"seeds: {given!r} was given; each seed can be used once")
        return seeds

    def pick(self, variants: Mapping[str, Variant], at: Keys, name: str) -> Variant:
        if name not in variants:
            raise self.error(at, f"{at[-1]}: unknown variant {name!r}; known are {' '.join(variants)}")
        return variants[name]


def _line_of(at: Keys, text: str) -> int:
    """The line where an entry begins, or else the table that it belongs to; 0 if neither is there.

    Python's parser does not keep lines, so this parses ever longer beginnings of the file until the entry is there.
    """
    lines, begin = text.split("\n"), 1
    for n in range(1, len(lines) + 1) if at else ():
        try:
            entry: Any = tomllib.loads("\n".join(lines[:n]))
        except tomllib.TOMLDecodeError:  # an entry of several lines is not complete yet
            continue
        with suppress(KeyError, IndexError, TypeError):
            for key in at:
                entry = entry[key]
            return begin
        begin = n + 1
    return _line_of(at[:-1], text) if at else 0
