//! The same calls made by Java and by us: after each the fields of the lock, the keys of read holds, what is left of each, and
//! the messages are compared. What differs by design is a list; a difference that is not on it fails, and so does an entry that
//! no longer shows.

use std::time::Instant;

use super::*;
use crate::fixture::{Messages, listen};
use crate::party::Party;
use test_support::stalls;

/// One thing that both do: a worker, and the milliseconds of its lease.
#[derive(Debug, Clone, Copy)]
enum Act {
    Read(usize, u64),
    Write(usize, u64),
    EndRead(usize),
    EndWrite(usize),
    /// Of what is not held any more.
    LateRead(usize),
    LateWrite(usize),
    /// Attempts that are refused.
    NoRead(usize),
    NoWrite(usize),
    ForceReaders(usize),
    ForceWriter(usize),
}

use Act::{
    EndRead, EndWrite, ForceReaders, ForceWriter, LateRead, LateWrite, NoRead, NoWrite, Read, Write,
};

/// What differs after a step: ours first.
#[derive(Debug, Clone, Copy)]
enum Differs {
    Nothing,
    /// About this many milliseconds of the lock's lease are left.
    Lease(i64, i64),
    Messages(&'static str, &'static str),
    /// The keys of read holds.
    Keys(&'static str, &'static str),
}

use Differs::{Keys, Lease, Messages as Heard, Nothing};

const STEPS: &[(Act, &[Differs])] = &[
    // Readers, each with keys of its own; the lock lasts as long as the longest.
    (Read(0, 20_000), &[]),
    (NoWrite(1), &[]),
    (Read(1, 10_000), &[]),
    (Read(0, 20_000), &[]),
    (Read(0, 10_000), &[]),
    (EndRead(0), &[]),
    (EndRead(0), &[]),
    (EndRead(0), &[]),
    (EndRead(1), &[]),
    // A longer hold inside of a shorter one: Redisson deletes the key that covered both.
    (Read(0, 10_000), &[]),
    (Read(0, 20_000), &[]),
    (EndRead(0), &[Lease(20_000, 10_000)]),
    (EndRead(0), &[]),
    // Writers. Redisson adds the lease of a nested one, and sets it again at a partial unlock.
    (Write(0, 20_000), &[]),
    (NoRead(1), &[]),
    (NoWrite(1), &[]),
    (Write(0, 20_000), &[Lease(20_000, 40_000)]),
    (EndWrite(0), &[]),
    (EndWrite(0), &[Heard("1 0", "1")]),
    // A writer that reads, and one that goes on reading.
    (Write(0, 20_000), &[]),
    (Read(0, 10_000), &[]),
    (NoRead(1), &[]),
    (EndRead(0), &[]),
    (Read(0, 10_000), &[]),
    (EndWrite(0), &[Heard("1 0", "")]),
    (Read(1, 10_000), &[]),
    (EndRead(0), &[]),
    (EndRead(1), &[]),
    // Forced. Redisson leaves the keys of readers to their ends, and publishes when nothing is held.
    (Write(0, 20_000), &[]),
    (ForceWriter(1), &[Heard("1 0", "1")]),
    (LateWrite(0), &[Heard("", "1")]),
    (Read(0, 20_000), &[]),
    (Read(1, 20_000), &[]),
    (ForceReaders(1), &[Heard("1 0", "0"), Keys("", "0:1 1:1")]),
    (LateRead(0), &[Heard("", "0"), Keys("", "0:1 1:1")]),
];

/// What was published before it is heard before it.
const MARK: &str = "rw_wire: heard";

/// One side of the comparison.
struct Side {
    key: String,
    workers: [Worker; 2],
    messages: Messages,
    /// Owners in the order in which they were first seen.
    owners: Vec<String>,
}

/// What stands in Redis, owners by their numbers.
#[derive(Debug)]
struct Seen {
    fields: Vec<String>,
    keys: Vec<(String, i64)>,
    lease: i64,
    messages: String,
}

pub async fn check(port: u16, rust: &[Party; 2], java: &[Party; 2]) {
    let mut sides = [rust, java].map(|parties| {
        let key = format!(
            "rw_wire:{}",
            if parties[0].is_rust() {
                "ours"
            } else {
                "theirs"
            }
        );
        Side {
            workers: [parties[0].worker(), parties[1].worker()],
            messages: listen(port, vec![parts_channel(&key), MARK.to_owned()]),
            owners: Vec::new(),
            key,
        }
    });
    let control = &mut Control::connect(port);
    for (nth, &(act, differs)) in STEPS.iter().enumerate() {
        let (step, start) = (format!("step {nth}, {act:?}"), Instant::now());
        for side in &sides {
            side.act(act).await;
        }
        let [ours, theirs] = &mut sides;
        control.run(&["PUBLISH", MARK, ""]);
        let seen = [ours.seen(control).await, theirs.seen(control).await];
        compare(
            &step,
            differs,
            &seen,
            500 + stalls(start).as_millis() as i64,
        );
    }
    for side in &sides {
        assert_eq!(control.hash(&side.key), "", "nothing is left");
    }
}

fn compare(step: &str, differs: &[Differs], seen: &[Seen; 2], tolerance: i64) {
    let [ours, theirs] = seen;
    let near = |left: i64, other: i64| (left - other).abs() <= tolerance;
    let nothing = &Nothing;
    let listed = |wanted: fn(&Differs) -> bool| {
        differs
            .iter()
            .find(|differs| wanted(differs))
            .unwrap_or(nothing)
    };
    assert_eq!(ours.fields, theirs.fields, "{step}: the fields");
    let names = |seen: &Seen| {
        let names: Vec<&str> = seen.keys.iter().map(|(name, _)| name.as_str()).collect();
        names.join(" ")
    };
    match listed(|differs| matches!(differs, Keys(..))) {
        Keys(our, their) => assert_eq!((&*names(ours), &*names(theirs)), (*our, *their), "{step}"),
        _ => {
            assert_eq!(names(ours), names(theirs), "{step}: the keys");
            for (our, their) in ours.keys.iter().zip(&theirs.keys) {
                assert!(near(our.1, their.1), "{step}: {our:?} and {their:?}");
            }
        }
    }
    let leases = (ours.lease, theirs.lease);
    match listed(|differs| matches!(differs, Lease(..))) {
        Lease(our, their) => {
            let are_listed = near(leases.0, *our) && near(leases.1, *their);
            assert!(are_listed, "{step}: {leases:?} are left");
        }
        _ => assert!(near(leases.0, leases.1), "{step}: {leases:?} are left"),
    }
    let messages = (&*ours.messages, &*theirs.messages);
    match listed(|differs| matches!(differs, Heard(..))) {
        Heard(our, their) => assert_eq!(messages, (*our, *their), "{step}: the messages"),
        _ => assert_eq!(messages.0, messages.1, "{step}: the messages"),
    }
}

impl Side {
    async fn act(&self, act: Act) {
        let key = &self.key;
        let (reads, writes) = (
            |nth: usize| self.workers[nth].reads(),
            |nth: usize| self.workers[nth].writes(),
        );
        match act {
            Read(nth, lease) => reads(nth).lock(key, Some(ms(lease))).await.expect("joins"),
            Write(nth, lease) => writes(nth).lock(key, Some(ms(lease))).await.expect("free"),
            EndRead(nth) => reads(nth).unlock(key).await.expect("held"),
            EndWrite(nth) => writes(nth).unlock(key).await.expect("held"),
            LateRead(nth) => reads(nth).unlock_too_late(key).await,
            LateWrite(nth) => writes(nth).unlock_too_late(key).await,
            NoRead(nth) => assert_eq!(reads(nth).try_lock(key, None, None).await, Ok(false)),
            NoWrite(nth) => assert_eq!(writes(nth).try_lock(key, None, None).await, Ok(false)),
            ForceReaders(nth) => {
                let forced = reads(nth).force_unlock(key).await;
                assert_eq!(forced, Ok(Some(true)));
            }
            ForceWriter(nth) => {
                let forced = writes(nth).force_unlock(key).await;
                assert_eq!(forced, Ok(Some(true)));
            }
        }
    }

    async fn seen(&mut self, control: &mut Control) -> Seen {
        let fields = fields(control, &self.key);
        for field in &fields {
            let owner = field.split(' ').next().unwrap_or_default();
            let owner = owner.trim_end_matches(":write");
            if owner != "mode" && !self.owners.iter().any(|known| known == owner) {
                self.owners.push(owner.to_owned());
            }
        }
        let number = |text: &str| {
            let replace = |text: String, (nth, owner): (usize, &String)| {
                text.replace(owner.as_str(), &nth.to_string())
            };
            self.owners
                .iter()
                .enumerate()
                .fold(text.to_owned(), replace)
        };
        let mut fields: Vec<String> = fields.iter().map(|field| number(field)).collect();
        fields.sort_unstable();
        let base = format!("{{{}}}:", self.key);
        let short = |(key, left): (String, i64)| {
            let key = number(&key)
                .replace(&base, "")
                .replace("rwlock_timeout:", "");
            (key, left)
        };
        let mut keys: Vec<_> = keys(control, &self.key).into_iter().map(short).collect();
        keys.sort_unstable();
        let mut messages = Vec::new();
        while let Some((_, message)) = self.messages.recv().await.filter(|(at, _)| at != MARK) {
            messages.push(message);
        }
        Seen {
            fields,
            keys,
            lease: control.pttl(&self.key),
            messages: messages.join(" "),
        }
    }
}
