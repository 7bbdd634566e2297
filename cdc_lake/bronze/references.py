"""What the references of one topic mean: which kind of id its numbers are, and whether a schema is this topic's at all.

Apicurio counts contents and versions apart, and a number looked up as the wrong kind of id is often another table's
schema, which may even read the bytes. So the kind is settled on samples: the schema's record is named after the topic,
and it consumes the bytes to the last. Once settled it stays (bronze's progress holds it); and a schema that belongs to
another table never decodes a record of this one. docs/explanation/bronze.md "Which schema".
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from cdc_lake.bronze.decide import said
from cdc_lake.bronze.explain import reads
from cdc_lake.decode.framing import NUMBERED, id_of
from cdc_lake.decode.records import WriterSchema
from cdc_lake.decode.schemas import SchemaError

LookUp = Callable[[str, str], Sequence[WriterSchema]]
"""From kind and id to the schemas that they mean or have meant, the newest first."""
Samples = Callable[[Collection[str]], Mapping[str, Sequence[bytes]]]
"""From references to a few bodies of each."""

_OWN_NAMES = re.compile(r"(?P<owner>.+)\.(Key|Value|Envelope)")


@dataclass(frozen=True)
class Names:
    """Whose schemas a topic's records may be written with.

    Attributes:
        topic: its own name, which Debezium names records after.
        accepted: the owners that were found in it first; empty before that.
        allowed: globs from the settings.
    """

    topic: str
    accepted: Sequence[str] = ()
    allowed: Sequence[str] = ()

    def fit(self, schema: WriterSchema) -> bool:
        """Whether the schema is one of the topic's own; a schema that is named after nothing is anyone's."""
        owner = owner_of(schema)
        if owner is None or owner in self.accepted or _plain(owner) == _plain(self.topic):
            return True
        return any(fnmatchcase(owner, glob) for glob in self.allowed)


@dataclass
class Resolved:
    """What was found out.

    Attributes:
        meanings: reference -> the schemas that it may mean.
        problems: reference -> why its records cannot be read, for the others.
        kinds: frame -> the kind of id that its numbers are, as far as that is settled.
        owners: what the topic's records are named after; empty as long as no schema says it.
    """

    meanings: dict[str, Sequence[WriterSchema]] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
    owners: tuple[str, ...] = ()


def owner_of(schema: WriterSchema) -> str | None:
    """What a schema's record is named after: of Debezium's, the table; none of control records and unnamed ones."""
    try:
        tree = schema.tree
        if tree["type"] != "record" or schema.format not in ("avro", "connect", "json-schema"):
            return None
        if schema.shape == "control":
            return None
    except SchemaError:
        return None  # refused; its records are told so
    named = _OWN_NAMES.fullmatch(tree["name"])
    return named["owner"] if named else tree["name"]


def resolve(
    references: Iterable[str],
    *,
    names: Names,
    kinds: Sequence[str],
    settled: Mapping[str, str],
    look_up: LookUp,
    samples: Samples,
) -> Resolved:
    """Find out what references mean.

    Args:
        references: of the keys, or of the values, of one topic.
        names: whose schemas they may be.
        kinds: the kinds of id that a bare number may be in this registry, the likelier first.
        settled: frame -> the kind of id that its numbers are, as found before.
        look_up: the registry and the lake's own memory of it.
        samples: asked only while a kind is not settled.
    """
    found = Resolved(kinds=dict(settled))
    by_kind: dict[str, list[str]] = {}
    for reference in sorted(set(references)):
        by_kind.setdefault(reference.partition(":")[0], []).append(reference)
    chosen: dict[str, Sequence[WriterSchema]] = {}
    for kind, several in by_kind.items():
        if kind not in NUMBERED:
            chosen |= {one: look_up(kind, id_of(one)) for one in several}
        elif kind in settled or len(kinds) == 1:
            real = settled.get(kind, kinds[0])
            found.kinds[kind] = real
            chosen |= {one: look_up(real, id_of(one)) for one in several}
        else:
            answers = {one: {kind: look_up(kind, id_of(one)) for kind in kinds} for one in several}
            settled_as, read, found_problems = _settle(answers, names, samples(several) if kinds else {})
            found.kinds |= {kind: settled_as} if settled_as else {}
            chosen |= read
            found.problems |= found_problems
    _keep_own(chosen, names, found)
    return found


def _settle(
    answers: Mapping[str, Mapping[str, Sequence[WriterSchema]]], names: Names, bodies: Mapping[str, Sequence[bytes]]
) -> tuple[str | None, dict[str, Sequence[WriterSchema]], dict[str, str]]:
    """Find out as what kind of id references give a schema that reads the samples.

    Args:
        answers: reference -> kind -> the schemas that it would mean.
        names: whose schemas they may be.
        bodies: reference -> samples.

    Returns:
        The kind, if all that can tell agree; reference -> its schemas; reference -> why its records cannot be read.
    """
    every = [schema for by_kind in answers.values() for several in by_kind.values() for schema in several]
    # Where nothing is named after the topic, names say nothing.
    is_named = any(owner_of(schema) is not None and names.fit(schema) for schema in every)
    fitting = {
        one: {
            kind: several
            for kind, several in by_kind.items()
            if any(
                (not is_named or names.fit(s)) and all(reads(s, body) for body in bodies.get(one, ())) for s in several
            )
        }
        for one, by_kind in answers.items()
    }
    votes = {next(iter(by_kind)) for by_kind in fitting.values() if len(by_kind) == 1}
    voted = next(iter(votes)) if len(votes) == 1 else None
    chosen: dict[str, Sequence[WriterSchema]] = {}
    problems: dict[str, str] = {}
    for one, by_kind in fitting.items():
        if len(by_kind) > 1 and len({tuple(several) for several in by_kind.values()}) > 1:
            if voted is None:
                problems[one] = (
                    f"{said(one)} is a schema of this topic both as {' and as '.join(by_kind)}: set registry.ids"
                )
                continue
            by_kind = {voted: by_kind[voted]} if voted in by_kind else {}
        # None fits: the likeliest is taken, and the records are told that it does not.
        exists = {kind: several for kind, several in answers[one].items() if several}
        chosen[one] = next(iter((by_kind or exists).values()), ())
    return voted, chosen, problems


def _keep_own(chosen: Mapping[str, Sequence[WriterSchema]], names: Names, found: Resolved) -> None:
    """Leave out schemas of other tables."""
    owned = {owner: one for several in chosen.values() for one in several if (owner := owner_of(one)) is not None}
    if not names.accepted:
        # The first schemas say how the topic's records are named: after the topic, or after something else.
        first = {owner for owner, one in owned.items() if names.fit(one)} or owned.keys()
        names = Names(names.topic, tuple(sorted(first)), names.allowed)
    found.owners = tuple(names.accepted)
    for reference, several in chosen.items():
        own = tuple(schema for schema in several if names.fit(schema))
        if own:
            found.meanings[reference] = own
        elif several:
            found.problems[reference] = (
                f"{said(reference)} is the schema `{several[0].tree['name']}`, which is not this topic's: registry.ids "
                "may be wrong, or the table's record_names have to allow it"
            )
        else:
            found.problems[reference] = f"{said(reference)} is not in the registry"


def _plain(name: str) -> str:
    """A name as far as it survives Debezium's adjustment to what Avro allows."""
    return re.sub(r"[^A-Za-z0-9.]", "_", name).replace("._", ".").strip("_")
