"""Everything that is wrong with a group, and what is remarkable about it. Reads the model's config, else pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

from pdcore.group.connectors import BadConnector, written_connector
from pdcore.group.finding import Finding, SpecRefused, refused
from pdcore.group.model_config import ModelConfig, NoModelConfig, is_path, read_model_config
from pdcore.group.modes.catalogue import catalogue
from pdcore.group.spec import GroupSpec
from pdcore.group.validation import (
    advice,
    caches,
    environment,
    launching,
    native,
    pairing,
    parallel,
    routers,
    structure,
)
from pdcore.group.validation.replaced import explained
from pdcore.group.validation.subject import Subject, path_of

_RULES: Final = (
    structure.findings,
    routers.findings,
    caches.findings,
    native.findings,
    pairing.findings,
    parallel.findings,
    environment.findings,
    launching.findings,
    advice.findings,
)


def check(spec: GroupSpec, *, vendors: Collection[str] | None = None) -> tuple[Finding, ...]:
    """Every finding about ``spec``, refusals first; ``vendors`` are those of the cluster's accelerators where known."""
    found: list[Finding] = []
    model = _model(spec, found)
    subject = Subject.of(spec, catalogue(), model=model, vendors=vendors)
    found += examine(subject)
    return tuple(sorted(found, key=lambda finding: finding.severity != "refused"))


def examine(subject: Subject) -> Iterator[Finding]:
    """The same for a subject whose model is already known."""
    for rule in _RULES:
        yield from (explained(subject, finding) for finding in rule(subject))
    yield from _connectors(subject)


def accepted(spec: GroupSpec, *, vendors: Collection[str] | None = None) -> tuple[Finding, ...]:
    """The advice about ``spec``; SpecRefused with every reason when there are any against it."""
    found = check(spec, vendors=vendors)
    if against := refused(found):
        raise SpecRefused(against)
    return found


def _model(spec: GroupSpec, found: list[Finding]) -> ModelConfig | None:
    """The model's config; where it has to be readable and is not, a finding. Others may lie on other machines."""
    native_engines = spec.mode == "pdcore"
    if not native_engines and not is_path(spec.model):
        return None
    try:
        return read_model_config(Path(spec.model).expanduser())
    except NoModelConfig as wrong:
        found.append(
            Finding(
                code="model_missing" if native_engines else "model_unreadable",
                path="model",
                message=str(wrong),
                remedy="write a directory that has a config.json; pdcore demo-model makes a small one"
                if native_engines
                else "check the group where the model is, so that nothing stays unverified",
                values={"given": spec.model},
                severity="refused" if native_engines else "advisory",
            )
        )
        return None


def _connectors(subject: Subject) -> Iterator[Finding]:
    for role in subject.engines:
        if role.backend != "vllm":
            continue
        try:
            written_connector(role.flags)
        except BadConnector as wrong:
            yield Finding(
                code="kv_transfer_config_invalid",
                path=path_of(role, "backend_parameters"),
                message=f"--kv-transfer-config of {role.name}: {wrong}",
                remedy="write one JSON object, or remove it and let the mode write its own",
                values={"role": role.name},
            )
