"""Prompts that ask for long texts: what a calibration of a real model samples from where no data set is at hand.

Each is a briefing of several hundred tokens about one subject and the order to write a document of many sections from
it, closed by a number that a verifier can read. Briefings are composed, not stored: row `index` of a seed is a pure
function of (seed, index). Subjects belong to one side, so that held-out prompts share no subject with the others.
"""

import hashlib
from dataclasses import dataclass
from random import Random

from sparrow.data.schema import PromptRow

DATA_SOURCE = "sparrow/numeric"
"""How the closing number is judged; the set itself is named in `extra_info`."""
SET_NAME = "sparrow/long_texts"

SUBJECTS = {
    "train": (
        "a harbour that silts up", "a bakery that works at night", "an orchard on a steep slope", "a small observatory",
        "a railway over a marsh", "a library moving house", "a workshop for old clocks", "a mountain weather station",
        "a school without bells", "a ferry between two islands", "a paper mill by a river", "a theatre under repair",
        "a beekeeper in a city", "a glacier that is being measured", "a market hall in winter", "an archive of maps",
    ),
    "held_out": (
        "a lighthouse run by three families", "a vineyard after hail", "a museum of locks", "a village well",
        "a night bus line", "a school orchestra on tour", "a quarry turned into a lake", "a repair shop for radios",
    ),
}  # fmt: skip
FORMS = (
    "a handbook for newcomers", "a report to the town council", "a diary kept over one year",
    "a series of long letters", "a history told by several people", "a plan with arguments for and against each step",
)  # fmt: skip
FACTS = (
    "About {many} people depend on it, and most of them have never seen the accounts.",
    "The oldest part was finished {many} years ago; nobody is sure who paid for it.",
    "In spring the work doubles, and {few} helpers come from the next valley.",
    "A storm took away the roof once, and the repair was meant to last {few} months but has lasted ever since.",
    "There are {few} rules on the door, of which the last one has been crossed out by hand.",
    "Every {few} days somebody proposes to close it, and every time somebody else brings soup.",
    "The measurements are written in pencil, because ink froze in the winter of the big flood.",
    "One room is always locked; the key is in a tin with {many} other keys.",
    "The neighbours complain about the noise and set their watches by it.",
    "A newspaper once called it the most patient place in the country.",
    "Money comes from {few} sources, and each of them wants to see a different result.",
    "The youngest member keeps a list of questions, which by now has {many} entries.",
)
SECTIONS = (
    "what a visitor sees first", "how a usual day goes", "the people and what they argue about", "tools and materials",
    "what went wrong and what was learned", "costs, in detail", "the view of someone who disagrees",
    "what should change next year", "advice for whoever comes after",
)  # fmt: skip


@dataclass(frozen=True)
class LongTexts:
    """Orders for long documents, training and held-out ones about different subjects.

    Attributes:
        count: training rows.
        validation_count: held-out rows.
        facts: sentences of each briefing, up to 12.
        sections: sections that are asked for, up to 9.
        seed: of all draws.

    Raises:
        ValueError: more facts or sections than there are, or none; or a negative number of rows.
    """

    count: int = 64
    validation_count: int = 32
    facts: int = 8
    sections: int = 7
    seed: int = 0

    def __post_init__(self) -> None:
        for key, value, most in (("facts", self.facts, len(FACTS)), ("sections", self.sections, len(SECTIONS))):
            if not 1 <= value <= most:
                raise ValueError(f"data.source.{key}={value}: must be from 1 to {most}")
        for key, value in (("count", self.count), ("validation_count", self.validation_count)):
            if value < 0:
                raise ValueError(f"data.source.{key}={value}: must be 0 or more")

    def train_rows(self) -> list[PromptRow]:
        """`count` rows."""
        return [self._row("train", index) for index in range(self.count)]

    def validation_rows(self) -> list[PromptRow]:
        """`validation_count` rows."""
        return [self._row("held_out", index) for index in range(self.validation_count)]

    def _row(self, side: str, index: int) -> PromptRow:
        digest = hashlib.sha256(f"{SET_NAME}/{self.seed}/{side}/{index}".encode()).digest()
        random = Random(int.from_bytes(digest[:8], "big"))
        subjects = SUBJECTS[side]
        subject = subjects[index % len(subjects)]
        facts = [
            fact.format(few=random.randint(3, 9), many=random.randint(20, 400))
            for fact in random.sample(FACTS, self.facts)
        ]
        sections = random.sample(SECTIONS, self.sections)
        order = (
            f"Write {random.choice(FORMS)} about {subject}. Use what is known:\n\n{' '.join(facts)}\n\n"
            f"Write {self.sections} long sections, each of at least {random.randint(5, 9)} full paragraphs: "
            f"{'; '.join(sections)}. Give names, places, dates and figures, and let later sections refer to earlier "
            f"ones. At the very end state the number of sections as <answer>{self.sections}</answer>."
        )
        fields = {
            "data_source": DATA_SOURCE,
            "prompt": [{"role": "user", "content": order}],
            "ability": "writing",
            "reward_model": {"style": "rule", "ground_truth": str(self.sections)},
            "extra_info": {"split": side, "index": index, "set": SET_NAME, "subject": subject},
        }
        return PromptRow.from_dict(fields, f"long_texts[{side}]:{index}")
