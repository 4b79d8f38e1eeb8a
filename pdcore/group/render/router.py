"""A router member's command line: pdcore's own with its flags, or what the spec's command says. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from pdcore.group.effective import EffectiveRole
from pdcore.group.flags import argv_of
from pdcore.group.modes.mode import CUSTOM, Catalogue, Membership, Mode, RouterRecipe
from pdcore.group.modes.placeholders import Facts, in_text, names_in
from pdcore.group.render.engine import command_words, environment_of, ports_of
from pdcore.group.render.facts import GroupFacts, Peer, Place, facts_of, peer_facts, source_of
from pdcore.group.render.rendered import Note, Problem, Rendered, Word
from pdcore.group.render.unresolved import problems_of


def render_router(
    catalogue: Catalogue,
    mode: Mode,
    group: GroupFacts,
    role: EffectiveRole,
    place: Place,
    peers: Sequence[Peer] | None = None,
) -> Rendered:
    """One router at ``place``. One that does not follow the keyspace is told ``peers``, of both roles at least one;
    None while they are not known."""
    facts = facts_of(catalogue, mode, group, role, place)
    recipe = None if role.run_command is not None else catalogue.router_of(mode)
    told = None if peers is None else sorted(peers, key=lambda one: (one.role, one.ip, one.port))
    argv = _command(mode, role, facts) if recipe is None else _managed(recipe, told, facts)
    argv = (*argv, *_parameters(role, facts))
    env, env_notes = environment_of((), role, facts)
    ports = ports_of(catalogue, mode, role, place)
    return Rendered(
        role=role.name,
        argv=argv,
        env=env,
        ports=ports,
        notes=(*(_users(mode) if recipe is None else ()), *env_notes),
        problems=(*_nobody(recipe, told), *problems_of(argv, env, (), ports)),
    )


def membership_of(mode: Mode, router: EffectiveRole) -> Membership:
    """How its members become known to a router; one that the spec starts by a command is told by hand."""
    return "manual" if router.run_command is not None else mode.membership


def _managed(recipe: RouterRecipe, peers: Sequence[Peer] | None, facts: Facts) -> tuple[Word, ...]:
    texts = (*recipe.entrypoint, *recipe.connection_args, *recipe.args)
    own = tuple(Word(in_text(text, facts), source_of(list(names_in(text)))) for text in texts)
    return (*own, *_peers(recipe, peers))


def _peers(recipe: RouterRecipe, peers: Sequence[Peer] | None) -> tuple[Word, ...]:
    """What it is told of each; of one each, with its placeholders, where they are not known yet."""
    found: list[Word] = []
    for role, texts in recipe.peers.items():
        told = [{}] if peers is None else [peer_facts(one) for one in peers if one.role == role]
        found += [Word(in_text(text, facts), "derived") for facts in told for text in texts]
    return tuple(found)


def _nobody(recipe: RouterRecipe | None, peers: Sequence[Peer] | None) -> tuple[Problem, ...]:
    if recipe is None or peers is None:
        return ()
    there = {peer.role for peer in peers}
    return tuple(
        Problem(f"peers: there is no {role} member to tell it of")
        for role in recipe.peers
        if role not in there
    )


def _command(mode: Mode, role: EffectiveRole, facts: Facts) -> tuple[Word, ...]:
    assert role.run_command is not None, f"mode {mode.name} has a router of ours"
    return command_words(role.run_command, role.sources.get("run_command", "user"), facts)


def _parameters(role: EffectiveRole, facts: Facts) -> tuple[Word, ...]:
    source = role.sources.get("backend_parameters", "user")
    return tuple(Word(in_text(word, facts), source) for word in argv_of(role.backend_parameters or ()))


def _users(mode: Mode) -> tuple[Note, ...]:
    whose = (
        "the spec's command"
        if mode.name == CUSTOM
        else f"the spec's command instead of mode {mode.name}'s router"
    )
    return (Note("router_is_users", f"{whose} is started; tell it of members by hand"),)
