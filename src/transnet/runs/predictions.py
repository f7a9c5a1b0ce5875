"""``RUN/predictions.npz``: a run's logits on its test images, as a file that outlives the weights.

Ensembles, calibration and early exit are measured from it, also for runs that were trained on different machines.
"""

import io
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from transnet.errors import FileError
from transnet.runs.files import write_atomically

NAME = "predictions.npz"
_LARGEST = 4 * 2**30  # bytes, uncompressed


@dataclass(frozen=True)
class Predictions:
    """The logits of every head on every test image."""

    heads: tuple[str, ...]  # the transforms, in order
    scores: np.ndarray  # (N, m, K) in float16, on the images as they are
    scores_flip: np.ndarray | None  # with flip TTA, the mean over an image and its horizontal flip
    labels: np.ndarray  # (N,)
    model_sha256: str  # of the weights that the scores come from, as in result.json
    fingerprint: str  # of the data, as in config.json

    def write(self, path: Path) -> None:
        """Write the file; it is either complete or absent."""
        flip = {} if self.scores_flip is None else {"scores_with_flip": self.scores_flip.astype(np.float16)}
        content = io.BytesIO()
        np.savez_compressed(
            content, heads=np.array(self.heads), scores=self.scores.astype(np.float16), labels=self.labels,
            model_sha256=np.array(self.model_sha256), data_fingerprint=np.array(self.fingerprint),
            **flip,  # type: ignore[arg-type]
        )  # fmt: skip
        write_atomically(path, content.getvalue())

    @classmethod
    def read(cls, path: Path) -> "Predictions":
        """Read the file, which may come from anywhere."""
        if not path.is_file():
            raise FileError(f"{path} does not exist; evaluate the run with `save_predictions` to write it")
        try:
            with zipfile.ZipFile(path) as archive:
                if sum(item.file_size for item in archive.infolist()) > _LARGEST:
                    raise ValueError(f"more than {_LARGEST:,} bytes")
            with np.load(path, allow_pickle=False) as file:
                found = cls(
                    heads=tuple(str(name) for name in file["heads"]),
                    scores=file["scores"],
                    scores_flip=file.get("scores_with_flip"),
                    labels=file["labels"],
                    model_sha256=str(file["model_sha256"]),
                    fingerprint=str(file["data_fingerprint"]),
                )
            found._check()
        except Exception as error:  # zipfile, zlib and numpy raise errors of many kinds for a damaged file
            raise FileError(f"{path} is damaged or of another kind ({error!r})") from None
        return found

    def _check(self) -> None:
        labels, classes = self.labels, self.scores.shape[-1]
        for scores in (self.scores, self.scores_flip):
            shape = (len(labels), len(self.heads), classes)
            if scores is not None and (scores.shape != shape or scores.dtype.kind != "f"):
                raise ValueError("its arrays do not belong together")
        if labels.ndim != 1 or labels.dtype.kind not in "iu" or not ((labels >= 0) & (labels < classes)).all():
            raise ValueError("some labels belong to no class")
