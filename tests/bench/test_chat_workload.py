"""The chat workload is a function of its shape and seed."""

from collections import Counter

from bench.chat import ChatShape, make_conversations
from bench.play import turn_order

SHAPE = ChatShape(tenants=3, conversations=20, turns=5, system_length=301, user_length=40, answer_tokens=7)


def test_same_seed_gives_the_same_workload_and_another_seed_another() -> None:
    assert make_conversations(SHAPE, seed=5) == make_conversations(SHAPE, seed=5)
    assert make_conversations(SHAPE, seed=5) != make_conversations(SHAPE, seed=6)


def test_conversations_of_a_tenant_share_its_system_prompt_and_no_other() -> None:
    conversations = make_conversations(SHAPE, seed=1)
    by_tenant = {conversation.tenant: conversation.system for conversation in conversations}
    assert all(conversation.system == by_tenant[conversation.tenant] for conversation in conversations)
    assert len(set(by_tenant.values())) == len(by_tenant) > 1


def test_lengths_are_those_of_the_shape() -> None:
    for conversation in make_conversations(SHAPE, seed=2):
        assert len(conversation.system) == SHAPE.system_length
        assert len(conversation.turns) == SHAPE.turns
        assert all(20 <= len(turn.user) <= 60 and turn.max_tokens == 7 for turn in conversation.turns)
        assert conversation.system.isascii()


def test_streamed_share_decides_how_many_answers_are_streamed() -> None:
    def streamed(share: float) -> set[bool]:
        shape = ChatShape(conversations=10, streamed_share=share)
        return {turn.stream for conversation in make_conversations(shape, seed=3) for turn in conversation.turns}

    assert (streamed(0.0), streamed(1.0), streamed(0.5)) == ({False}, {True}, {False, True})


def test_turns_of_all_conversations_are_interleaved_in_an_order_fixed_by_the_seed() -> None:
    conversations = make_conversations(SHAPE, seed=4)
    order = turn_order(conversations, seed=4)
    assert order == turn_order(conversations, seed=4) != turn_order(conversations, seed=5)
    assert Counter(order) == dict.fromkeys(range(20), 5)
    assert order != sorted(order)
