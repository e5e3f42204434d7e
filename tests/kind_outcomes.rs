//! Unknown outcomes, a row for each kind of lock: replies and commands that are lost, copies that arrive late, and
//! connections that are cut all the time, with the connection fence and without it.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use redisson_lock::{ConnectionFence, Error, HoldState, LockClient, LockGuard, LockKind};
use test_support::kinds::{
    HANDED_OVER, KINDS, acquires, against, count, endless, holder, load_scripts, passes, releases,
    token_key,
};
use test_support::{Control, Fate, ProxiedPair, eventually, ms, stalls, tokio};

const FATES: [Fate; 3] = [Fate::LoseReply, Fate::LoseCommand, Fate::Late];

/// As this user the fence may not be used.
const WITHOUT_KILL: &str = "u:p@";

async fn pair_as(user: &str) -> ProxiedPair {
    let mut pair =
        ProxiedPair::as_user_with(user, |builder| builder.command_timeout(ms(900))).await;
    load_scripts(&mut pair.control);
    pair
}

/// The counts between which this kind goes.
fn steps(kind: LockKind) -> &'static [(u32, u32)] {
    match kind {
        LockKind::String => &[(0, 1), (1, 0)],
        _ => &[(0, 1), (1, 2), (2, 1), (1, 0)],
    }
}

async fn take(client: &LockClient, kind: LockKind, depth: u32) -> Vec<LockGuard> {
    let mut guards = Vec::new();
    for _ in 0..depth {
        guards.push(client.lock_of(kind, "a").lock().await.expect("free"));
    }
    guards
}

async fn unlock_all(guards: Vec<LockGuard>, what: &str) {
    for guard in guards {
        let unlocked = guard.unlock().await;
        unlocked.unwrap_or_else(|error| panic!("{what}: {error}"));
    }
}

/// The token in Redis; 0 for a kind without one.
fn token(control: &mut Control) -> i64 {
    control
        .run(&["GET", &token_key("a")])
        .parse()
        .unwrap_or_default()
}

/// What stands in Redis about the lock: holder, count, token.
fn state(control: &mut Control) -> (Option<String>, i64, i64) {
    (holder(control, "a"), count(control, "a"), token(control))
}

#[tokio::test]
async fn whatever_is_lost_or_late_with_the_fence_count_holder_and_token_are_right() {
    for kind in KINDS {
        let mut pair = pair_as("").await;
        let mut hits = 0;
        for fate in FATES {
            for &(from, to) in steps(kind) {
                let what = format!("{kind}: {fate:?} at {from} to {to}");
                let before = token(&mut pair.control);
                let mut guards = take(&pair.ours, kind, from).await;
                if to > from {
                    pair.proxy.rule(fate, 1, acquires(kind, to));
                    guards.extend(take(&pair.ours, kind, 1).await);
                } else {
                    pair.proxy.rule(fate, 1, releases(kind, to));
                    unlock_all(guards.pop().into_iter().collect(), &what).await;
                }
                hits += 1;
                assert_eq!(pair.proxy.hit.load(Ordering::SeqCst), hits, "{what}");
                let after = state(&mut pair.control);
                assert_eq!(after.1, i64::from(to), "{what}");
                // However often it was sent, the lock was taken once.
                let raised = i64::from(kind == LockKind::Fenced);
                assert_eq!(after.2, before + raised, "{what}");
                assert!(is_excluded(&pair.theirs, kind).await == (to > 0), "{what}");
                let before_late = state(&mut pair.control);
                let late = pair.proxy.deliver().await;
                assert_eq!(late, usize::from(fate == Fate::Late), "{what}");
                assert_eq!(
                    state(&mut pair.control),
                    before_late,
                    "{what}, after the late copy"
                );
                let held = |guard: &LockGuard| guard.state() == HoldState::Held;
                assert!(guards.iter().all(held), "{what}");
                unlock_all(guards, &what).await;
            }
        }
        assert_eq!(pair.ours.stats().connection_fence, ConnectionFence::Active);
        assert_eq!(endless(&mut pair.control), [""; 0], "{kind}");
        pair.finish().await;
    }
}

/// Another client finds the lock held. If it is free it is released again.
async fn is_excluded(other: &LockClient, kind: LockKind) -> bool {
    let excluded = other.lock_of(against(kind), "a");
    match excluded.try_lock().await.expect("asked") {
        Some(guard) => {
            guard.unlock().await.expect("held");
            false
        }
        None => true,
    }
}

#[tokio::test]
async fn without_any_answer_the_call_fails_and_the_background_makes_the_count_right() {
    for kind in KINDS {
        let mut pair = pair_as("").await;
        for fate in FATES {
            for &(from, to) in steps(kind) {
                let what = format!("{kind}: {fate:?} twice at {from} to {to}");
                let mut guards = take(&pair.ours, kind, from).await;
                let ended = if to > from {
                    pair.proxy.rule(fate, 2, acquires(kind, to));
                    pair.ours.lock_of(kind, "a").lock().await.map(drop)
                } else {
                    pair.proxy.rule(fate, 2, releases(kind, to));
                    guards.pop().expect("held").unlock().await
                };
                let no_answer = matches!(ended, Err(Error::NoAnswer { .. }));
                assert!(no_answer, "{what}: {ended:?}");
                // Going up failed, so the count stays; going down is finished in the background.
                let left = i64::from(from.min(to));
                eventually(&what, ms(5_000), || {
                    count(&mut pair.control, "a") == left && pair.ours.stats().releasing == 0
                })
                .await;
                let before_late = state(&mut pair.control);
                pair.proxy.deliver().await;
                assert_eq!(
                    state(&mut pair.control),
                    before_late,
                    "{what}, after the late copies"
                );
                let held = |guard: &LockGuard| guard.state() == HoldState::Held;
                assert!(guards.iter().all(held), "{what}");
                unlock_all(guards, &what).await;
            }
        }
        assert_eq!(endless(&mut pair.control), [""; 0], "{kind}");
        pair.finish().await;
    }
}

/// Without the fence the server executes a copy after its repetition.
#[tokio::test]
async fn without_the_fence_a_late_release_frees_no_later_hold() {
    for kind in KINDS {
        let mut pair = pair_as(WITHOUT_KILL).await;
        let fence = pair.ours.stats().connection_fence;
        assert_eq!(fence, ConnectionFence::NotPermitted, "{kind}");
        let owner = pair.ours.owner();
        let lock = pair.ours.lock_of(kind, "a").owned_by(&owner);
        for _ in 0..3 {
            let first = lock.lock().await.expect("free");
            let (field, _, number) = state(&mut pair.control);
            pair.proxy.rule(Fate::Late, 1, releases(kind, 0));
            first.unlock().await.expect("repeated and answered");
            let second = lock.lock().await.expect("free");
            let before = state(&mut pair.control);
            assert_ne!(before.0, field, "{kind}: another field, or another value");
            assert!(kind != LockKind::Fenced || before.2 > number, "{before:?}");
            assert_eq!(pair.proxy.deliver().await, 1, "{kind}");
            assert_eq!(state(&mut pair.control), before, "{kind}: it found nothing");
            assert!(is_excluded(&pair.theirs, kind).await, "{kind}");
            assert_eq!(second.state(), HoldState::Held, "{kind}");
            second.unlock().await.expect("held");
        }
        pair.finish().await;
    }
}

/// What is documented to remain: a hold without a holder, for one lease at most. The next call of its client ends it.
#[tokio::test]
async fn without_the_fence_a_late_acquire_leaves_what_its_own_client_releases() {
    for kind in KINDS {
        let mut pair = pair_as(WITHOUT_KILL).await;
        let owner = pair.ours.owner();
        let lock = pair
            .ours
            .lock_of(kind, "a")
            .owned_by(&owner)
            .lease(ms(5_000));
        pair.proxy.rule(Fate::Late, 1, acquires(kind, 1));
        let held = lock.lock().await.expect("repeated");
        let (field, _, first) = state(&mut pair.control);
        held.unlock().await.expect("held");
        assert_eq!(pair.proxy.deliver().await, 1, "{kind}");
        let (stray, count, second) = state(&mut pair.control);
        // A copy of a string's acquisition has its value; the field of a hash is used by no two sends.
        assert_eq!(
            stray == field,
            kind == LockKind::String,
            "{kind}: {stray:?}"
        );
        assert_eq!(count, 1, "{kind}");
        assert!(
            kind != LockKind::Fenced || second > first,
            "{kind}: taken again"
        );
        let left = pair.control.pttl("a");
        assert!((1..=5_000).contains(&left), "{kind}: {left}");
        let stats = pair.ours.stats();
        assert_eq!((stats.held, stats.renewals), (0, 0), "{kind}");
        assert!(is_excluded(&pair.theirs, kind).await, "{kind}");
        // A reader goes past it.
        let excluded = pair.ours.lock_of(against(kind), "a").owned_by(&owner);
        let taken = excluded.try_lock().await.expect("asked");
        let taken = taken.expect("the stray hold was released");
        let (field, count, third) = state(&mut pair.control);
        assert!(field.is_some() && field != stray, "{kind}");
        assert_eq!(count, 1, "{kind}");
        assert!(kind != LockKind::Fenced || third > second, "{kind}");
        taken.unlock().await.expect("held");
        assert_eq!(endless(&mut pair.control), [""; 0], "{kind}");
        pair.finish().await;
    }
}

/// An attempt that was answered *busy* and is executed again when the lock is free leaves its value, which no later
/// attempt has.
#[tokio::test]
async fn a_string_value_that_no_call_of_its_client_knows_is_ended_with_the_fence_too() {
    let mut pair = pair_as("").await;
    let fence = pair.ours.stats().connection_fence;
    assert_eq!(fence, ConnectionFence::Active);
    let value = format!("{}:1", pair.ours.id());
    pair.control.run(&["SET", "a", &value, "PX", "30000"]);
    assert!(is_excluded(&pair.theirs, LockKind::String).await);
    let lock = pair.ours.lock_of(LockKind::String, "a");
    let taken = lock.try_lock().await.expect("asked");
    taken
        .expect("it was released")
        .unlock()
        .await
        .expect("held");
    pair.finish().await;
}

/// The copy of a pass finds its receiver there, or gone; the giver's next hold it does not touch.
#[tokio::test]
async fn a_pass_that_is_lost_or_late_leaves_one_holder_or_none() {
    for kind in HANDED_OVER {
        for fate in FATES {
            let what = format!("{kind}: {fate:?} of a pass");
            let mut pair = pair_as("").await;
            let first = pair.ours.lock_of(kind, "a").lock().await.expect("free");
            let number = token(&mut pair.control);
            let lock = pair.ours.lock_of(kind, "a").owned_by(&pair.ours.owner());
            let waiting = tokio::spawn(async move { lock.lock().await });
            eventually("it waits", ms(5_000), || pair.ours.stats().waiting == 1).await;
            pair.proxy.rule(fate, 1, passes(kind));
            first
                .unlock()
                .await
                .unwrap_or_else(|error| panic!("{what}: {error}"));
            let second = waiting.await.expect("no panic");
            let second = second.unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_eq!(pair.proxy.hit.load(Ordering::SeqCst), 1, "{what}");
            let before = state(&mut pair.control);
            assert_eq!(before.1, 1, "{what}");
            assert!(kind != LockKind::Fenced || before.2 > number, "{what}");
            pair.proxy.deliver().await;
            assert_eq!(
                state(&mut pair.control),
                before,
                "{what}, after the late copy"
            );
            assert_eq!(second.state(), HoldState::Held, "{what}");
            assert!(is_excluded(&pair.theirs, kind).await, "{what}");
            second.unlock().await.expect("held");
            pair.finish().await;
        }
    }
}

/// What the sections of one lock have seen, in their order.
#[derive(Default)]
struct Seen {
    inside: bool,
    sections: i64,
    tokens: Vec<i64>,
    holders: Vec<String>,
}

/// Soon enough that most connections are cut with commands under way.
const CUT_EVERY: Duration = Duration::from_millis(13);

/// One task: sections that note what they see, until there were enough of both sections and cuts.
async fn sections(
    client: LockClient,
    kind: LockKind,
    mut own: Control,
    seen: Arc<Mutex<Seen>>,
    cuts: Arc<AtomicU32>,
) {
    let mut own_sections = 0;
    while own_sections < 12 || cuts.load(Ordering::Relaxed) < 10 {
        let Ok(guard) = client.lock_of(kind, "a").lock().await else {
            continue;
        };
        let (found, _, number) = state(&mut own);
        {
            let mut seen = seen.lock().expect("unpoisoned");
            assert!(!seen.inside, "{kind}: two owners");
            seen.inside = true;
            seen.sections += 1;
            seen.tokens.push(number);
            seen.holders.push(found.expect("it is held"));
        }
        own_sections += 1;
        tokio::task::yield_now().await;
        seen.lock().expect("unpoisoned").inside = false;
        let _ = guard.unlock().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_constant_cuts_there_is_one_owner_and_no_value_and_no_token_comes_twice() {
    for kind in KINDS.into_iter().filter(|kind| against(*kind) == *kind) {
        let pair = pair_as("").await;
        let (seen, cuts) = (Arc::<Mutex<Seen>>::default(), Arc::<AtomicU32>::default());
        let mut tasks = tokio::task::JoinSet::new();
        for nth in 0..4 {
            let client = [&pair.ours, &pair.ours, &pair.ours, &pair.theirs][nth].clone();
            let (control, cuts) = (pair.server.control(), Arc::clone(&cuts));
            tasks.spawn(sections(client, kind, control, Arc::clone(&seen), cuts));
        }
        let start = Instant::now();
        let (mut pause, mut acquired) = (CUT_EVERY, 0);
        while !tasks.is_empty() {
            assert!(
                start.elapsed() < ms(30_000) + stalls(start),
                "{kind}: stuck"
            );
            tokio::select! {
                Some(done) = tasks.join_next() => done.expect("no panic"),
                () = tokio::time::sleep(pause) => {
                    // On a busy machine a connection may take longer, and no task would ever get anywhere.
                    let so_far = pair.ours.stats().acquired_total;
                    pause = if so_far > acquired { CUT_EVERY } else { (pause * 2).min(ms(1_000)) };
                    acquired = so_far;
                    match cuts.fetch_add(1, Ordering::Relaxed) % 2 {
                        0 => pair.proxy.cut_all(),
                        _ => pair.proxy.cut_one(),
                    }
                }
            }
        }
        {
            let seen = seen.lock().expect("unpoisoned");
            assert!(seen.sections >= 48, "{kind}: {}", seen.sections);
            if kind == LockKind::Fenced {
                let grow = seen.tokens.is_sorted_by(|one, next| one < next);
                assert!(grow, "{:?}", seen.tokens);
            }
            if kind == LockKind::String {
                let values: BTreeSet<&String> = seen.holders.iter().collect();
                assert_eq!(values.len(), seen.holders.len(), "a value was used twice");
            }
        }
        pair.finish().await;
    }
}
