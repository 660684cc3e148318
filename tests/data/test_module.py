"""The data module under a real Trainer: rank placement, validation, and resumption from any checkpoint."""

import lightning
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from sparrow.data.loader import PromptLoader
from sparrow.data.module import PromptDataModule
from sparrow.data.prompts import PromptCounts
from sparrow.data.schema import PromptRow

# Lightning 2.6 uses what torch 2.13 deprecates.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec.:FutureWarning"),
    # A resumed test run writes its checkpoints to another folder than the run it continues.
    pytest.mark.filterwarnings("ignore:The dirpath has changed from:UserWarning"),
]

COUNT, STEP, EPOCHS = 11, 4, 3
BATCHES = COUNT // STEP * EPOCHS


class Rows:
    """Counted rows; reads are counted too."""

    def __init__(self, train=COUNT, validation=5):
        self.train, self.validation, self.reads = train, validation, 0

    def train_rows(self):
        self.reads += 1
        return [row(index) for index in range(self.train)]

    def validation_rows(self):
        return [row(100 + index) for index in range(self.validation)]


class Characters:
    """A tokenizer of one character a token."""

    chat_template = None

    def encode(self, text, *, add_special_tokens):
        return [ord(character) for character in text]


class Recorder(lightning.LightningModule):
    """One counted optimizer step a batch; remembers what it was given."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.seen, self.validated = [], []

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def training_step(self, batch, batch_idx):
        self.seen.append([prompt.row.extra_info["index"] for prompt in batch["prompts"]])
        return self.weight.sum()

    def validation_step(self, batch, batch_idx):
        self.validated += [prompt.row.extra_info["index"] for prompt in batch["prompts"]]


def row(index):
    messages = [{"role": "user", "content": str(index)}]
    return PromptRow("a", messages, {"style": "rule", "ground_truth": "1"}, "", {"index": index})


def data(seed=5, source=None, **options):
    return PromptDataModule(source or Rows(), Characters(), STEP, seed, template="plain", **options)


def trainer(folder, *callbacks, **options):
    return lightning.Trainer(
        accelerator="cpu", devices=1, max_epochs=EPOCHS, callbacks=list(callbacks), default_root_dir=folder,
        logger=False, enable_progress_bar=False, enable_model_summary=False, use_distributed_sampler=False, **options,
    )  # fmt: skip


def fit(folder, seed=5, ckpt_path=None, **options):
    module = Recorder()
    every_step = ModelCheckpoint(folder, "step-{step}", save_top_k=-1, every_n_train_steps=1)
    every_epoch = ModelCheckpoint(folder, "epoch-{epoch}", save_top_k=-1, save_on_train_epoch_end=True)
    runner = trainer(folder, every_step, every_epoch, **options)
    runner.fit(module, datamodule=data(seed), ckpt_path=ckpt_path)
    return module.seen


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """Batches of an uninterrupted run, which leaves a checkpoint of every step and of every epoch's end."""
    folder = tmp_path_factory.mktemp("straight")
    return folder, fit(folder, limit_val_batches=0)


def test_every_epoch_has_another_order_and_drops_the_tail(straight):
    _, seen = straight
    assert len(seen) == BATCHES
    assert seen[:2] != seen[2:4] != seen[4:6]
    assert all(len({*seen[start], *seen[start + 1]}) == 8 for start in (0, 2, 4))


@pytest.mark.parametrize("step", range(1, BATCHES))
def test_resume_from_every_step_equals_the_uninterrupted_run(straight, step, tmp_path):
    folder, seen = straight
    (checkpoint,) = folder.glob(f"step-step={step}.ckpt")
    assert fit(tmp_path, seed=99, ckpt_path=checkpoint, limit_val_batches=0) == seen[step:]


@pytest.mark.parametrize("epoch", range(EPOCHS - 1))
def test_resume_from_an_epochs_end_equals_the_uninterrupted_run(straight, epoch, tmp_path):
    folder, seen = straight
    (checkpoint,) = folder.glob(f"epoch-epoch={epoch}.ckpt")
    assert fit(tmp_path, seed=99, ckpt_path=checkpoint, limit_val_batches=0) == seen[2 * (epoch + 1) :]


def test_resume_with_another_step_size_is_refused_at_an_epochs_end_too(straight, tmp_path):
    folder, _ = straight
    (checkpoint,) = folder.glob("epoch-epoch=0.ckpt")
    other = PromptDataModule(Rows(), Characters(), 2, 5, template="plain")
    with pytest.raises(ValueError, match="prompts_per_step was 4 when the checkpoint was written and is 2 now"):
        trainer(tmp_path, limit_val_batches=0).fit(Recorder(), datamodule=other, ckpt_path=checkpoint)


def test_validation_inside_an_epoch_does_not_move_the_training_order(straight, tmp_path):
    _, seen = straight
    assert fit(tmp_path, val_check_interval=1) == seen


def test_validation_takes_every_row_once_in_order(tmp_path):
    module = Recorder()
    trainer(tmp_path).validate(module, datamodule=data(validation_prompts_per_step=2), verbose=False)
    assert module.validated == [100, 101, 102, 103, 104]
    short = Recorder()
    trainer(tmp_path).validate(short, datamodule=data(max_validation_prompts=3), verbose=False)
    assert short.validated == [100, 101, 102]


def test_rank_and_world_size_come_from_the_trainer():
    class Place:
        global_rank, world_size = 1, 2

    module = data()
    module.trainer = Place()
    module.setup("fit")
    loader = module.train_dataloader()
    assert isinstance(loader, PromptLoader)
    assert (loader.rank, loader.world_size) == (1, 2)
    assert (module.val_dataloader().rank, module.val_dataloader().world_size) == (1, 2)


def test_setup_reads_once_and_counts():
    source = Rows()
    module = data(source=source)
    module.setup("fit")
    module.setup("fit")
    assert source.reads == 1
    assert module.counts == {"train": PromptCounts(11, 11, 0, 1, 2), "validation": PromptCounts(5, 5, 0, 3, 3)}


def test_validate_alone_reads_no_training_rows():
    source = Rows()
    data(source=source).setup("validate")
    assert source.reads == 0


def test_no_held_out_rows_is_allowed():
    module = data(source=Rows(validation=0))
    module.setup("fit")
    assert module.val_dataloader() == []


@pytest.mark.parametrize("value", [0, -1])
@pytest.mark.parametrize(
    "name", ["prompts_per_step", "validation_prompts_per_step", "max_prompt_tokens", "max_validation_prompts"]
)
def test_numbers_below_one_are_refused(name, value):
    """A slice up to -1 would leave the last problem out, and a size of 0 would be taken for none given."""
    with pytest.raises(ValueError, match=f"data.{name}={value} is not allowed; allowed: 1 or more"):
        PromptDataModule(Rows(), Characters(), **({"prompts_per_step": STEP, "seed": 0} | {name: value}))
