//! Behind a proxy that checks scripts as some hosted clusters do: the text of each must name its keys literally.

use std::time::Duration;

use redisson_lock::{Error, Lock, LockClient, LockKind, Once, Script};
use test_support::kinds::{HANDED_OVER, NESTED, against, holder, is_token, scripts};
use test_support::{Proxy, TestServer, assert_matches, eventually, is_script, ms, tokio, within};

/// Those with such scripts only.
const LITERAL: [LockKind; 5] = [
    LockKind::Plain,
    LockKind::Spin,
    LockKind::Fenced,
    LockKind::String,
    LockKind::Fair,
];

/// A server whose clients come through such a proxy. Nobody has loaded a script past it.
struct Checked {
    server: TestServer,
    proxy: Proxy,
    one: LockClient,
    other: LockClient,
}

impl Checked {
    async fn new() -> Self {
        let server = TestServer::new();
        let proxy = Proxy::start(server.port).await;
        proxy.checks_scripts();
        let client = || async {
            let builder = LockClient::builder().watchdog_timeout(ms(6_000));
            builder.connect(&proxy.url()).await.expect("it answers")
        };
        let (one, other) = (client().await, client().await);
        Self {
            server,
            proxy,
            one,
            other,
        }
    }

    fn locks(&self, kind: LockKind) -> (Lock, Lock, String) {
        let name = format!("lock-of-{kind}");
        let lock = self.one.lock_of(kind, &*name);
        (lock, self.other.lock_of(against(kind), &*name), name)
    }

    /// Whether a client has sent this script about this key, and the server has run it.
    fn has_run(&self, source: &str, key: &str) -> bool {
        let calls = self.proxy.script_calls();
        let mut calls = calls.iter();
        calls.any(|words| is_script(words, source) && words[3..].iter().any(|word| word == key))
    }

    /// Proves that nothing is left; the proxy runs until what is in the background has ended.
    async fn finish(self) {
        let clients = [self.one, self.other];
        let mut control = self.server.control();
        eventually("nothing is under way", ms(5_000), || {
            let keys = control.run(&["KEYS", "*"]);
            let is_clean = keys.split(' ').all(|key| key.is_empty() || is_token(key));
            is_clean && clients.iter().all(|client| client.stats().releasing == 0)
        })
        .await;
        for client in clients {
            client.close(Duration::ZERO).await;
        }
        self.proxy.stop().await;
        self.server.finish([]).await;
    }
}

#[tokio::test]
async fn every_verb_of_every_kind_but_read_write_locks_is_accepted() {
    let checked = Checked::new().await;
    let mut control = checked.server.control();
    for kind in LITERAL {
        let (lock, theirs, key) = checked.locks(kind);
        assert_eq!(lock.check().await.expect("asked"), [""; 0], "{kind}");
        let outer = lock.lock().await.expect("free");
        if NESTED.contains(&kind) {
            let inner = lock.lock().await.expect("nested");
            inner.unlock().await.expect("held");
        }
        let busy = theirs.try_lock_for(ms(50)).await.expect("asked");
        assert!(busy.is_none(), "{kind}");
        let seen = theirs.inspect().await.expect("asked").expect("held");
        assert_eq!(Some(seen.owner), holder(&mut control, &key), "{kind}");

        let waiting = tokio::spawn({
            let theirs = theirs.clone();
            async move { theirs.lock().await }
        });
        eventually("it waits", ms(5_000), || checked.other.stats().waiting == 1).await;
        outer.unlock().await.expect("held");
        let theirs = within(ms(5_000), waiting).await.expect("woken");
        let theirs = theirs.expect("no panic").expect("free");
        assert!(lock.force_unlock().await.expect("asked"), "{kind}");
        assert_matches!(theirs.unlock().await, Err(Error::Lost { .. }), "{kind}");
        let scripts = scripts(kind);
        for source in [scripts.acquire, scripts.release, scripts.force_unlock] {
            assert!(checked.has_run(source, &key), "{kind}: {source}");
        }
    }
    checked.finish().await;
}

#[tokio::test]
async fn a_renewal_and_a_hand_off_are_accepted() {
    let checked = Checked::new().await;
    let mut control = checked.server.control();
    let mut held = Vec::new();
    // The writer of a read-write lock is renewed as a plain lock is.
    for kind in LITERAL.into_iter().chain([LockKind::Write]) {
        let (lock, _, key) = checked.locks(kind);
        held.push((kind, lock.lock().await.expect("free"), key));
    }
    for (kind, guard, key) in held {
        let renew = scripts(kind).renew;
        eventually("it is renewed", ms(8_000), || checked.has_run(renew, &key)).await;
        eventually("it has its whole lease", ms(5_000), || {
            control.pttl(&key) > 4_500
        })
        .await;
        guard.unlock().await.expect("held");
    }
    for kind in HANDED_OVER {
        let (lock, _, key) = checked.locks(kind);
        let guard = lock.lock().await.expect("free");
        let next = tokio::spawn(async move { lock.lock().await });
        eventually("it waits", ms(5_000), || checked.one.stats().waiting == 1).await;
        guard.unlock().await.expect("held");
        let next = within(ms(5_000), next).await.expect("woken");
        let next = next.expect("no panic").expect("handed over");
        assert!(checked.has_run(scripts(kind).pass, &key), "{kind}");
        next.unlock().await.expect("held");
    }
    checked.finish().await;
}

#[tokio::test]
async fn the_queue_of_a_fair_lock_is_accepted() {
    let checked = Checked::new().await;
    let (lock, theirs, _) = checked.locks(LockKind::Fair);
    let held = lock.lock().await.expect("free");
    let waiting = tokio::spawn({
        let theirs = theirs.clone();
        async move { theirs.lock().await }
    });
    eventually("it waits", ms(5_000), || checked.other.stats().waiting == 1).await;
    // This one leaves the queue.
    let impatient = lock.owned_by(&checked.one.owner());
    let left = impatient.try_lock_for(ms(200)).await;
    assert!(left.expect("asked").is_none());
    let mut queue = lock.queue().await.expect("asked");
    let limit = tokio::time::Instant::now() + ms(5_000);
    while queue.len() != 1 && tokio::time::Instant::now() < limit {
        queue = lock.queue().await.expect("asked");
    }
    assert_eq!(queue.len(), 1, "{queue:?}");
    held.unlock().await.expect("held");
    let next = within(ms(5_000), waiting).await.expect("woken");
    let next = next.expect("no panic").expect("served");
    next.unlock().await.expect("held");
    checked.finish().await;
}

#[tokio::test]
async fn a_guarded_write_is_accepted_whatever_its_own_part_does() {
    let checked = Checked::new().await;
    let mut control = checked.server.control();
    let part = "local key = KEYS[1] return redis.call('incr', key)";
    let part = Script::new(part).expect("it is whole");
    for kind in LITERAL {
        let (lock, _, name) = checked.locks(kind);
        // In the slot of the lock.
        let key = format!("{{{name}}}:n");
        let guard = lock.lock().await.expect("free");
        let written = guard.eval(&part, &[&key], &[""; 0]).await;
        written.unwrap_or_else(|error| panic!("{kind}: {error}"));
        for ran in [true, false] {
            let write = guard.eval(&part, &[&key], &[""; 0]);
            let once = write.once("7", Duration::from_secs(60)).await;
            let once = once.expect("held");
            assert_eq!(matches!(once, Once::Ran(_)), ran, "{kind}: {once:?}");
        }
        guard.unlock().await.expect("held");
        assert_eq!(control.run(&["GET", &key]), "2", "{kind}");
        control.run(&["DEL", &key]);
    }
    for key in control.run(&["KEYS", "redisson_lock_once:*"]).split(' ') {
        control.run(&["DEL", key]);
    }
    checked.finish().await;
}

#[tokio::test]
async fn a_read_lock_is_refused_with_the_reason_and_nothing_is_held() {
    let checked = Checked::new().await;
    let lock = checked.one.rw_lock("report");
    let wanted = "it runs no scripts that compute names of keys, as those of read-write locks do";
    let refused = lock.read().lock().await.expect_err("refused").to_string();
    assert!(refused.contains(wanted), "{refused}");
    let write = lock.write().lock().await.expect("free");
    let refused = lock.write().inspect().await.expect_err("refused");
    assert!(refused.to_string().contains(wanted), "{refused}");
    write.unlock().await.expect("held");
    checked.finish().await;
}
