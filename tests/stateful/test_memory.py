"""Layered memory compared with a plain list: a conversation stays whole after any calls."""

from collections.abc import Sequence
from concurrent.futures import wait
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import Phase
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from kit.conversations import Chat, Speaker, id_of, originals, orphans, pairs, texts
from kit.runs import WAIT
from kit.selection import settings_of
from langchain_core.messages import AIMessage, BaseMessage, RemoveMessage
from langgraph.checkpoint.memory import InMemorySaver

from threadkeep import MemorySaver, Retention, SqliteSaver, Tiering, WarmTier
from threadkeep._core.words import tokens
from threadkeep.memory import LayeredCheckpointSaver, Layers

PLACES = st.floats(0, 1, exclude_max=True)


@dataclass
class Version:
    """A checkpoint: its whole conversation, and the view of it."""

    config: Any
    messages: list[BaseMessage]
    view: list[Any]
    collapsed: set[object]


class Conversations(RuleBasedStateMachine):
    """Turns, edits, removals, forks, groups, moves, and the invariants after each."""

    @initialize(
        seed=st.integers(0, 10**6),
        full=st.integers(1, 6),
        batch=st.sampled_from([1, 1, 3]),
        store=st.sampled_from(["foreign", "memory", "file", "file"]),
        by_tokens=st.booleans(),
    )
    def begin(self, *, seed: int, full: int, batch: int, store: str, by_tokens: bool) -> None:
        self.speaker, self.store = Speaker(seed), store
        self.folder = TemporaryDirectory()
        self.inner: Any = InMemorySaver() if store == "foreign" else self.another()
        limits: Any = {"max_tokens": 5 * full, "counter": _count} if by_tokens else {}
        self.policy = Layers(
            full_window=full, summary_window=full + 8, archive_threshold=30, batch=batch, **limits
        )
        self.thread, self.threads = "thread 0", 1
        self.model: list[BaseMessage] = []
        self.versions: list[Version] = []
        self.collapsed: set[object] = set()
        self.is_told, self.has_removed, self.asked = True, False, 0
        self.opened()

    def another(self) -> Any:
        """Open another saver of the store; of another process if the store is a file."""
        path = Path(self.folder.name)
        cold = f"file://{path / 'cold'}"
        if self.store == "file":
            return SqliteSaver(path / "a.db", synchronous="normal", cold=cold)
        return MemorySaver(cold=cold)

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            with self.folder:
                self.memory.close()

    def opened(self) -> None:
        self.memory = LayeredCheckpointSaver(self.inner, self.policy, self.summary)
        self.chat = Chat(self.memory)

    def summary(self, messages: Sequence[BaseMessage], previous: Any) -> str:
        self.asked += 1
        assert self.is_told, "the summarizer is down"
        assert messages
        assert not [one for one in messages if one not in originals([one])], messages
        return f"{len(messages)} messages"

    # -- steps ---------------------------------------------------------------------

    @rule(each=st.booleans())
    def speak(self, *, each: bool) -> None:
        turn = [self.speaker.question(), *self.speaker.replies()]
        self.chat.say(self.thread, turn, each=each)
        self.model = [*self.model, *turn]
        self.check()

    @rule()
    def speak_without_a_summary(self) -> None:
        self.is_told = False
        self.speak(each=False)
        self.is_told = True

    @precondition(lambda self: self.model)
    @rule(place=PLACES, by_graph=st.booleans())
    def edit(self, *, place: float, by_graph: bool) -> None:
        at = int(place * len(self.model))
        one = self.model[at]
        edited = one.model_copy(update={"content": f"{one.content} edited"})
        self.model = [*self.model[:at], edited, *self.model[at + 1 :]]
        if by_graph:
            self.chat.graph.update_state(self.config, {"messages": [edited]}, as_node="model")
        else:
            self.memory.edit(self.thread, [edited])
        self.check()

    @precondition(lambda self: len(self.model) > 1)
    @rule(place=PLACES, by_graph=st.booleans())
    def remove(self, *, place: float, by_graph: bool) -> None:
        at = int(place * len(self.model))
        gone = self.exchange(at)
        ids = [str(one.id) for one in self.model if id_of(one) in gone]
        if len(ids) == len(self.model):
            return
        self.model = [one for one in self.model if id_of(one) not in gone]
        self.has_removed = True
        if by_graph:
            removals = [RemoveMessage(id=one) for one in ids]
            self.chat.graph.update_state(self.config, {"messages": removals}, as_node="model")
        else:
            self.memory.remove(self.thread, ids)
        self.check()

    @precondition(lambda self: self.versions)
    @rule(place=PLACES)
    def go_back(self, *, place: float) -> None:
        version = self.versions[int(place * len(self.versions))]
        turn = [self.speaker.question(), *self.speaker.replies()]
        self.chat.say(version.config, turn)
        self.model = [*version.messages, *turn]
        self.collapsed = version.collapsed
        self.check()

    @precondition(lambda self: self.versions and self.store != "foreign")
    @rule(place=PLACES)
    def fork(self, *, place: float) -> None:
        version = self.versions[int(place * len(self.versions))]
        source, self.thread = self.thread, f"thread {self.threads}"
        self.threads += 1
        id = version.config["configurable"]["checkpoint_id"]
        self.inner.threads.fork(source, id, self.thread)
        self.model, self.versions, self.collapsed = version.messages, [], version.collapsed
        self.check()

    @precondition(lambda self: self.store != "foreign" and self.versions)
    @rule()
    def collect(self) -> None:
        self.inner.threads.gc(Retention(keep_last=1))
        self.versions = []
        self.check()

    @precondition(lambda self: self.store != "foreign" and self.versions)
    @rule(here=st.booleans(), by_age=st.booleans(), back=st.booleans(), then=st.booleans())
    def move_to_the_cold_store(self, *, here: bool, by_age: bool, back: bool, then: bool) -> None:
        saver = self.inner if here or self.store != "file" else self.another()
        if by_age or saver.threads.get(self.thread).state == "archived":
            saver.threads.tier(Tiering(warm=WarmTier(max_age=1e-6)))
        else:
            saver.threads.archive(self.thread)
        if back:
            saver.threads.restore(self.thread)
        if saver is not self.inner:
            saver.close()
        if then:  # (else the next rule would read the thread first)
            self.check()

    @precondition(lambda self: self.store != "foreign" and self.versions)
    @rule()
    def offload(self) -> None:
        if self.inner.threads.get(self.thread).state == "archived":
            self.inner.threads.restore(self.thread)
        self.inner.threads.offload(self.thread, over=1024)
        self.check()

    @precondition(lambda self: self.store != "foreign" and self.versions)
    @rule()
    def copy(self) -> None:
        source, self.thread = self.thread, f"thread {self.threads}"
        self.threads += 1
        self.memory.copy_thread(source, self.thread)
        self.versions = []
        self.check()

    @precondition(lambda self: self.store != "foreign" and self.versions)
    @rule(is_erased=st.booleans())
    def export_and_import(self, *, is_erased: bool) -> None:
        file = Path(self.folder.name) / "t.tkb"
        file.unlink(missing_ok=True)
        self.inner.threads.export_bundle(self.thread, file)
        (self.memory.erase if is_erased else self.memory.delete_thread)(self.thread)
        self.inner.threads.import_bundle(file)
        self.check()

    @precondition(lambda self: self.store != "foreign" and self.versions)
    @rule(goes_on=st.booleans(), takes_fork=st.booleans())
    def fork_and_merge(self, *, goes_on: bool, takes_fork: bool) -> None:
        fork = self.inner.threads.fork(self.thread).id
        turns = [[self.speaker.question(), *self.speaker.replies()] for _ in range(3)]
        self.chat.say(fork, turns[0])
        self.chat.say(fork, turns[1])
        if goes_on:
            self.chat.say(self.thread, turns[2])
        self.inner.threads.merge_fork(fork, self.thread, "theirs" if takes_fork else "ours")
        if takes_fork or not goes_on:
            self.model = [*self.model, *turns[0], *turns[1]]
        else:
            self.model = [*self.model, *turns[2]]
        self.check()

    @precondition(lambda self: self.model)
    @rule(begin=PLACES, length=st.integers(1, 8), by_hand=st.booleans())
    def collapse(self, *, begin: float, length: int, by_hand: bool) -> None:
        behind = len(self.model) - self.memory.layers(self.thread)[-1].messages
        start = int(begin * len(self.model))
        stop = min(start + length, len(self.model))
        spans = [
            tuple(index for index, one in enumerate(self.model) if id_of(one) in ids)
            for pair in pairs(self.model)
            if (ids := {id_of(each) for each in pair})
        ]
        cuts = any(first < edge <= last for edge in (start, stop) for first, last in spans)
        if cuts or start < behind < stop:
            return
        positions = self.positions()
        place = positions[start], positions[stop - 1] + 1
        if by_hand:
            self.memory.groups.regroup(self.thread, [(*place, "topic")])
        else:
            self.memory.groups.collapse(self.thread, *place)
            self.collapsed = self.collapsed | {id_of(one) for one in self.model[start:stop]}
        self.check()

    @precondition(lambda self: self.model)
    @rule(place=PLACES)
    def expand(self, *, place: float) -> None:
        groups = self.memory.groups(self.thread)
        group = groups[int(place * len(groups))]
        self.memory.groups.expand(self.thread, group.key)
        self.collapsed = self.collapsed - {
            id_of(one)
            for at, one in zip(self.positions(), self.model, strict=True)
            if group.start <= at < group.stop
        }
        self.check()

    @precondition(lambda self: self.model)
    @rule(place=PLACES, is_pinned=st.booleans())
    def pin(self, *, place: float, is_pinned: bool) -> None:
        at = int(place * len(self.model))
        self.memory.pin(self.thread, str(self.model[at].id), pinned=is_pinned)
        chosen = self.exchange(at)  # (all of it is pinned, or none)
        self.model = [
            one.model_copy(
                update={"additional_kwargs": {**one.additional_kwargs, "pinned": is_pinned}}
            )
            if id_of(one) in chosen
            else one
            for one in self.model
        ]
        self.check()

    @precondition(lambda self: self.model)
    @rule()
    def resummarize(self) -> None:
        self.memory.resummarize(self.thread)
        self.check()

    @rule()
    def save_and_load(self) -> None:
        new = AIMessage("saved", id=f"saved {len(self.versions)} {self.speaker.chance.random()}")
        self.memory.save(self.config, [*self.memory.load(self.config), new])
        self.model = [*self.model, new]
        self.check()

    @rule()
    def restart(self) -> None:
        if self.store == "file":
            self.memory.close()
            self.inner = self.another()
        self.opened()

    # -- what holds ----------------------------------------------------------------

    @property
    def config(self) -> Any:
        return {"configurable": {"thread_id": self.thread}}

    def exchange(self, at: int) -> set[object]:
        """Return the ids of a message and, of a tool call or a result, of its whole exchange."""
        found = pairs(self.model)
        callers = [call for call, answer in found if self.model[at] in (call, answer)]
        others = {id_of(one) for pair in found if pair[0] in callers for one in pair}
        return {id_of(self.model[at]), *others}

    def positions(self) -> list[int]:
        """Return the position of each message; removed messages leave holes."""
        archived = [one.position for one in self.memory.search_messages(self.thread)]
        live = len(self.model) - len(archived)
        stop = self.memory.groups(self.thread)[-1].stop
        return [*archived, *range(stop - live, stop)]

    def check(self) -> None:
        for _ in range(2):  # (the first may wait for summaries of the turn before)
            self.memory.load(self.config)
            wait([*self.memory._background._running.values()], WAIT)
        asked = self.asked
        self.check_reads()
        assert not self.is_told or self.asked == asked  # (each summary is made once)

    def check_reads(self) -> None:
        assert texts(self.memory.full_messages(self.thread)) == texts(self.model)
        view = self.memory.load(self.config)
        self.check_view(view)
        groups = self.memory.groups(self.thread)
        assert [group.start for group in groups] == [0, *[one.stop for one in groups[:-1]]]
        assert sum(one.messages for one in self.memory.layers(self.thread)) == len(self.model)
        self.check_archive()
        for version in self.speaker.chance.sample(self.versions, min(2, len(self.versions))):
            assert texts(self.memory.full_messages(version.config)) == texts(version.messages)
            assert texts(self.memory.load(version.config)) == version.view
        found = self.memory.get_tuple(self.config)
        assert found is not None
        view = texts(self.memory.load(found.config))
        self.versions.append(Version(found.config, self.model, view, self.collapsed))
        del self.versions[:-12]

    def check_archive(self) -> None:
        archived = self.memory.search_messages(self.thread)
        assert texts(one.message for one in archived) == texts(self.model[: len(archived)])
        for one in self.speaker.chance.sample(archived, min(2, len(archived))):
            words = set(tokens(f"{one.message.content}"))
            wanted = [m.message for m in archived if words <= set(tokens(f"{m.message.content}"))]
            found = self.memory.search_messages(self.thread, query=f"{one.message.content}")
            # (tool calls have words that are not in their text)
            assert [m.message for m in found if m.message in wanted] == (
                wanted[::-1] if words else []
            )
            by_id = self.memory.search_messages(self.thread, ids=[str(one.message.id)])
            assert [m.message for m in by_id] == [one.message]

    def check_view(self, view: list[BaseMessage]) -> None:
        said = originals(view)
        own = {id_of(one): one for one in self.model}
        assert texts(said) == texts([own[id_of(one)] for one in said])
        full = self.memory.layers(self.thread)[-1].messages
        if self.policy.max_tokens is None and not self.has_removed:
            assert full >= min(self.policy.full_window, len(self.model))
        tail = self.model[len(self.model) - full :]
        assert {id_of(one) for one in tail} - self.collapsed <= {id_of(one) for one in said}
        marked = [one for one in self.model if one.additional_kwargs.get("pinned")]
        hidden = self.collapsed
        assert {id_of(one) for one in marked} - hidden <= {id_of(one) for one in said}
        assert not orphans(view, self.model)


def _count(messages: Sequence[BaseMessage]) -> int:
    return sum(len(f"{one.content}".split()) for one in messages)


TestConversations = Conversations.TestCase
TestConversations.settings = settings_of(
    quick=3,
    full=400,
    stateful_step_count=25,
    report_multiple_bugs=False,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # (shrinking takes minutes)
)
