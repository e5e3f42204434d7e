//! The watchdog's questions to a lock, and its reports.

use std::sync::Arc;
use std::time::Duration;

use super::LockCore;
use super::hold::{RenewOutcome, RenewalAsk};
use super::owner_state::OwnerState;
use super::values::{Effects, Event, Generation, HoldId, LossReason, OwnerKey, Time};

/// A renewal that is due.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RenewalRequest {
    pub field: Arc<str>,
    pub generation: Generation,
    pub asked: RenewalAsk,
    /// How many replicas are to be asked about it.
    pub replicas: u32,
}

impl RenewalRequest {
    fn new(own: &OwnerState, asked: RenewalAsk) -> Self {
        Self {
            field: Arc::clone(&own.field),
            generation: own.generation,
            asked,
            replicas: match asked {
                RenewalAsk::Extend(_) => own.tenure.replicas(),
                // It moves no deadline.
                RenewalAsk::Check => 0,
            },
        }
    }
}

impl LockCore {
    /// The timer of an owner has fired. Ends what is over; answers with what is to be renewed.
    pub(super) fn timer_fired(
        &mut self,
        now: Time,
        owner: OwnerKey,
        out: &mut Effects,
    ) -> Option<RenewalRequest> {
        let rules = Arc::clone(&self.rules);
        self.step(now, out, |core, out| {
            core.queue_timer_fired(owner);
            core.change(now, owner, out, |own, cx| {
                // It is gone from the registry, so it is set again whenever it is due next.
                own.timer = None;
                if own.op.paused_until().is_some_and(|until| until <= now) {
                    own.resume(cx);
                }
                if own.tenure.warn_if_overdue(now, &rules) {
                    cx.out.events.push(Event::RenewalOverdue {
                        field: Arc::clone(&own.field),
                        face: owner.face,
                    });
                }
                let asked = own.tenure.begin_renewal(now, &rules)?;
                Some(RenewalRequest::new(own, asked))
            })
            .flatten()
        })
    }

    /// Another server has the lock now. Ends what is over; answers with what is to be looked at, whether it
    /// is due or not, and whether a renewal is under way or not: that one may have gone to the other server.
    pub(super) fn recheck(
        &mut self,
        now: Time,
        out: &mut Effects,
    ) -> Vec<(OwnerKey, RenewalRequest)> {
        let rules = Arc::clone(&self.rules);
        self.step(now, out, |core, out| {
            let owners = core.owners.iter().map(|(owner, _)| owner);
            let owners: Vec<_> = owners.collect();
            let begin = |owner| {
                let asked = core.change(now, owner, out, |own, _| {
                    let asked = own.tenure.recheck(now, &rules)?;
                    Some(RenewalRequest::new(own, asked))
                });
                Some((owner, asked.flatten()?))
            };
            owners.into_iter().filter_map(begin).collect()
        })
    }

    /// Others have changed the lock. Returns whether anything is held that is to be looked at.
    pub(super) fn note_report(&mut self) -> bool {
        let mut is_held = false;
        for own in self.owners.iter_mut() {
            is_held |= own.note_report();
        }
        is_held
    }

    /// Whether replicas have to confirm a lease of it.
    pub fn asks_replicas(&self) -> bool {
        let mut owners = self.owners.iter();
        owners.any(|(_, own)| own.tenure.replicas() > 0)
    }

    /// What is to be looked at because others have changed the lock. Changes nothing.
    pub fn looks(&self) -> Vec<(OwnerKey, RenewalRequest)> {
        let held = self.owners.iter().filter(|(_, own)| own.tenure.is_held());
        let look = |own| RenewalRequest::new(own, RenewalAsk::Check);
        held.map(|(owner, own)| (owner, look(own))).collect()
    }

    /// A renewal was answered, or has no answer. It counts only for the generation it was sent for.
    pub(super) fn renewed(
        &mut self,
        now: Time,
        owner: OwnerKey,
        generation: Generation,
        outcome: RenewOutcome,
        out: &mut Effects,
    ) {
        let rules = Arc::clone(&self.rules);
        self.step(now, out, |core, out| {
            let lost = core.change(now, owner, out, |own, cx| {
                if own.generation != generation || !own.tenure.is_held() {
                    return None;
                }
                match outcome {
                    RenewOutcome::Held {
                        sent_at,
                        asked,
                        acknowledged,
                    } => own
                        .tenure
                        .renewed(now, sent_at, asked, acknowledged, &rules),
                    RenewOutcome::Unknown => own.tenure.not_renewed(now, &rules),
                    RenewOutcome::Lost(reason) => {
                        own.lose(reason, cx);
                        return Some(reason);
                    }
                }
                None
            });
            core.lose_other_face(now, owner, lost.flatten(), None, out);
        });
    }

    /// A longer lease is about to be asked for: if no answer comes, the server may have it. `false`: the
    /// hold has ended.
    pub(super) fn extending(
        &mut self,
        now: Time,
        owner: OwnerKey,
        hold: HoldId,
        lease: Duration,
        out: &mut Effects,
    ) -> bool {
        let is_held = self.step(now, out, |core, out| {
            core.change(now, owner, out, |own, _| {
                let is_held = own.tenure.has(hold);
                if is_held {
                    own.tenure.note_possible_lease(lease);
                }
                is_held
            })
        });
        is_held.unwrap_or(false)
    }

    /// Replicas were asked about a hold that was taken or extended then, for this lease. `false`: it has ended,
    /// or they are too few.
    pub(super) fn confirmed(
        &mut self,
        now: Time,
        owner: OwnerKey,
        hold: HoldId,
        (sent_at, lease): (Time, Duration),
        acknowledged: u32,
        out: &mut Effects,
    ) -> bool {
        let rules = Arc::clone(&self.rules);
        let confirmed = self.step(now, out, |core, out| {
            core.change(now, owner, out, |own, _| {
                own.tenure
                    .confirmed(hold, sent_at, lease, acknowledged, &rules)
            })
        });
        confirmed.unwrap_or(false)
    }

    /// A call returns a hold to its caller without asking replicas: they have confirmed an outer one.
    pub(super) fn handed_out(
        &mut self,
        now: Time,
        owner: OwnerKey,
        hold: HoldId,
        out: &mut Effects,
    ) {
        self.step(now, out, |core, out| {
            core.change(now, owner, out, |own, _| own.tenure.hand_out(hold));
        });
    }

    /// Whether as many replicas as the holds of this owner need have confirmed them.
    pub fn is_confirmed(&self, owner: OwnerKey) -> bool {
        let own = self.owners.get(owner);
        own.is_none_or(|own| own.tenure.is_confirmed())
    }

    /// Ends every hold of an owner, if it still is in the same generation: its field was taken away. `None`: the server
    /// has said so of the hold that is there.
    pub(super) fn lose_owner(
        &mut self,
        now: Time,
        owner: OwnerKey,
        generation: Option<Generation>,
        reason: LossReason,
        out: &mut Effects,
    ) {
        self.step(now, out, |core, out| {
            core.change(now, owner, out, |own, cx| {
                if generation.is_none_or(|generation| generation == own.generation) {
                    own.lose(reason, cx);
                }
            });
            let lost = Some(reason).filter(|_| generation.is_none());
            core.lose_other_face(now, owner, lost, None, out);
        });
    }
}
