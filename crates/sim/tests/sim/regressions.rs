//! What random schedules found in the client, each as the shortest trace that shows it.

use std::time::Duration;

use redisson_lock::{Error, HoldState, LockKind};
use redisson_lock_test::sim::{Gossip, Latency};
use sim::workload::{
    ClientPlan, Fault, Program, Round, Step, TaskPlan, Until, Verb, World, connect, ms, run,
    runtime,
};

use crate::fixture::{Fixture, begin, end, lock, play};

/// The client ended its connection while the acquire was on its way: the lock stayed taken for a
/// lease.
#[test]
fn closing_undoes_an_acquire_that_is_on_its_way() {
    play(true, async |fixture| {
        fixture.world.hold_answers(0, true);
        let taking = begin(lock(&fixture.task(0))).await;
        assert_eq!(fixture.count(), 1, "the server has executed it");
        let closing = begin(close(&fixture, Duration::ZERO)).await;
        fixture.world.hold_answers(0, false);
        let report = end(closing).await;
        assert_eq!((fixture.server(), report.unconfirmed), (None, 0));
        let taken = end(taking).await;
        assert!(matches!(taken, Err(Error::Closed)), "{taken:?}");
    });
}

/// What cannot be undone in time is reported.
#[test]
fn closing_reports_an_acquire_that_is_not_answered_in_time() {
    play(true, async |fixture| {
        fixture.world.hold_answers(0, true);
        let taking = begin(lock(&fixture.task(0))).await;
        fixture.world.down_for(ms(60_000));
        let report = end(begin(close(&fixture, Duration::ZERO)).await).await;
        assert_eq!(report.unconfirmed, 1);
        assert!(end(taking).await.is_err());
    });
}

/// `stats()` of a closed client went on counting the channel that nobody listened to any more.
#[test]
fn a_closed_client_listens_to_nothing() {
    play(true, async |fixture| {
        assert!(fixture.java_locks("java:1"));
        let waited = fixture.task(0).try_lock_for(ms(50)).await;
        assert!(matches!(waited, Ok(None)), "{waited:?}");
        assert_eq!(fixture.client.stats().subscriptions, 1, "it lingers");
        end(begin(close(&fixture, Duration::ZERO)).await).await;
        assert_eq!(fixture.client.stats().subscriptions, 0);
    });
}

/// Its caller waited for the confirmation until the command timeout, and was then told `NoAnswer`.
#[test]
fn a_caller_that_subscribes_while_the_client_closes_is_told_so() {
    play(true, async |fixture| {
        assert!(fixture.java_locks("java:1"));
        fixture.world.confirm_nothing(0);
        let waiting = begin(lock(&fixture.task(0))).await;
        end(begin(close(&fixture, Duration::ZERO)).await).await;
        let waited = tokio::time::timeout(ms(100), waiting)
            .await
            .expect("immediately")
            .expect("no panic");
        assert!(matches!(waited, Err(Error::Closed)), "{waited:?}");
    });
}

/// They were told in an order of its own by the channel between them: first come was not first
/// served.
#[test]
fn callers_that_wait_for_a_connection_are_served_in_their_order() {
    play(true, async |fixture| {
        fixture.world.down_for(ms(100));
        let mut calls = Vec::new();
        for nth in 0..20 {
            let lock = fixture.client.lock(format!("lock {nth}"));
            calls.push(tokio::spawn(async move { lock.lock().await }));
            tokio::task::yield_now().await;
        }
        for call in calls {
            end(call).await.expect("connected again").detach();
        }
        let keys = fixture.world.oracle.keys_in_order("acquire");
        let expected: Vec<String> = (0..20).map(|nth| format!("lock {nth}")).collect();
        assert_eq!(keys, expected);
        end(begin(close(&fixture, Duration::ZERO)).await).await;
    });
}

/// Its answer took more than half of the command timeout, so its connection was replaced, and the
/// answer over the next one took as long.
#[test]
fn an_answer_that_takes_nearly_the_command_timeout_is_waited_for() {
    play(true, async |fixture| {
        fixture.world.set_latency(Latency {
            least: 400,
            usual: 400,
            seldom: 400,
            seldom_percent: 0,
        });
        let guard = end(begin(lock(&fixture.task(0))).await)
            .await
            .expect("answered after 800 of 1000 ms");
        // The second connection is ready by then, and not needed.
        tokio::time::sleep(ms(5_000)).await;
        assert_eq!(fixture.client.stats().reconnects_total, 0);
        fixture.world.set_latency(Latency {
            least: 0,
            usual: 1,
            seldom: 1,
            seldom_percent: 0,
        });
        guard.unlock().await.expect("held");
    });
}

/// The call is answered in the moment in which a connection that was opened meanwhile gives the old one a chance; the PING is
/// still under way.
#[test]
fn a_connection_that_answers_while_another_is_opened_is_kept() {
    play(true, async |fixture| {
        fixture.world.hold_answers(0, true);
        let taking = begin(lock(&fixture.task(0))).await;
        tokio::time::sleep(ms(450)).await;
        fixture.world.hold_commands(0, true);
        tokio::time::sleep(ms(80)).await;
        fixture.world.hold_answers(0, false);
        let guard = end(taking).await.expect("answered after 530 of 1000 ms");
        tokio::time::sleep(ms(300)).await;
        fixture.world.hold_commands(0, false);
        assert_eq!(fixture.client.stats().reconnects_total, 0);
        guard.unlock().await.expect("held");
    });
}

/// Seed 15978: it was sent again over the same connection, on which nothing can be overtaken, and
/// went down with it when another caller found the connection silent. Nothing was left of its time,
/// or of its copies.
#[test]
fn a_slow_call_survives_the_doubt_of_another() {
    play(true, async |fixture| {
        let call = |name: &str| lock(&fixture.client.lock(name));
        fixture.world.hold_answers(0, true);
        let first = begin(call("first")).await;
        fixture.hold_commands();
        let slow = begin(call("slow")).await;
        tokio::time::sleep(ms(400)).await;
        // The first is answered, the second is not even executed.
        fixture.world.hold_answers(0, false);
        tokio::time::sleep(ms(10)).await;
        let doubting = begin(call("doubting")).await;
        for taken in [first, slow, doubting] {
            end(taken)
                .await
                .expect("sent again over the next connection")
                .unlock()
                .await
                .expect("held");
        }
        assert_eq!(fixture.client.stats().reconnects_total, 1);
    });
}

/// A server that stood still was met by new connections of all its clients at the moment when it
/// went on.
#[test]
fn a_server_that_stood_still_keeps_its_connections() {
    play(true, async |fixture| {
        fixture.world.freeze(ms(2_500));
        let taking = begin(lock(&fixture.task(0))).await;
        let taken = end(taking).await;
        assert!(matches!(taken, Err(Error::NoAnswer { .. })), "{taken:?}");
        let again = tokio::time::timeout(ms(5_000), fixture.task(1).try_lock_for(ms(4_000))).await;
        assert!(again.is_ok(), "it ends");
        tokio::time::sleep(ms(3_000)).await;
        fixture
            .task(1)
            .lock()
            .await
            .expect("back again")
            .unlock()
            .await
            .expect("held");
        assert_eq!(fixture.client.stats().reconnects_total, 0);
    });
}

/// A timer that fires late says that this process stood still, and nothing about the server.
#[test]
fn a_process_that_stood_still_does_not_doubt_its_connection() {
    play(true, async |fixture| {
        fixture.world.hold_answers(0, true);
        let taking = begin(lock(&fixture.task(0))).await;
        tokio::time::sleep(ms(390)).await;
        tokio::time::advance(ms(400)).await;
        tokio::time::sleep(ms(100)).await;
        fixture.world.hold_answers(0, false);
        let guard = end(taking).await.expect("answered after 900 of 1000 ms");
        assert_eq!(fixture.client.stats().reconnects_total, 0);
        guard.unlock().await.expect("held");
    });
}

/// Passed over in the tick in which it would have failed, it took its place again, for as long as its server was silent.
#[test]
fn a_call_whose_attempt_has_no_answer_fails_although_others_queue() {
    play(true, async |fixture| {
        fixture.world.down_for(ms(60_000));
        // In each tick in which an attempt of the first may end: before it does, what is not polled is passed over.
        let other = fixture.task(2);
        let looks = tokio::spawn(async move {
            loop {
                tokio::time::sleep(ms(1_000)).await;
                assert!(other.try_lock().await.expect("not asked").is_none());
            }
        });
        let first = tokio::spawn(lock(&fixture.task(0)));
        let second = begin(lock(&fixture.task(1))).await;
        let taken = tokio::time::timeout(ms(1_500), first).await;
        let taken = taken.expect("it ends").expect("no panic");
        assert!(matches!(taken, Err(Error::NoAnswer { .. })), "{taken:?}");
        looks.abort();
        second.abort();
    });
}

fn close(
    fixture: &Fixture,
    grace: Duration,
) -> impl Future<Output = redisson_lock::CloseReport> + Send + 'static {
    let client = fixture.client.clone();
    async move { client.close(grace).await }
}

/// Of every message.
const ONE_MS: Latency = Latency {
    least: 1,
    usual: 1,
    seldom: 1,
    seldom_percent: 0,
};

/// What a replica has not heard of is lost in a failover, and an extension is no less promised than the hold.
#[test]
fn a_lease_that_was_extended_is_restored_after_a_failover() {
    // Of the first primary.
    let key = "app:stock";
    for nested in [false, true] {
        runtime().block_on(async {
            let world = World::cluster(1, ONE_MS);
            world.spawn();
            let plan = ClientPlan::simple(true);
            let client = connect(&world, 0, ms(30_000), ms(1_000), &plan).await;
            let lock = client.lock(key).owned_by(&client.owner_with_id(-1));
            let outer = lock.lease(ms(5_000)).lock().await.expect("free");
            assert!(world.cut_replica_off(0));
            let inner = match nested {
                true => Some(lock.lease(ms(60_000)).lock().await.expect("ours")),
                false => {
                    outer.extend(ms(60_000)).await.expect("held");
                    None
                }
            };
            let promoted = world.promote(Duration::ZERO, &[key]);
            assert!(promoted.is_some(), "it has another server now");
            tokio::time::sleep(ms(4_000)).await;
            let expires = world.with_home(key, |keyspace| keyspace.expires_at(key));
            assert!(expires > Some(50_000), "{expires:?}");
            let guard = inner.as_ref().unwrap_or(&outer);
            assert_eq!(guard.state(), HoldState::Held);
        });
    }
}

/// A slot moves to a server to which there was no connection, and a call that does not wait comes while it is opened: it
/// was told that the server is not to be reached.
#[test]
fn a_connection_that_is_being_opened_is_no_outage() {
    let key = "app:stock";
    runtime().block_on(async {
        let world = World::cluster(1, ONE_MS);
        world.spawn();
        let plan = ClientPlan::simple(true);
        let client = connect(&world, 0, ms(30_000), ms(1_000), &plan).await;
        let of = |owner| client.lock(key).owned_by(&client.owner_with_id(owner));
        let held = of(-1).lock().await.expect("free");
        // While it is there, so is what the client knows of the lock.
        let handle = held.handle();
        held.unlock().await.expect("held");
        assert!((1..3).any(|node| world.begin_to_move(key, node)));
        world.move_keys(key, |_| true);
        let gossip = Gossip {
            within: Duration::ZERO,
            new_epoch: true,
        };
        world.end_move(key, gossip);
        let (first, second) = (of(-1), of(-2));
        let taking = begin(async move { first.lock().await }).await;
        let (mut asked, mut busy) = (0, 0);
        while !taking.is_finished() {
            let found = second.try_lock().await.expect("no outage");
            (asked, busy) = (asked + 1, busy + usize::from(found.is_none()));
            tokio::time::sleep(ms(1)).await;
        }
        assert!(asked > 1 && asked == busy, "{busy} of {asked}");
        drop(taking.await.expect("no panic").expect("free"));
        drop(handle);
    });
}

/// A call that waits for a lock, and is dropped at this moment if it has not got it.
fn take(lock: usize, until: Until) -> Step {
    Step::Take {
        lock,
        verb: Verb::Lock,
        lease_ms: None,
        max_hold_ms: None,
        until,
    }
}

fn cut_off(client: usize, reported: bool) -> Fault {
    Fault::Cut { client, reported }
}

fn one_round(tasks: Vec<(usize, i64, Vec<Step>)>, faults: Vec<(u64, Fault)>) -> Vec<Round> {
    let tasks = tasks.into_iter().map(|(client, owner, steps)| TaskPlan {
        client,
        owner,
        steps,
    });
    vec![Round {
        tasks: tasks.collect(),
        java: Vec::new(),
        faults,
    }]
}

/// A waiter had a place under its own field when the connection was replaced without a fence. It asked for a field that
/// was not used before, without a pause, and never got one. Under the other field it was told on a channel to which it was
/// not subscribed.
#[test]
fn a_waiter_of_a_fair_lock_gets_it_after_a_reconnect_without_a_fence() {
    let unlock = Step::Unlock {
        which: 0,
        until: Until::Done,
    };
    let holder = vec![
        take(0, Until::Done),
        Step::Sleep { ms: 3_000 },
        unlock.clone(),
    ];
    let waiter = vec![Step::Sleep { ms: 10 }, take(0, Until::Ms(3_500)), unlock];
    let program = Program {
        clients: vec![ClientPlan::simple(true), ClientPlan::simple(false)],
        rounds: one_round(
            vec![(0, -1, holder), (1, -1, waiter)],
            vec![(300, cut_off(1, true)), (900, cut_off(1, true))],
        ),
        watchdog_ms: 30_000,
        fair_wait_ms: 300_000,
        reports: false,
        late_percent: 0,
        ..Program::roll(1).of_kind(LockKind::Fair)
    };
    let outcome = run(&program, true);
    let history = outcome.history.join("\n");
    assert_eq!(outcome.violation, None, "{history}");
    assert_eq!(outcome.counts.taken, 2, "{history}");
}

/// The server did not answer for longer than the lease of the write hold, and its release gave up. What its owner went on
/// reading kept the lock, so it stayed in Redis as held for writing, and kept other readers out.
#[test]
fn a_writer_that_went_on_reading_is_gone_after_an_outage_longer_than_its_lease() {
    let writes = Step::Take {
        lock: 0,
        verb: Verb::Lock,
        lease_ms: Some(2_000),
        max_hold_ms: None,
        until: Until::Done,
    };
    let downgrades = vec![writes, take(3, Until::Done), Step::Sleep { ms: 9_000 }];
    let reads = vec![Step::Sleep { ms: 6_000 }, take(3, Until::Ms(2_000))];
    let program = Program {
        clients: vec![ClientPlan::simple(true), ClientPlan::simple(true)],
        rounds: one_round(
            vec![(0, -1, downgrades), (1, -1, reads)],
            vec![(500, Fault::Down { ms: 5_000 })],
        ),
        watchdog_ms: 30_000,
        late_percent: 0,
        ..Program::roll(1).of_kind(LockKind::Write)
    };
    let outcome = run(&program, true);
    let history = outcome.history.join("\n");
    assert_eq!(outcome.violation, None, "{history}");
    assert_eq!(outcome.counts.beside, 1, "{history}");
}

/// Without a fence, too: the release of an earlier attempt had no answer, and the place stayed for the next call of its
/// owner, which took the lock under the same field. Then the release was executed.
#[test]
fn a_late_release_does_not_free_what_a_fair_lock_gave_to_the_next_call_of_its_owner() {
    let call = |lock, verb, until| Step::Take {
        lock,
        verb,
        lease_ms: None,
        max_hold_ms: None,
        until,
    };
    let done = Until::Done;
    let limited = Step::Take {
        lock: 1,
        verb: Verb::Lock,
        lease_ms: None,
        max_hold_ms: Some(2_500),
        until: done,
    };
    let tasks = vec![
        (0, -1, vec![call(0, Verb::Try, done)]),
        (
            0,
            -2,
            vec![
                call(0, Verb::Run(1_085), Until::Ms(0)),
                call(1, Verb::Run(1_024), done),
            ],
        ),
        (0, -4, vec![take(0, done), limited, take(1, done)]),
    ];
    let unfenced = ClientPlan {
        may_kill: false,
        prefix: true,
        passes: 0,
        ..ClientPlan::simple(false)
    };
    let program = Program {
        latency: Latency {
            least: 0,
            usual: 0,
            seldom: 1_571,
            seldom_percent: 9,
        },
        late_percent: 5,
        watchdog_ms: 3_000,
        command_ms: 900,
        fair_wait_ms: 5_000,
        reports: false,
        clients: vec![unfenced],
        rounds: one_round(tasks, vec![(1_432, cut_off(0, false))]),
        ..Program::roll(4_727).of_kind(LockKind::Fair)
    };
    let outcome = run(&program, true);
    assert_eq!(outcome.violation, None, "{}", outcome.history.join("\n"));
}
