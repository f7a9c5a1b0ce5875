"""The class scores of a run on its test images, as a file that outlives the weights.

``RUN/predictions.npz`` holds what ensembles, calibration and early exit need, so these can be measured without the
weights, and for runs that were trained on different machines.
"""

import io
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from transnet.errors import FileError
from transnet.runs.files import write_atomically

if TYPE_CHECKING:
    import numpy as np

NAME = "predictions.npz"
LARGEST = 4 * 2**30  # bytes, uncompressed


@dataclass(frozen=True)
class Predictions:
    """The logits of every head on every test image.

    Attributes:
        heads: the transforms' names, in order.
        scores: (N, m, K) in float16, on the images as they are.
        scores_flip: the same for flip TTA, the mean over an image and its horizontal flip; None if training does not
            flip.
        labels: (N,).
        model_sha256: the hash of the weights that they come from, as in ``result.json``.
        fingerprint: the data's, as in ``config.json``.
    """

    heads: tuple[str, ...]
    scores: "np.ndarray"
    scores_flip: "np.ndarray | None"
    labels: "np.ndarray"
    model_sha256: str
    fingerprint: str

    def save(self, path: Path) -> None:
        """Write the file; it is either complete or absent."""
        import numpy as np

        flip = {} if self.scores_flip is None else {"scores_with_flip": self.scores_flip.astype(np.float16)}
        content = io.BytesIO()
        np.savez_compressed(
            content,
            heads=np.array(self.heads),
            scores=self.scores.astype(np.float16),
            labels=self.labels,
            model_sha256=np.array(self.model_sha256),
            data_fingerprint=np.array(self.fingerprint),
            **flip,  # type: ignore[arg-type]
        )
        write_atomically(path, content.getvalue())

    @classmethod
    def load(cls, path: Path) -> "Predictions":
        """Read the file, which may come from anywhere.

        Raises:
            FileError: if it is missing, damaged or of another kind.
        """
        import numpy as np

        if not path.is_file():
            raise FileError(f"{path} does not exist; evaluate the run with `save_predictions` to write it")
        try:
            with zipfile.ZipFile(path) as archive:
                if sum(item.file_size for item in archive.infolist()) > LARGEST:
                    raise FileError(f"{path} holds more than {LARGEST:,} bytes")
            with np.load(path, allow_pickle=False) as file:
                found = cls(
                    heads=tuple(str(name) for name in file["heads"]),
                    scores=file["scores"],
                    scores_flip=file.get("scores_with_flip"),
                    labels=file["labels"],
                    model_sha256=str(file["model_sha256"]),
                    fingerprint=str(file["data_fingerprint"]),
                )
        except FileError:
            raise
        except Exception as error:  # zipfile, zlib and numpy raise errors of many kinds for a damaged file
            raise FileError(f"{path} is damaged or of another kind ({error!r})") from None
        found._check(path)
        return found

    def _check(self, path: Path) -> None:
        shape = (len(self.labels) if self.labels.ndim == 1 else -1, len(self.heads))
        for scores in (self.scores, self.scores_flip):
            if scores is None:
                continue
            if scores.ndim != 3 or scores.shape[:2] != shape or scores.shape != self.scores.shape:
                raise FileError(f"{path} is damaged: its arrays do not belong together")
            if scores.dtype.kind != "f":
                raise FileError(f"{path} is damaged: its scores are not numbers")
        if self.labels.dtype.kind not in "iu" or not ((self.labels >= 0) & (self.labels < self.scores.shape[2])).all():
            raise FileError(f"{path} is damaged: some labels belong to no class")
