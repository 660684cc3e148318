"""Rows of parquet or JSONL files, and of hub data sets, as sources."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sparrow.data.mappings import get_mapping
from sparrow.data.readers import Choice, Mapper, read_hub, read_rows
from sparrow.data.schema import PromptRow


@dataclass(frozen=True)
class Files:
    """Rows of files in the common schema, or in a layout that a mapping knows.

    Attributes:
        train: paths of training files (.parquet or .jsonl), read in order.
        validation: paths of held-out files.
        mapping: name of a layout in `sparrow.data.mappings`, for the training files; None for the common schema.
        validation_mapping: the same for the held-out files.
        drop: columns to leave out, of any file.
        where: takes only rows whose column contains a text, of any file.
        distinct: leaves out rows of a file whose messages have come before in it.
    """

    train: Sequence[str] = ()
    validation: Sequence[str] = ()
    mapping: str | None = None
    validation_mapping: str | None = None
    drop: Sequence[str] = ()
    where: Mapping[str, str] = field(default_factory=dict)
    distinct: bool = False

    def train_rows(self) -> list[PromptRow]:
        """The rows of all training files."""
        return self._rows(self.train, self.mapping)

    def validation_rows(self) -> list[PromptRow]:
        """The rows of all held-out files."""
        return self._rows(self.validation, self.validation_mapping)

    def _rows(self, paths: Sequence[str], mapping: str | None) -> list[PromptRow]:
        if isinstance(paths, str):
            raise TypeError(f"files {paths!r} is one text; allowed: a list of paths")
        mapper, choice = _mapper(mapping), Choice(self.drop, self.where, self.distinct)
        return [row for path in paths for row in read_rows(path, mapping=mapper, choice=choice)]


@dataclass(frozen=True)
class Hub:
    """Rows of data sets that `datasets.load_dataset` finds.

    Attributes:
        train: hub name or folder of the training set; None for none.
        validation: the same of the held-out set; None for none.
        train_split: its split.
        validation_split: its split.
        train_config: its configuration, if it has several.
        validation_config: its configuration, if it has several.
        validation_files: take only these JSONL files of the held-out set; for sets with a loading script.
        mapping: name of a layout in `sparrow.data.mappings`; None for the common schema.
        validation_mapping: the same for the held-out set.
        drop: columns to leave out.
        where: takes only rows whose column contains a text.
        distinct: leaves out rows whose messages have come before.
    """

    train: str | None = None
    validation: str | None = None
    train_split: str = "train"
    validation_split: str = "test"
    train_config: str | None = None
    validation_config: str | None = None
    validation_files: Sequence[str] | None = None
    mapping: str | None = None
    validation_mapping: str | None = None
    drop: Sequence[str] = ()
    where: Mapping[str, str] = field(default_factory=dict)
    distinct: bool = False

    def __post_init__(self) -> None:
        if self.train is None and self.validation is None:
            raise ValueError("train and validation are both null; allowed: at least one data set")

    def train_rows(self) -> list[PromptRow]:
        """The rows of the training set; none if it has no name."""
        if self.train is None:
            return []
        return read_hub(
            self.train, self.train_split, config=self.train_config, mapping=_mapper(self.mapping), choice=self._choice
        )

    def validation_rows(self) -> list[PromptRow]:
        """The rows of the held-out set; none if it has no name."""
        if self.validation is None:
            return []
        return read_hub(
            self.validation,
            self.validation_split,
            config=self.validation_config,
            data_files=self.validation_files,
            mapping=_mapper(self.validation_mapping),
            choice=self._choice,
        )

    @property
    def _choice(self) -> Choice:
        return Choice(self.drop, self.where, self.distinct)


def _mapper(name: str | None) -> Mapper | None:
    return None if name is None else get_mapping(name)
