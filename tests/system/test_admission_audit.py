"""The auditor of admissions finds what it is there to find, and nothing else."""

from dataclasses import replace

import pytest

from tests.system.admission_audit import Asked, History, Life, Rules

RULES = Rules(places=2, grace_s=1.0, max_wait_s={"default": 20.0})
LIVES = (Life("a", 0.0, 12.0), Life("b", 13.0, 30.0))


def asked(
    name: str,
    arrived_s: float,
    lease_s: float | None,
    ended_s: float,
    model: str = "a",
    tier: str = "default",
) -> Asked:
    admitted = None if lease_s is None else model
    return Asked(name, tier, (model,), arrived_s, lease_s, ended_s, admitted)


RIGHT = (
    asked("A1", 1.0, 1.0, 5.0),
    asked("A2", 2.0, 2.0, 6.0),
    asked("A3", 3.0, 5.0, 7.0),
    asked("F1", 3.5, None, 4.0, tier="flex"),
    asked("A4", 4.0, 6.0, 10.0),
    asked("B1", 8.0, 11.0, 15.0, "b"),
    asked("B2", 9.0, 13.1, 16.0, "b"),
)


def history(*changed: Asked, rules: Rules = RULES) -> History:
    names = {each.name for each in changed}
    return History([*(a for a in RIGHT if a.name not in names), *changed], LIVES, rules)


def test_what_is_right_has_no_breach() -> None:
    assert history().breaches() == []


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ([asked("A3", 3.0, 5.3, 7.0)], "could have been admitted from 5.000 to 5.300"),
        ([asked("A3", 3.0, 4.0, 7.0)], "one more than 2"),
        ([asked("A4", 4.0, 5.0, 10.0), asked("A3", 3.0, 6.0, 7.0)], "before A3 of its own group"),
        (
            [asked("F1", 3.5, 5.0, 5.4, tier="flex"), asked("A3", 3.0, 5.4, 7.0)],
            "before A3 of a higher tier",
        ),
        ([asked("B1", 8.0, 10.5, 15.0, "b")], "broke the grace 0.500 s early"),
        ([asked("B1", 8.0, 9.0, 15.0, "b")], "switched under an active lease"),
        ([asked("B1", 8.0, 11.5, 15.0, "b")], "could have been admitted from 11.000 to 11.500"),
        (
            [asked("A5", 9.5, 14.0, 14.5, "b"), asked("B2", 9.0, 14.2, 16.0, "b")],
            "before B2 of its own group",
        ),
        ([asked("A4", 4.0, 6.0, 12.5), asked("B1", 8.0, 12.6, 15.0, "b")], "A4 lost its engine"),
    ],
)
def test_a_breach_is_found(changed: list[Asked], words: str) -> None:
    assert any(words in breach for breach in history(*changed).breaches())


def test_a_due_ticket_must_not_be_passed_over() -> None:
    rules = replace(RULES, max_wait_s={"default": 2.0})
    passed = asked("A3", 3.0, 6.0, 7.0), asked("P", 3.2, 5.5, 6.5, tier="priority")
    assert any("before A3, which was due" in b for b in history(*passed, rules=rules).breaches())


def test_legacy_admits_one_at_a_time_before_headers_and_the_next_at_once_after() -> None:
    rules = replace(RULES, one_before_headers=True)
    answering = [
        replace(each, headers_s=None if each.lease_s is None else each.lease_s + 0.01)
        for each in RIGHT
    ]
    assert history(*answering, rules=rules).breaches() == []
    slow = replace(answering[0], headers_s=3.0)
    found = history(slow, *answering[1:], rules=rules).breaches()
    assert any("A2 at 2.000: was admitted while another one waited" in breach for breach in found)
    late = replace(slow, headers_s=1.5), replace(answering[1], arrived_s=1.2)
    found = history(*late, *answering[2:], rules=rules).breaches()
    assert any("could have been admitted from 1.500 to 2.000" in breach for breach in found)


def test_a_request_must_be_admitted_for_a_model_that_it_accepts() -> None:
    wrong = Asked("A3", "default", ("c",), 3.0, 5.0, 7.0, "a")
    assert any("admitted for a" in breach for breach in history(wrong).breaches())


def test_a_lookup_may_take_its_time_and_change_the_order() -> None:
    late = asked("A4", 4.0, 5.4, 10.0), asked("A3", 3.0, 6.0, 7.0)
    assert history(*late, rules=replace(RULES, lookup_s=0.3)).breaches() == []


def test_somebody_who_waits_for_ever_without_an_engine_is_found() -> None:
    lives = (Life("a", 0.0, 12.0), Life("b", 25.0, 30.0))
    late = asked("B1", 8.0, 24.0, 26.0, "b"), asked("B2", 9.0, 25.1, 26.0, "b")
    found = History([*(a for a in RIGHT if a.name[0] != "B"), *late], lives, RULES).breaches()
    assert any("nothing was loaded for anybody from 12.000" in breach for breach in found)
