//! A row for each kind of lock beyond one server: in a cluster whose slots move and whose primaries fail over, behind
//! Sentinel, and with replicas that have to confirm.

use std::time::Duration;

use redisson_lock::{Error, HoldState, Lock, LockClient, LockKind, LossReason, Script};
use test_support::kinds::{
    HANDED_OVER, KINDS, NESTED, against, count, endless, holder, is_token, rob, token_key,
};
use test_support::{
    Cluster, Sentinels, Server, TestServer, eventually, lock_and_unlock, ms, nothing_is_left,
    replicas_of, resource, slot, tokio, within,
};

/// No renewal is due for twenty seconds.
async fn connect(url: &str) -> LockClient {
    LockClient::builder()
        .watchdog_timeout(ms(60_000))
        .command_timeout(ms(900))
        .connect(url)
        .await
        .expect("it answers")
}

async fn is_busy(lock: &Lock) -> bool {
    lock.try_lock().await.expect("asked").is_none()
}

async fn close(clients: impl IntoIterator<Item = LockClient>) {
    for client in clients {
        let report = client.close(Duration::ZERO).await;
        assert!(report.abandoned.is_empty(), "{report:?}");
    }
}

#[tokio::test]
async fn in_a_cluster_each_kind_excludes_nests_and_frees_at_every_primary() {
    let cluster = Cluster::start(false).await;
    let (client, other) = (connect(&cluster.url()).await, connect(&cluster.url()).await);
    for kind in KINDS {
        for nth in 0..3 {
            let key = cluster.key_at(nth, &format!("lock-of-{kind}"));
            let control = &mut cluster.control(nth);
            let (lock, theirs) = (
                client.lock_of(kind, key.clone()),
                other.lock_of(against(kind), key.clone()),
            );
            let guard = lock.lock().await.expect("free");
            assert!(is_busy(&theirs).await, "{kind}");
            if NESTED.contains(&kind) {
                let nested = lock.lock().await.expect("nested");
                assert_eq!(count(control, &key), 2, "{kind}");
                nested.unlock().await.expect("held");
            }
            assert_eq!(count(control, &key), 1, "{kind}");
            assert_eq!(endless(control), [""; 0], "{kind}");
            let found = lock.inspect().await.expect("asked").expect("held");
            assert_eq!(Some(found.owner), holder(control, &key), "{kind}");
            let waiting = tokio::spawn(async move { theirs.lock().await });
            eventually("it waits", ms(5_000), || other.stats().waiting == 1).await;
            guard.unlock().await.expect("held");
            let waited = within(ms(5_000), waiting).await.expect("woken");
            let guard = waited.expect("no panic").expect("free");
            // Taken away: the renewal that looks at it finds that out.
            rob(control, kind, &key);
            assert!(guard.unlock().await.is_err(), "{kind}");
            assert!(lock.force_unlock().await.expect("asked"), "{kind}");
            assert_eq!(holder(control, &key), None, "{kind}");
        }
    }
    let stats = client.stats();
    assert_eq!((stats.nodes, stats.redirects_total), (3, 0));
    nothing_is_left(&cluster, [client, other]).await;
}

#[tokio::test]
async fn each_kind_follows_a_slot_that_has_moved() {
    let cluster = Cluster::start(false).await;
    let (client, other) = (connect(&cluster.url()).await, connect(&cluster.url()).await);
    for kind in KINDS {
        let key = cluster.key_at(0, &format!("lock-of-{kind}"));
        let (lock, theirs) = (
            client.lock_of(kind, key.clone()),
            other.lock_of(against(kind), key.clone()),
        );
        let guard = lock.lock().await.expect("free");
        let number = token(&cluster, 0, &key);
        cluster.move_slot(slot(&key), 0, 1);
        // Both are sent on.
        assert!(is_busy(&theirs).await, "{kind}");
        if NESTED.contains(&kind) {
            let nested = lock.lock().await.expect("ours");
            assert_eq!(count(&mut cluster.control(1), &key), 2, "{kind}");
            nested.unlock().await.expect("held");
        }
        assert_eq!(guard.state(), HoldState::Held, "{kind}");
        guard.unlock().await.expect("held");
        let guard = theirs.lock().await.expect("free");
        let moved = token(&cluster, 1, &key);
        assert!(
            kind != LockKind::Fenced || moved > number,
            "{moved} after {number}"
        );
        assert_eq!(endless(&mut cluster.control(1)), [""; 0], "{kind}");
        guard.unlock().await.expect("held");
    }
    assert!(client.stats().redirects_total >= 1);
    nothing_is_left(&cluster, [client, other]).await;
}

/// The token at this node; 0 if there is none.
fn token(cluster: &Cluster, nth: usize, key: &str) -> i64 {
    let token = cluster.control(nth).try_run(&["GET", &token_key(key)]);
    token.ok().and_then(|token| token.parse().ok()).unwrap_or(0)
}

/// A key that is not there yet is made at the target (`ASK`); one that is there is used at the source.
#[tokio::test]
async fn each_kind_is_taken_and_released_while_its_slot_is_on_its_way() {
    let cluster = Cluster::start(false).await;
    let (client, other) = (connect(&cluster.url()).await, connect(&cluster.url()).await);
    for kind in KINDS {
        let stays = cluster.key_at(0, &format!("held-{kind}"));
        let comes = format!("{{{stays}}}:new");
        let held = client
            .lock_of(kind, stays.clone())
            .lock()
            .await
            .expect("free");
        cluster.begin_to_move(slot(&stays), 0, 1);
        let new = client.lock_of(kind, comes.clone());
        if [LockKind::Fenced, LockKind::Fair, LockKind::Read].contains(&kind) {
            // Its keys would be made at the target, which refuses a call with several that are not there.
            let refused = new.try_lock().await.expect_err("refused");
            assert!(refused.is_retryable(), "{refused:?}");
            cluster.move_keys(slot(&stays), 0, 1);
            cluster.end_move(slot(&stays), 0, 1);
            held.unlock().await.expect("held");
            lock_and_unlock(&new).await;
            continue;
        }
        let new = new.lock().await.expect("asked for");
        let asked = cluster.control(0).try_run(&["EXISTS", &comes]);
        assert!(
            asked.is_err(),
            "{kind}: the source sends everybody on: {asked:?}"
        );
        for key in [&stays, &comes] {
            assert!(
                is_busy(&other.lock_of(against(kind), key.clone())).await,
                "{kind}: {key}"
            );
        }
        if NESTED.contains(&kind) {
            for key in [&stays, &comes] {
                let nested = client
                    .lock_of(kind, key.clone())
                    .lock()
                    .await
                    .expect("nested");
                nested.unlock().await.expect("held");
            }
        }
        new.unlock().await.expect("held");
        let later = client.lock_of(kind, format!("{comes}er"));
        let taken = later.lock().await.expect("asked for");
        cluster.move_keys(slot(&stays), 0, 1);
        let theirs = other.lock_of(against(kind), stays.clone());
        assert!(is_busy(&theirs).await, "{kind}");
        cluster.end_move(slot(&stays), 0, 1);
        assert_eq!(count(&mut cluster.control(1), later.name()), 1, "{kind}");
        taken.unlock().await.expect("held");
        assert_eq!(held.state(), HoldState::Held, "{kind}");
        held.unlock().await.expect("held");
        let again = other.lock_of(kind, comes).lock().await.expect("free");
        again.unlock().await.expect("held");
    }
    nothing_is_left(&cluster, [client, other]).await;
}

/// Its token is at the source and the lock nowhere: Redis refuses a call with one key that exists and one that does
/// not. A held one has both.
#[tokio::test]
async fn a_free_fenced_lock_recovers_when_its_slot_has_moved() {
    let cluster = Cluster::start(false).await;
    let client = connect(&cluster.url()).await;
    let key = cluster.key_at(0, "fenced");
    let lock = client.fenced_lock(key.clone());
    let guard = lock.lock().await.expect("free");
    let before = guard.token();
    guard.unlock().await.expect("held");
    cluster.begin_to_move(slot(&key), 0, 1);
    let refused = lock.try_lock().await;
    let refused = refused.expect_err("one key exists, the other does not");
    assert!(refused.is_retryable(), "{refused:?}");
    println!("refused: {refused}");
    assert_eq!(
        cluster.control(0).run(&["GET", &token_key(&key)]),
        before.to_string()
    );
    // A call that is to be tried again for that long gets it as soon as the slot has moved.
    let patient = client.fenced_lock(key.clone()).retry_for(ms(30_000));
    let waiting = tokio::spawn(async move { patient.lock().await });
    tokio::time::sleep(ms(300)).await;
    assert!(!waiting.is_finished(), "it is tried again");
    cluster.move_keys(slot(&key), 0, 1);
    cluster.end_move(slot(&key), 0, 1);
    let waited = within(ms(10_000), waiting).await.expect("it recovers");
    let guard = waited.expect("no panic").expect("free");
    assert_eq!(guard.token(), before + 1, "nothing was raised meanwhile");
    guard.unlock().await.expect("held");
    let guard = lock.lock().await.expect("free");
    assert_eq!(guard.token(), before + 2);
    guard.unlock().await.expect("held");
    nothing_is_left(&cluster, [client]).await;
}

/// One of its keys has moved, the other not yet: what needs both waits, what needs the lock alone does not.
#[tokio::test]
async fn a_held_fenced_lock_is_renewed_and_released_between_two_halves_of_a_slot() {
    let cluster = Cluster::start(false).await;
    let client = LockClient::builder()
        .watchdog_timeout(ms(1_500))
        .command_timeout(ms(450))
        .connect(&cluster.url())
        .await
        .expect("it answers");
    let key = cluster.key_at(0, "fenced");
    let lock = client.fenced_lock(key.clone());
    let guard = lock.lock().await.expect("free");
    cluster.begin_to_move(slot(&key), 0, 1);
    let port = cluster.port(1).to_string();
    let words = ["MIGRATE", "127.0.0.1", &port, &key, "0", "5000"];
    cluster.control(0).run(&words);
    let nested = lock
        .try_lock()
        .await
        .expect_err("its keys are at two nodes");
    assert!(nested.is_retryable(), "{nested:?}");
    let renewed = client.stats().renewed_total;
    eventually("it is renewed", ms(5_000), || {
        client.stats().renewed_total > renewed
    })
    .await;
    assert_eq!(guard.state(), HoldState::Held);
    let next = lock.owned_by(&client.owner()).retry_for(ms(30_000));
    let waiting = tokio::spawn(async move { next.lock().await });
    eventually("it waits", ms(5_000), || client.stats().waiting == 1).await;
    // It cannot be handed over, and is released.
    let token = guard.token();
    guard.unlock().await.expect("held");
    cluster.move_keys(slot(&key), 0, 1);
    cluster.end_move(slot(&key), 0, 1);
    let waited = within(ms(20_000), waiting).await.expect("it recovers");
    let guard = waited.expect("no panic").expect("free");
    assert_eq!(guard.token(), token + 1);
    guard.unlock().await.expect("held");
    nothing_is_left(&cluster, [client]).await;
}

#[tokio::test]
async fn a_failover_of_a_cluster_loses_no_hold_of_any_kind() {
    let cluster = Cluster::start(true).await;
    let (client, other) = (connect(&cluster.url()).await, connect(&cluster.url()).await);
    let tag = cluster.key_at(0, "held");
    let lock = |client: &LockClient, kind| client.lock_of(kind, format!("{{{tag}}}:{kind}"));
    let mut guards = Vec::new();
    for kind in KINDS {
        guards.push(lock(&client, kind).lock().await.expect("free"));
    }
    let before = token(&cluster, 0, &format!("{{{tag}}}:fenced"));
    cluster.fail_over_to(3).await;
    let switched = || client.stats().failovers_total == 1 && other.stats().failovers_total == 1;
    eventually("it is noticed", ms(7_000), switched).await;
    let written = format!("{{{tag}}}:n");
    let script = Script::new("return redis.call('incr', KEYS[1])").expect("it is whole");
    for (nth, (kind, guard)) in (1..).zip(KINDS.into_iter().zip(guards)) {
        let theirs = other.lock_of(against(kind), lock(&other, kind).name());
        assert!(is_busy(&theirs).await, "{kind}");
        if NESTED.contains(&kind) {
            lock_and_unlock(&lock(&client, kind)).await;
        }
        assert_eq!(guard.state(), HoldState::Held, "{kind}");
        let write = guard.eval(&script, &[&written], &[""; 0]).await;
        assert_eq!(write.expect("held").as_int(), Some(nth), "{kind}");
        guard.unlock().await.expect("held");
        let next = lock(&other, kind).lock().await.expect("free");
        next.unlock().await.expect("held");
    }
    cluster.control(3).run(&["DEL", &written]);
    let after = token(&cluster, 3, &format!("{{{tag}}}:fenced"));
    assert_eq!(after, before + 1);
    assert_eq!(endless(&mut cluster.control(3)), [""; 0]);
    nothing_is_left(&cluster, [client, other]).await;
}

/// A hold of each kind that the replicas have, and one of each that they do not have.
#[tokio::test]
async fn behind_sentinel_each_kind_keeps_what_was_replicated_and_is_told_of_what_was_not() {
    let mut sentinels = Sentinels::start().await;
    let (client, other) = (
        connect(&sentinels.url()).await,
        connect(&sentinels.url()).await,
    );
    let mut kept = Vec::new();
    for kind in KINDS {
        let lock = client.lock_of(kind, format!("kept-{kind}"));
        kept.push((kind, lock.lock().await.expect("free")));
    }
    for nth in [1, 2] {
        let replicated = || sentinels.control(nth).run(&["EXISTS", "kept-write"]) == "1";
        eventually("it is replicated", ms(5_000), replicated).await;
        // From here on the replica hears nothing.
        sentinels.server(nth).pause();
    }
    sentinels
        .control(0)
        .run(&["CLIENT", "KILL", "TYPE", "replica"]);
    let mut lost = Vec::new();
    for kind in KINDS {
        let lock = client.lock_of(kind, format!("lost-{kind}"));
        lost.push((kind, lock.lock().await.expect("free")));
    }
    sentinels.server(0).kill();
    for nth in [1, 2] {
        sentinels.server(nth).resume();
    }
    let primary = sentinels.new_primary(0, ms(30_000)).await;
    for (kind, guard) in lost {
        let reason = within(ms(1_200 + 2_000), guard.lost()).await;
        assert_eq!(reason, Some(LossReason::Gone), "{kind}");
        assert!(guard.unlock().await.is_err(), "{kind}");
    }
    let control = &mut sentinels.control(primary);
    assert_eq!(endless(control), [""; 0]);
    let noticed = || other.stats().failovers_total >= 1;
    eventually("the other notices", ms(15_000), noticed).await;
    for (kind, guard) in kept {
        let theirs = other.lock_of(against(kind), format!("kept-{kind}"));
        assert!(is_busy(&theirs).await, "{kind}");
        assert_eq!(guard.state(), HoldState::Held, "{kind}");
        guard.unlock().await.expect("held");
        let next = theirs.lock().await.expect("free");
        next.unlock().await.expect("held");
    }
    let is_left = |control: &mut test_support::Control| {
        let keys = control.run(&["KEYS", "*"]);
        keys.split(' ').any(|key| !key.is_empty() && !is_token(key))
    };
    eventually("no key but tokens is left", ms(10_000), || {
        !is_left(control)
    })
    .await;
    close([client, other]).await;
}

#[tokio::test]
async fn with_sync_replicas_each_kind_is_taken_confirmed_and_handed_over_or_not_at_all() {
    let primary = TestServer::new();
    let replicas = replicas_of(&primary, 2).await;
    let client = primary.client().await;
    let control = &mut primary.control();
    for kind in KINDS {
        let (waits, passes) = (control.calls("wait"), client.stats().passes_total);
        let key = format!("lock-of-{kind}");
        let lock = client
            .lock_of(kind, key.clone())
            .sync_replicas(2, ms(2_500));
        let all_have = |control: &mut test_support::Control| {
            let theirs = holder(control, &key);
            let at = replicas
                .iter()
                .map(|replica| holder(&mut replica.control(), &key));
            theirs.is_some() && at.into_iter().all(|at| at == theirs)
        };
        let guard = lock.lock().await.expect("both have it");
        assert!(all_have(control), "{kind}");
        let next = client
            .lock_of(against(kind), key.clone())
            .sync_replicas(2, ms(2_500));
        let next = next.owned_by(&client.owner()).lease(ms(30_000));
        let waiting = tokio::spawn(async move { next.lock().await });
        eventually("it waits", ms(5_000), || client.stats().waiting == 1).await;
        guard.unlock().await.expect("held");
        let guard = waiting.await.expect("no panic").expect("both have it");
        assert!(all_have(control), "{kind}, handed over");
        let waits = control.calls("wait") - waits;
        assert_eq!(waits, 2, "{kind}: one for each owner");
        let is_passed = client.stats().passes_total - passes == 1;
        assert_eq!(is_passed, HANDED_OVER.contains(&kind), "{kind}");
        // Longer than before: the replicas have that too when the call returns.
        guard.extend(ms(90_000)).await.expect("held");
        let left = replicas.iter().map(|replica| replica.control().pttl(&key));
        assert!(left.into_iter().all(|left| left > 60_000), "{kind}");
        guard.unlock().await.expect("held");
        replicas[0].pause();
        let refused = client.lock_of(kind, key.clone()).sync_replicas(2, ms(300));
        let refused = refused.try_lock().await;
        let is_told = matches!(refused, Err(Error::TooFewReplicas { .. }));
        assert!(is_told, "{kind}: {refused:?}");
        let freed = || holder(control, &key).is_none();
        eventually("it is released again", ms(5_000), freed).await;
        replicas[0].resume();
        let both = || control.number(&["WAIT", "2", "100"]) == 2;
        eventually("both acknowledge", ms(20_000), both).await;
    }
    assert_eq!(endless(control), [""; 0]);
    close([client]).await;
}

/// The new primary has not heard of the last token, and gives it to another holder.
#[tokio::test]
async fn a_token_that_a_failover_repeats_is_refused_by_a_resource_that_stores_its_owner() {
    let mut cluster = Cluster::start(true).await;
    let (client, other) = (connect(&cluster.url()).await, connect(&cluster.url()).await);
    let key = cluster.key_at(0, "ledger");
    let resource = Server::start();
    let control = &mut resource.control();
    let mut writes = |token: u64, owner: &str| {
        resource::write(control, ["resource", "writes"], token, owner) > 0
    };
    let guard = client.fenced_lock(key.clone()).lock().await.expect("free");
    assert!(writes(guard.token(), &guard.owner().to_string()));
    guard.unlock().await.expect("held");
    let replicated = || {
        let mut replica = cluster.control(3);
        replica.run(&["READONLY"]);
        replica.run(&["GET", &token_key(&key)]) == "1" && replica.run(&["EXISTS", &key]) == "0"
    };
    eventually("it is replicated", ms(5_000), replicated).await;
    // From here on the replica hears nothing.
    cluster.server(3).pause();
    cluster
        .control(0)
        .run(&["CLIENT", "KILL", "TYPE", "replica"]);
    let stale = client.fenced_lock(key.clone()).lock().await.expect("free");
    let early = (stale.token(), stale.owner().to_string());
    cluster.server(0).kill();
    cluster.server(3).resume();
    cluster.is_primary(3, ms(15_000)).await;
    let noticed = || other.stats().failovers_total >= 1;
    eventually("the other notices", ms(15_000), noticed).await;
    let patient = other.fenced_lock(key.clone()).retry_for(ms(20_000));
    let later = patient.lock().await.expect("free at the new primary");
    let owner = later.owner().to_string();
    assert_eq!(
        later.token(),
        early.0,
        "the same number, from two primaries"
    );
    assert!(writes(later.token(), &owner), "the later holder, first");
    assert!(!writes(early.0, &early.1), "the stale writer is refused");
    assert!(writes(later.token(), &owner), "its holder writes again");
    let reason = within(ms(5_000), stale.lost()).await;
    assert!(reason.is_some(), "and it is told of its loss");
    drop(stale);
    later.unlock().await.expect("held");
    let next = client.fenced_lock(key).lock().await.expect("free");
    assert!(next.token() > early.0);
    assert!(writes(next.token(), &next.owner().to_string()));
    assert!(!writes(early.0, &owner));
    next.unlock().await.expect("held");
    nothing_is_left(&cluster, [client, other]).await;
}
