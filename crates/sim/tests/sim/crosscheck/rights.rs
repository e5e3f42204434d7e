//! A client of the simulated server and one of a real server, whose users have the same rights: every
//! call says the same.

use std::time::Duration;

use redisson_lock::{Error, LockClient};
use redisson_lock_test::{FakeRedis, OtherHolder};
use test_support::{Control, Server, tokio};

/// Rules of `ACL SETUSER`, applied to a user with all rights.
const RULES: [&str; 29] = [
    "",
    "-publish",
    "-subscribe",
    "-ping",
    "resetchannels",
    "resetchannels &redisson_lock__channel:*",
    "resetchannels &redisson_lock__channel:{java}",
    "resetchannels &redisson_lock__channel:{own}",
    "-publish resetchannels",
    "-evalsha",
    "-eval",
    "-evalsha -eval",
    "-hget",
    "-hexists",
    "-hlen",
    "-hkeys",
    "-hincrby",
    "-hdel",
    "-exists",
    "-del",
    "-pttl",
    "-pexpire",
    "-client",
    "-client|kill",
    "-client|info",
    "-client +client|info +client|kill",
    "-wait",
    "-hget +hget",
    "-@all +client +ping +eval +evalsha +subscribe",
];

/// A server, with a user that has certain rights.
enum Side {
    Simulated(FakeRedis, Option<OtherHolder>),
    Real(Server, Box<Control>),
}

impl Side {
    fn simulated() -> Self {
        Self::Simulated(FakeRedis::start(), None)
    }

    fn real() -> Self {
        let server = Server::start();
        let mut control = server.control();
        control.run(&[
            "ACL", "SETUSER", "locker", "on", ">secret", "~*", "&*", "+@all",
        ]);
        Self::Real(server, Box::new(control))
    }

    async fn client(&self) -> Result<LockClient, Error> {
        match self {
            Self::Simulated(fake, _) => fake.connect(fake.builder()).await,
            Self::Real(server, _) => {
                let url = format!("redis://locker:secret@127.0.0.1:{}", server.port);
                LockClient::connect(&url).await
            }
        }
    }

    fn set_rights(&mut self, rules: &str) {
        match self {
            Self::Simulated(fake, _) => fake.acl(rules),
            Self::Real(_, control) => {
                let mut words = vec!["ACL", "SETUSER", "locker"];
                words.extend(rules.split_whitespace());
                control.run(&words);
            }
        }
    }

    /// A JVM takes the lock.
    fn take(&mut self) {
        match self {
            Self::Simulated(fake, other) => *other = Some(fake.taken_by_another(JAVA)),
            Self::Real(_, control) => {
                control.run(&["HSET", JAVA, "8743c9c0-0795-4907-87fd-6c719a6b4586:1", "1"]);
                control.run(&["PEXPIRE", JAVA, "600000"]);
            }
        }
    }

    /// And releases it.
    fn release(&mut self) {
        match self {
            Self::Simulated(_, other) => {
                other.take().expect("taken").release();
            }
            Self::Real(_, control) => {
                control.run(&["DEL", JAVA]);
                control.run(&["PUBLISH", "redisson_lock__channel:{java}", "0"]);
            }
        }
    }

    fn wipe(&mut self) {
        match self {
            Self::Simulated(fake, _) => fake.wipe(),
            Self::Real(_, control) => _ = control.run(&["FLUSHALL"]),
        }
    }
}

/// The lock of a JVM.
const JAVA: &str = "java";

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// What calls have said, without what differs between two runs.
#[derive(Default)]
struct Said(Vec<String>);

impl Said {
    fn note<T>(
        &mut self,
        call: &str,
        result: Result<T, Error>,
        shown: impl FnOnce(&T) -> String,
    ) -> Option<T> {
        let outcome = match &result {
            Ok(value) => shown(value),
            Err(Error::PermissionDenied { permission, .. }) => format!("lacks {permission}"),
            Err(Error::TooFewReplicas { acknowledged, .. }) => format!("{acknowledged} replicas"),
            Err(other) => panic!("{call}: {other:?}"),
        };
        self.0.push(format!("{call}: {outcome}"));
        result.ok()
    }
}

fn done<T>(_: &T) -> String {
    "done".to_owned()
}

/// Calls without some rights. What they need before is done with all of them.
async fn calls(side: &mut Side, rules: &str) -> Vec<String> {
    side.set_rights("+@all allchannels");
    side.wipe();
    side.take();
    let client = side.client().await.expect("all rights");
    let outer = client.lock("own").lock().await.expect("free");
    let nested = client.lock("own").lock().await.expect("its own");
    let leased = client.lock("leased").lease(ms(60_000)).lock().await;
    let leased = leased.expect("free");

    side.set_rights(rules);
    let mut said = Said::default();
    let connected = side.client().await;
    let fence = |client: &LockClient| format!("{:?}", client.stats().connection_fence);
    if let Some(connected) = said.note("connect", connected, fence) {
        connected.close(ms(0)).await;
    }
    said.note("check", client.check(JAVA).await, |missing| {
        missing.join(" ")
    });
    let inspected = client.lock(JAVA).inspect().await;
    said.note("inspect", inspected, |holder| holder.is_some().to_string());
    said.note("extend", leased.extend(ms(120_000)).await, done);
    said.note("unlock nested", nested.unlock().await, done);
    said.note("unlock", outer.unlock().await, done);
    let forced = client.lock("leased").force_unlock().await;
    said.note("force", forced, bool::to_string);
    let synced = client.lock("synced").sync_replicas(1, ms(50));
    said.note("replicas", synced.lock().await, done);
    if let Some(guard) = said.note("take", client.lock("free").lock().await, done) {
        said.note("give back", guard.unlock().await, done);
    }
    let lock = client.lock(JAVA);
    let waiting = tokio::spawn(async move { lock.lock().await });
    // It may subscribe: then it is woken by the release, or looks again after it.
    while !waiting.is_finished() && client.stats().subscriptions == 0 {
        tokio::time::sleep(ms(1)).await;
    }
    side.release();
    let waited = waiting.await.expect("no panic");
    if let Some(guard) = said.note("wait", waited, done) {
        said.note("unlock waited", guard.unlock().await, done);
    }
    // What could not be released is still held.
    drop(leased);
    client.close(ms(0)).await;
    said.0
}

/// The rights of a client that waits are taken away.
async fn waits_without(side: &mut Side, rules: &str) -> Vec<String> {
    side.set_rights("+@all allchannels");
    side.take();
    let client = side.client().await.expect("all rights");
    let lock = client.lock(JAVA);
    let waiting = tokio::spawn(async move { lock.lock().await });
    while client.stats().subscriptions == 0 {
        tokio::time::sleep(ms(1)).await;
    }
    side.set_rights(rules);
    let mut said = Said::default();
    said.note("wait", waiting.await.expect("no panic"), done);
    client.close(ms(0)).await;
    side.release();
    said.0
}

#[tokio::test]
async fn the_simulated_server_ends_subscriptions_as_a_real_one_does() {
    let (mut simulated, mut real) = (Side::simulated(), Side::real());
    for rules in [
        "resetchannels",
        "resetchannels &redisson_lock__channel:{own}",
    ] {
        let ours = waits_without(&mut simulated, rules).await;
        let theirs = waits_without(&mut real, rules).await;
        assert_eq!(ours, theirs, "{rules}: simulated, and real");
        assert_eq!(ours, ["wait: lacks &redisson_lock__channel:{java}"]);
    }
}

#[tokio::test]
async fn the_simulated_server_refuses_what_a_real_one_refuses() {
    let (mut simulated, mut real) = (Side::simulated(), Side::real());
    let mut refused = 0;
    for rules in RULES {
        let ours = calls(&mut simulated, rules).await;
        let theirs = calls(&mut real, rules).await;
        assert_eq!(ours, theirs, "{rules}: simulated, and real");
        refused += ours.iter().filter(|said| said.contains("lacks")).count();
    }
    assert!(refused > 50, "refusals were compared: {refused}");
}
