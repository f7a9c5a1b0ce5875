"""What results/anytime_*.json say of anytime prediction, as text for the docs."""

import json
import statistics

from anytime_speed import WAYS, share_kept
from study_tables import bare, made_with
from transnet.report import table_format as sheets

FILES = ("anytime_plain", "anytime_taught", "anytime_200_epochs", "anytime_wrn", "anytime_pretrained")
COLUMNS = ("", "first head %", "anytime %", "all heads %", "passes per image", "of the gain kept %")


def anytime(results):
    """One pass for most images, more for the rest: what it keeps of all heads' gain, and what it saves."""
    files = read(results)
    first = files[0][1]
    n_val, n_test = (first["runs"][0][name] for name in ("n_val", "n_test"))
    said = [
        f"T3 runs on CIFAR-100, of which {n_val:,} training images were cut off to set the threshold: for "
        f"{sheets.either(found['passes_on_val'] for _, found in files)} passes per image. These are figures of the "
        f"{n_test:,} test images. What all heads gain over the first is a few hundred images at most, so the share of "
        "it that is kept has a wide interval: 95 %, by bootstrap over the test images, for these networks and "
        "thresholds; what other seeds would give is not in it.",
        bare("anytime", COLUMNS, [row_of(found) for _, found in files]),
        "\n".join(note_of(path, found) for path, found in files),
    ]
    return "\n\n".join(said)


def anytime_in_brief(results):
    """The same for README: pretrained networks, which stand last, beside those trained from nothing."""
    files = read(results)
    if not files:
        return "What anytime prediction keeps is not measured yet: `python benchmarks/anytime_speed.py`."
    *others, tuned = (found for _, found in files)
    faster = mean(tuned, "anytime", "images_per_second") / mean(tuned, "full", "images_per_second")
    spent = span([mean(found, "anytime", "passes") for found in (*others, tuned)], 2)
    gains, shares = span([gain(found) for found in others], 1), span([percent(found) for found in others], 0)
    return (
        f"More heads only where the first is not sure (`transnet predict --confidence`), T3 on CIFAR-100, {spent} "
        f"passes per image. All heads together gain {gains} points over the first in networks trained "
        f"from nothing, of which {shares} % were kept, and {gain(tuned):.1f} in those fine-tuned from ImageNet's "
        f"weights, of which {kept(tuned)} % were kept ({repeated(len(tuned['runs']))}; in brackets 95 % over test "
        f"images), at {faster:.2f} times the images a second of all heads "
        "([docs/results.md](docs/results.md#as-many-heads-as-an-image-needs) has them one by one)."
    )


def span(values, digits):
    """From the lowest to the highest."""
    low, high = (f"{pick(values):.{digits}f}" for pick in (min, max))
    return low if low == high else f"{low} to {high}"


def gain(found):
    """Points by which all heads are ahead of the first."""
    return 100 * (mean(found, "full", "accuracy") - mean(found, "first head", "accuracy"))


def read(results):
    """The files and what is in them; none where not all are there."""
    paths = [results / f"{name}_h200.json" for name in FILES]
    return [(path, json.loads(path.read_text())) for path in paths] if all(path.exists() for path in paths) else []


def title(found):
    """How the runs were trained, as far as that tells them apart."""
    run, n = found["runs"][0], len(found["runs"])
    words = [run["model"]]
    words += ["pretrained"] if run.get("pretrained") else []
    words += [f"{run['image_size']}×{run['image_size']} pixels"] if run.get("image_size") else []
    words.append(f"{run['epochs']} epochs")
    words += [f"CutMix α {run['cutmix']:g}"] if run["cutmix"] else []
    words += [] if run["label_smoothing"] else ["no label smoothing"]
    words += ["taught"] if run["distillation"] else []
    return ", ".join([*words, repeated(n)])


def repeated(n):
    """How many runs a figure stands for."""
    return "one seed" if n == 1 else f"n = {n}"


def mean(found, way, what):
    """Over the runs, of a way to predict."""
    return statistics.fmean(run["rows"][way][what] for run in found["runs"])


def percent(found):
    """Of the gain that is kept."""
    return 100 * found["share_of_gain_kept"]


def kept(found):
    """The share in percent, with its interval where there is one."""
    text = f"{percent(found):.1f}"
    if not found["interval"]:
        return text
    low, high = found["interval"]
    return f"{text} [{100 * low:.1f}, {100 * high:.1f}]"


def row_of(found):
    """A row: means over the runs."""
    accuracies = [f"{100 * mean(found, way, 'accuracy'):.2f}" for way in WAYS]
    passes = f"{mean(found, 'anytime', 'passes'):.3f}"
    return tuple(sheets.Cell(text) for text in (title(found), *accuracies, passes, kept(found)))


def note_of(path, found):
    """What does not fit in the row: every run's share, speed, and where it comes from."""
    one, some, every = (f"{mean(found, way, 'images_per_second'):,.0f}" for way in WAYS)
    words = [f"{title(found)}: {some} images a second, against {one} with the first head and {every} with all"]
    if len(found["runs"]) > 1:
        each = ", ".join(f"{100 * run['share_of_gain_kept']:.1f}" for run in found["runs"])
        words.append(f"its runs keep {each} %")
    if all(run.get("val") for run in found["runs"]):
        means = [statistics.fmean(run["val"]["accuracy"][i] for run in found["runs"]) for i in range(len(WAYS))]
        words.append(
            f"on the {found['runs'][0]['n_val']:,} images that set the threshold {100 * share_kept(*means):.1f} %"
        )
    made = made_with(found["device"], found["versions"]["torch"], found["commit"])
    remark = f" {found['remark']}" if "remark" in found else ""
    return f"- {'; '.join(words)}. {made} ([results/{path.name}](results/{path.name})).{remark}"
