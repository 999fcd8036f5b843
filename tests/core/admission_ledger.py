"""An independent account of admission: keeps its own books and judges every decision by them.

The rules that it judges by are ``admission_books``'; nothing of the scheduler's own is used. Every input
goes through the ledger, which tells the scheduler, takes its decisions, asserts that each was allowed
at that moment, and then that nothing allowed was left undone.
"""

from collections.abc import Mapping
from typing import assert_never

from strata_router.core.admission import (
    Admit,
    CancelLoad,
    Decision,
    Load,
    LookUpCache,
    Refuse,
    Scheduler,
    SchedulerSettings,
    Ticket,
    Unload,
    WaitReason,
)
from strata_router.core.refusal import Case, Refusal
from strata_router.core.vocabulary import ModelId, TicketId, Tier
from tests.core.admission_books import URGENCY, Asker, Books, Holder, Wish


class Ledger(Books):
    """Books that hear everything the scheduler hears, and hear of all that it decides."""

    def __init__(self, settings: SchedulerSettings) -> None:
        super().__init__(settings)
        self.scheduler = Scheduler(settings)

    # Inputs: first into the books, then to the scheduler

    def arrive(self, ticket: Ticket, now: float) -> None:
        asker = Asker(ticket.id, ticket.tier, ticket.accepts, ticket.preferred, ticket.arrived_s)
        self.outcomes[ticket.id] = []
        refusal = self.refusal_at_arrival(asker, now)
        if refusal is not None:
            self.owed[ticket.id] = refusal
            # A ticket that is turned away at once never was in the queue, unless for its model.
            if refusal.case in (Case.MODEL_LOAD_FAILED, Case.MODEL_NOT_PREPARED):
                self.queue_changed()
        else:
            self.waiting[ticket.id] = asker
            self.queue_changed()
        self.scheduler.arrive(ticket, now)
        self.settle(now)

    def leave(self, ticket_id: TicketId, now: float) -> None:
        if self.waiting.pop(ticket_id, None) is not None:
            self.outcomes[ticket_id].append("gone")
            self.queue_changed()
        elif (holder := self.leases.pop(ticket_id, None)) is not None:
            self.queue_changed()
            if self.phase == "ready" and self.model == holder.model:
                self.last_end_s = self.used_s = now
        self.scheduler.leave(ticket_id, now)
        self.settle(now)

    def headers_arrived(self, ticket_id: TicketId, now: float) -> None:
        if (holder := self.leases.get(ticket_id)) is not None:
            holder.headers_seen = True
        self.scheduler.headers_arrived(ticket_id, now)
        self.settle(now)

    def pin(self, ticket_id: TicketId, now: float) -> None:
        answer = self.scheduler.pin(ticket_id, now)
        if ticket_id in self.owed:
            assert answer == self.owed[ticket_id]
        elif (holder := self.leases.get(ticket_id)) is not None:
            assert answer == holder.model
        else:
            asker = self.waiting[ticket_id]
            refusal = self.hopeless(asker, now)
            if refusal is not None:
                assert answer == refusal
                del self.waiting[ticket_id]
                self.outcomes[ticket_id].append("refused")
                self.queue_changed()
            else:
                model = self.group(asker)
                assert answer == model
                assert model is not None
                asker.accepts, asker.preferred = (model,), model
        self.settle(now)

    def engine_ready(self, now: float) -> None:
        assert self.model is not None
        self.engine_is("ready", self.model)
        self.used_s = now
        self.cools_until_s.pop(self.model, None)
        if self.wish is not None and self.wish.model == self.model:
            self.wish = None
        self.scheduler.engine_ready(self.model, now)
        self.settle(now)

    def load_failed(self, now: float) -> None:
        assert self.model is not None
        failed = self.model
        refusal = Refusal(Case.MODEL_LOAD_FAILED, retry_after_s=7)
        for ticket_id in [i for i, a in self.waiting.items() if self.group(a) == failed]:
            del self.waiting[ticket_id]
            self.owed[ticket_id] = refusal
        for ticket_id in [i for i, h in self.leases.items() if h.model == failed]:
            del self.leases[ticket_id]
            self.owed[ticket_id] = refusal
        self.cools_until_s[failed] = now + self.settings.cooldown_ms / 1000
        self.load_ended_without_model(failed)
        self.scheduler.load_failed(failed, refusal, now)
        self.settle(now)

    def load_cancelled(self, now: float) -> None:
        assert self.model is not None
        cancelled = self.model
        self.load_ended_without_model(cancelled)
        self.scheduler.load_cancelled(cancelled, now)
        self.settle(now)

    def engine_stopped(self, now: float) -> None:
        if self.phase in ("ready", "unloading", "empty"):
            died = self.model if self.phase == "ready" else self.died
            self.engine_is("empty", None)
            self.died = died
            if self.wish is not None and self.wish.decided:
                self.wish = None
        self.scheduler.engine_stopped(now)
        self.settle(now)

    def cache_scores(
        self,
        number: int,
        scores: Mapping[TicketId, tuple[int, int]] | None,
        supported: bool,
        now: float,
    ) -> None:
        lookup = self.lookup
        if not supported and number >= lookup.first_round_of_engine:
            lookup.supported = False
        if lookup.outstanding and number == lookup.round:
            lookup.outstanding = False
            lookup.answer = scores or {}
        self.scheduler.cache_scores(number, scores, supported, now)
        self.settle(now)

    def set_cache_min_tokens(self, tokens: int) -> None:
        self.min_tokens = tokens
        self.scheduler.set_cache_min_tokens(tokens)

    def set_routing(self, on: bool, now: float) -> None:
        self.routing = on
        if not on:
            self.owe_everyone(Refusal(Case.ROUTING_OFF))
        self.scheduler.set_routing(on, now)
        self.settle(now)

    def refuse_all(self, case: Case, now: float) -> None:
        self.closed = case
        self.owe_everyone(Refusal(case))
        self.scheduler.refuse_all(case, now)
        self.settle(now)

    def operator_load(self, model: ModelId, now: float) -> None:
        self.wish = Wish(model)
        self.scheduler.operator_load(model, now)
        self.settle(now)

    def operator_unload(self, now: float) -> None:
        self.wish = Wish(None)
        self.scheduler.operator_unload(now)
        self.settle(now)

    def operator_cancel(self, now: float) -> None:
        wish, self.wish = self.wish, None
        cancels = (
            wish is not None
            and wish.decided
            and wish.model is not None
            and not any(wish.model in asker.accepts for asker in self.waiting.values())
        )
        if cancels:
            self.engine_is("cancelling", self.model)
            self.cancel_owed = True
        self.scheduler.operator_cancel(now)
        self.settle(now)

    # The judgement

    def settle(self, now: float) -> None:
        if self.defer:
            return
        if self.phase == "ready":
            if self.wish is not None and self.wish.model == self.model:
                self.wish = None
                self.used_s = now
            if not any(self.model in a.accepts for a in self.waiting.values()):
                self.lookup.since_s = None
        decisions = self.scheduler.take_decisions(now)
        self.admitted_now = 0
        for index, decision in enumerate(decisions):
            self._judge(decision, decisions[index + 1 :], now)
        if self.admitted_now and not self.lookup.outstanding:
            self.lookup.since_s = None
        self.lookup.answer = None
        assert not self.owed, "a refusal that was owed did not come"
        assert not self.cancel_owed, "the operator's load was not cancelled"
        self._assert_nothing_left_undone(now)
        self._assert_wakes_in_time(now)
        self._assert_snapshot_is_true(now)

    def _judge(self, decision: Decision, later: list[Decision], now: float) -> None:
        match decision:
            case Admit():
                self._judge_admit(decision, later, now)
            case Refuse():
                self._judge_refuse(decision, now)
            case Load():
                self._judge_load(decision)
            case Unload():
                self._judge_unload(now)
            case CancelLoad():
                self._judge_cancel()
            case LookUpCache():
                self._judge_lookup(decision, now)
            case _:
                assert_never(decision)

    def _judge_admit(self, admit: Admit, later: list[Decision], now: float) -> None:
        assert admit.ticket in self.waiting, "admitted although it does not wait"
        asker = self.waiting[admit.ticket]
        assert self.routing
        assert self.closed is None
        assert self.wish is None, "the operator comes first"
        assert not self.expired(asker, now), "admitted after its queue deadline"
        assert admit.model in asker.accepts
        due = self.due(now)
        if due:
            assert asker is due[0], "due tickets first, oldest first"
        else:
            assert URGENCY[asker.tier] == min(URGENCY[a.tier] for a in self.waiting.values())
        if self.phase == "ready" and self.model in asker.accepts:
            assert admit.model == self.model, "a loaded allowed model wins"
            assert not admit.model_switch
            assert self.has_place(), "capacity"
            if not due:
                assert asker is self.next_on_ready(asker.tier, now), "order in tier and group"
        else:
            self._judge_switch(admit, asker, bool(due), now)
            assert later[:1] == [Load(admit.model)]
        assert all(holder.model == admit.model for holder in self.leases.values())
        del self.waiting[admit.ticket]
        self.leases[admit.ticket] = Holder(admit.model, asker.tier)
        self.outcomes[admit.ticket].append("admitted")
        self.lookup.outstanding = False
        self.admitted_now += 1

    def _judge_switch(self, admit: Admit, asker: Asker, due: bool, now: float) -> None:
        assert self.phase in ("ready", "empty")
        assert not self.leases, "no preemption: a switch waits for every lease"
        assert admit.model == asker.preferred
        assert self.cools_until_s.get(admit.model, now) <= now, "no load while cooling down"
        assert admit.model_switch == (self.died != admit.model)
        if not due:
            tier_mates = [a for a in self.waiting.values() if a.tier == asker.tier]
            assert asker.id == min(a.id for a in tier_mates), "the earliest ticket's group"
            if self.phase == "ready":
                assert not any(self.model in a.accepts for a in tier_mates), "loaded model first"
                assert asker.tier is Tier.PRIORITY or not self.in_grace(now), "grace kept"

    def _judge_refuse(self, refuse: Refuse, now: float) -> None:
        self.outcomes[refuse.ticket].append("refused")
        if refuse.ticket in self.owed:
            assert refuse.refusal == self.owed.pop(refuse.ticket)
            return
        asker = self.waiting[refuse.ticket]
        if refuse.refusal.case is Case.QUEUE_TIMEOUT:
            assert self.expired(asker, now)
        else:
            assert refuse.refusal == self.hopeless(asker, now)
            assert asker is self.front(now), "only when its turn would need the load"
        del self.waiting[refuse.ticket]
        self.queue_changed()

    def _judge_load(self, load: Load) -> None:
        assert self.phase in ("ready", "empty"), "one load or unload at a time"
        if self.wish is not None:
            assert self.wish == Wish(load.model)
            assert not self.leases
            self.wish.decided = True
        else:
            assert [holder.model for holder in self.leases.values()] == [load.model]
        self.engine_is("loading", load.model)

    def _judge_unload(self, now: float) -> None:
        assert not self.leases
        assert self.phase in ("ready", "empty")
        if self.wish is not None:
            assert self.wish == Wish(None)
            self.wish.decided = True
        else:
            assert not self.waiting, "no idle unload while a ticket waits"
            assert self.idle_unload_s() is not None
            assert now >= (self.idle_unload_s() or 0)
        self.engine_is("unloading", None)

    def _judge_cancel(self) -> None:
        if self.cancel_owed:
            self.cancel_owed = False
            return
        assert self.phase == "loading"
        assert not self.leases
        if self.wish is not None:
            assert self.wish.model != self.model
        else:
            assert self.waiting
            assert not any(self.model in asker.accepts for asker in self.waiting.values())
        self.engine_is("cancelling", self.model)

    def _judge_lookup(self, asked: LookUpCache, now: float) -> None:
        lookup = self.lookup
        assert self.phase == "ready"
        assert self.settings.cache_lookup_ms > 0
        assert lookup.supported
        assert not lookup.outstanding
        assert lookup.answer is None
        assert self.has_place()
        assert not self.due(now)
        group = self.group_on_ready(self.highest_tier())
        assert len(group) > 1
        assert asked.tickets == tuple(asker.id for asker in group)
        assert asked.round > lookup.round
        if lookup.since_s is None:
            lookup.since_s = now
        left_s = lookup.since_s + self.settings.cache_lookup_ms / 1000 - now
        assert left_s > 0, "one budget per freed place"
        assert asked.budget_ms == max(1, round(left_s * 1000))
        lookup.round, lookup.outstanding, lookup.asked = asked.round, True, asked.tickets

    # After the decisions

    def _assert_nothing_left_undone(self, now: float) -> None:
        assert not any(self.expired(asker, now) for asker in self.waiting.values())
        if self.phase in ("cancelling", "unloading"):
            return
        if self.wish is not None:
            own_load = self.phase == "loading" and self.model == self.wish.model
            assert self.wish.decided or self.leases or own_load
            return
        front = self.front(now)
        if front is None:
            idle_s = self.idle_unload_s()
            assert idle_s is None or self.leases or now < idle_s
            return
        if self.phase == "loading":
            wanted = any(self.model in asker.accepts for asker in self.waiting.values())
            assert self.leases or wanted, "the load that nobody wants was not cancelled"
            return
        if self.phase == "ready" and self.model in front.accepts:
            assert not self.has_place() or self.lookup_holds(now), "a place is free: stuck"
            return
        assert self.hopeless(front, now) is None
        assert self.leases or self.grace_holds(front, now), "nothing is active: stuck"

    def _assert_wakes_in_time(self, now: float) -> None:
        times = [self.expires_s(a) for a in self.waiting.values()]
        times += [s for a in self.waiting.values() if (s := self.due_s(a)) is None or s > now]
        front = self.front(now)
        if self.phase == "ready" and self.wish is None:
            if front is None and not self.leases:
                times.append(self.idle_unload_s())
            elif front is not None and self.model in front.accepts and self.has_place():
                assert self.lookup.since_s is not None
                times.append(self.lookup.since_s + self.settings.cache_lookup_ms / 1000)
            elif front is not None and self.model not in front.accepts and not self.leases:
                assert self.last_end_s is not None
                times.append(self.last_end_s + self.settings.model_grace_ms / 1000)
        expected = min((s for s in times if s is not None), default=None)
        assert self.scheduler.next_deadline() == expected
        assert expected is None or expected > now

    def _assert_snapshot_is_true(self, now: float) -> None:
        seen = self.scheduler.snapshot(now)
        assert self.scheduler.depths() == (len(self.waiting), len(self.leases))
        assert (seen.queue_depth, seen.in_flight) == self.scheduler.depths()
        for tier in Tier:
            count = sum(a.tier is tier for a in self.waiting.values())
            if not self.settings.wait_when_busy:
                holders = self.leases.values()
                count += sum(h.tier is tier and not h.headers_seen for h in holders)
            assert seen.queue_depth_by_tier[tier] == count
        assert seen.loaded == (self.model if self.phase == "ready" else None)
        assert seen.loading == (self.model if self.phase == "loading" else None)
        assert seen.stopping == (self.phase in ("cancelling", "unloading"))
        assert set(seen.cooling_s) == {m for m, s in self.cools_until_s.items() if s > now}
        waits = self.scheduler.waits(now)
        assert [wait.ticket for wait in waits] == sorted(self.waiting)
        for wait in waits:
            assert wait.reason is not WaitReason.NOTHING
            assert wait.seconds_left is None or wait.seconds_left > 0
            assert wait.model == self.group(self.waiting[wait.ticket])

    def assert_each_ticket_ended_once(self) -> None:
        """At the end of a history, when nothing waits."""
        assert not self.waiting
        for ticket_id, ends in self.outcomes.items():
            # A failed load refuses the lease that it was started for.
            assert ends in (["admitted"], ["refused"], ["gone"], ["admitted", "refused"]), ticket_id
