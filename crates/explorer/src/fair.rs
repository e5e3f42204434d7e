//! The queue that the server keeps for a fair lock: one place an owner, in the order of the first attempts.
//!
//! This is the specification of the fair lock's `acquire` and `release` as far as counts and places go. The hash is that
//! of a plain lock.

use std::time::Duration;

use redisson_lock_core::Time;

use super::RULES;
use super::script::{Field, Reply, Script, Told};
use super::server::{Place, Server};

impl Server {
    pub(super) fn run_fair(&mut self, now: Time, script: Script) -> (Reply, Told) {
        let (field, told) = match script {
            Script::Acquire {
                field,
                target: 1,
                queues_up,
                ..
            } if self.field() != Some(field) => {
                return self.acquire_fair(now, field, queues_up, script);
            }
            Script::Acquire { field, .. } | Script::Renew { field, .. } => (field, false),
            Script::Release {
                field,
                target,
                leaves,
                ..
            } => {
                if leaves {
                    self.leave_queue(now, field);
                }
                let is_free = self.lock.is_none();
                (field, is_free || target == 0 && self.field() == Some(field))
            }
            Script::Pass { .. } => unreachable!("a fair lock is not handed over"),
        };
        debug_assert!(self.place_of(field).is_none() || self.field() != Some(field));
        if told {
            self.evict(now, None);
        }
        let (reply, _) = self.run_hash(now, script);
        (
            reply,
            if told {
                self.tells_the_head()
            } else {
                Told::None
            },
        )
    }

    /// An attempt to take the lock, by an owner that has no field.
    fn acquire_fair(
        &mut self,
        now: Time,
        field: Field,
        queues_up: bool,
        script: Script,
    ) -> (Reply, Told) {
        let evicted = self.evict(now, Some(field));
        if queues_up && let Some(place) = self.place_of(field) {
            self.prolong(now, place);
        }
        let head = self.places().first().copied();
        let is_first = head.is_none_or(|head| head.field == field);
        if self.lock.is_none() && is_first {
            self.leave_queue(now, field);
            return (self.run_hash(now, script).0, Told::None);
        }
        let left = self
            .lock
            .map_or(Duration::ZERO, |(_, _, until)| until.since(now));
        let joins = queues_up && self.place_of(field).is_none();
        if joins {
            let tail = self.places().last().map_or(now, |tail| tail.until);
            let until = tail.max(now + left) + RULES.fair_wait;
            self.places().push(Place { field, until });
        }
        match (self.lock, head) {
            (None, Some(head)) => {
                let left = head.until.since(now);
                let told = match evicted || !joins {
                    true => self.tells_the_head(),
                    false => Told::None,
                };
                (Reply::Busy { left }, told)
            }
            _ => (Reply::Busy { left }, Told::None),
        }
    }

    /// Takes an owner out of the queue: the turns of those after it come earlier.
    fn leave_queue(&mut self, now: Time, field: Field) {
        let Some(place) = self.place_of(field) else {
            return;
        };
        let places = self.places();
        let left = places.remove(place).until;
        let earlier = left.since(now).min(RULES.fair_wait);
        for later in &mut places[place..] {
            if later.until > left {
                later.until = later.until - earlier;
            }
        }
    }

    /// The owner of a place asks: it is there, for a wait after its turn at least. The turns of those after it come later.
    fn prolong(&mut self, now: Time, place: usize) {
        let places = self.places();
        let before = place
            .checked_sub(1)
            .map_or(now, |before| places[before].until);
        let (known, until) = (places[place].until, before.max(now) + RULES.fair_wait);
        let longer = until.since(known);
        for later in &mut places[place + 1..] {
            if later.until > known {
                later.until = later.until + longer;
            }
        }
        places[place].until = known + longer;
    }

    /// Takes out those at the head whose turn is over, but for the owner that asks.
    fn evict(&mut self, now: Time, asks: Option<Field>) -> bool {
        let places = self.places();
        let is_over = |place: &&Place| place.until <= now && asks != Some(place.field);
        let over = places.iter().take_while(is_over).count();
        places.drain(..over);
        over > 0
    }

    pub(super) fn tells_the_head(&self) -> Told {
        let head = self.queue.as_ref().and_then(|places| places.first());
        head.map_or(Told::None, |head| Told::Only(head.field.owner))
    }

    pub(super) fn place_of(&self, field: Field) -> Option<usize> {
        let mut places = self.queue.iter().flatten();
        places.position(|place| place.field == field)
    }

    fn places(&mut self) -> &mut Vec<Place> {
        self.queue.get_or_insert_default()
    }
}
