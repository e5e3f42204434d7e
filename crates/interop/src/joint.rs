//! Several locks as one (`RedissonMultiLock`), and one lock across several servers (`RedissonRedLock`), beside ours.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use redisson_lock::{MultiGuard, MultiLock, RedGuard, RedLock};
use test_support::peer::Peer;
use test_support::{Server, ms};

use crate::doomed::Doomed;
use crate::fixture::{Fixture, Load, QUICK, Scenario, between, eventually};
use crate::holding::WITHOUT_PREFIX;
use crate::party::{Client, Party};

pub fn scenarios() -> Vec<Scenario> {
    let scenarios = vec![
        Scenario::new("multi_exclusion", |f| exclusion(f, Kind::Multi)).short(),
        Scenario::new("multi_one_member_is_held", one_member_is_held),
        Scenario::new("multi_nested_holds", nested_holds),
        Scenario::new("multi_lease", |f| lease(f, Kind::Multi)),
        Scenario::new("multi_waiter", |f| waiter(f, Kind::Multi)),
        Scenario::new("multi_taking_turns", |f| taking_turns(f, Kind::Multi)),
        Scenario::new("multi_watchdog", |f| watchdog(f, Kind::Multi)),
        Scenario::new("multi_killed_holder", |f| killed_holder(f, Kind::Multi)),
        Scenario::new("multi_force_unlock", |f| force_unlock(f, Kind::Multi)),
        Scenario::new("multi_names", |f| names(f, Kind::Multi)),
        Scenario::new("multi_prefix", |f| prefix(f, Kind::Multi))
            .not_first(WITHOUT_PREFIX)
            .not_second(WITHOUT_PREFIX),
        Scenario::new("red_exclusion", |f| exclusion(f, Kind::Red)).short(),
        Scenario::new("red_one_server_is_taken", one_server_is_taken),
        Scenario::new("red_lease", |f| lease(f, Kind::Red)),
        Scenario::new("red_waiter", |f| waiter(f, Kind::Red)),
        Scenario::new("red_taking_turns", |f| taking_turns(f, Kind::Red)),
        Scenario::new("red_watchdog", |f| watchdog(f, Kind::Red)),
        Scenario::new("red_killed_holder", |f| killed_holder(f, Kind::Red)),
        Scenario::new("red_force_unlock", |f| force_unlock(f, Kind::Red)),
        Scenario::new("red_names", |f| names(f, Kind::Red)),
        Scenario::new("red_prefix", |f| prefix(f, Kind::Red))
            .not_first(WITHOUT_PREFIX)
            .not_second(WITHOUT_PREFIX),
    ];
    let with_servers = |scenario: Scenario| scenario.load(Load::Servers);
    scenarios.into_iter().map(with_servers).collect()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Multi,
    Red,
}

impl Kind {
    fn word(self) -> &'static str {
        match self {
            Self::Multi => "multi",
            Self::Red => "red",
        }
    }

    fn of(word: &str) -> Self {
        match word {
            "red" => Self::Red,
            _ => Self::Multi,
        }
    }
}

/// Servers of a scenario's own, with a caller of each party. The lock has the same name at each server.
struct Field {
    kind: Kind,
    servers: Vec<Server>,
    /// Those of the first party come first.
    clients: Vec<Party>,
    first: Caller,
    second: Caller,
    key: String,
}

impl Field {
    async fn open(fixture: &Fixture, kind: Kind) -> Self {
        Self::with(fixture, kind, ms(30_000), "").await
    }

    async fn with(fixture: &Fixture, kind: Kind, watchdog: Duration, prefix: &str) -> Self {
        let count = if kind == Kind::Red { 3 } else { 2 };
        let servers: Vec<Server> = (0..count).map(|_| Server::start()).collect();
        let mut clients = Vec::new();
        for party in [&fixture.first, &fixture.second] {
            for server in &servers {
                clients.push(party.prefixed(&server.url(), watchdog, prefix).await);
            }
        }
        let [first, second] = Self::callers(kind, &clients, &fixture.name);
        Self {
            kind,
            servers,
            clients,
            first,
            second,
            key: format!("{prefix}{}", fixture.name),
        }
    }

    fn callers(kind: Kind, clients: &[Party], name: &str) -> [Caller; 2] {
        let (first, second) = clients.split_at(clients.len() / 2);
        [first, second].map(|clients| Caller::new(kind, clients, name))
    }

    /// Goes on with locks of another name.
    fn rename(&mut self, name: String) {
        [self.first, self.second] = Self::callers(self.kind, &self.clients, &name);
        self.key = name;
    }

    /// The hold counts at all servers.
    fn counts(&self) -> Vec<i64> {
        let count = |server: &Server| server.control().count(&self.key);
        self.servers.iter().map(count).collect()
    }

    async fn is_held(&self) {
        let held = || self.counts().iter().all(|count| *count == 1);
        eventually("held at every server", held).await;
    }

    async fn is_free(&self) {
        let free = || self.counts().iter().all(|count| *count == 0);
        eventually("free at every server", free).await;
    }

    async fn close(self) {
        for client in self.clients {
            client.close().await;
        }
    }
}

/// A client that takes all of the locks, or a quorum.
pub enum Caller {
    Multi(MultiLock, Vec<MultiGuard>),
    Red(RedLock, Vec<RedGuard>),
    Java(Peer, Vec<(&'static str, String)>),
}

impl Caller {
    fn new(kind: Kind, parties: &[Party], name: &str) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1_000_000);
        if let Client::Java { peer, .. } = &parties[0].client {
            let client = |party: &Party| match &party.client {
                Client::Java { client, .. } => client.clone(),
                Client::Rust(_) => unreachable!("all are of one side"),
            };
            let clients: Vec<String> = parties.iter().map(client).collect();
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let values = vec![
                ("client", clients[0].clone()),
                ("clients", clients.join(",")),
                ("joint", kind.word().to_owned()),
                ("name", name.to_owned()),
                ("worker", number.to_string()),
            ];
            return Self::Java(peer.clone(), values);
        }
        let clients = parties.iter().filter_map(|party| match &party.client {
            Client::Rust(client) => Some(client),
            Client::Java { .. } => None,
        });
        let owners: Vec<_> = clients.clone().map(|client| client.owner()).collect();
        let members = clients.map(|client| client.lock(name));
        match kind {
            Kind::Multi => {
                let lock = MultiLock::new(members).expect("different servers");
                let owned = owners.iter().fold(lock, |lock, owner| lock.owned_by(owner));
                Self::Multi(owned, Vec::new())
            }
            Kind::Red => {
                let lock = RedLock::new(members).expect("different servers");
                Self::Red(lock.owned_by(&owners[0]), Vec::new())
            }
        }
    }

    pub async fn lock(&mut self, lease: Option<Duration>) {
        match self {
            Self::Multi(lock, guards) => {
                let leased = lease.map_or_else(|| lock.clone(), |lease| lock.lease(lease));
                guards.push(leased.lock().await.expect("its turn comes"));
            }
            Self::Red(lock, guards) => {
                let leased = lease.map_or_else(|| lock.clone(), |lease| lock.lease(lease));
                guards.push(leased.lock().await.expect("its turn comes"));
            }
            Self::Java(peer, values) => {
                let mut values = values.clone();
                let lease =
                    lease.map_or_else(|| "-1".to_owned(), |lease| lease.as_millis().to_string());
                values.push(("lease", lease));
                peer.call("lock", &values).await.expect("its turn comes");
            }
        }
    }

    async fn try_lock(&mut self) -> bool {
        match self {
            Self::Multi(lock, guards) => {
                guards.extend(lock.try_lock().await.expect("answered"));
                !guards.is_empty()
            }
            Self::Red(lock, guards) => {
                guards.extend(lock.try_lock().await.expect("answered"));
                !guards.is_empty()
            }
            Self::Java(peer, values) => {
                peer.call("trylock", values).await.expect("answered") == true
            }
        }
    }

    async fn unlock(&mut self) {
        match self {
            Self::Multi(_, guards) => {
                let guard = guards.pop().expect("it holds");
                guard.unlock().await.expect("held");
            }
            Self::Red(_, guards) => {
                let guard = guards.pop().expect("it holds");
                guard.unlock().await.expect("held");
            }
            Self::Java(peer, values) => {
                peer.call("unlock", values).await.expect("held");
            }
        }
    }

    /// Releases what is not held any more: refused, but by `RedissonRedLock`, which does not look at the replies.
    async fn unlock_too_late(&mut self) {
        let refused = match self {
            Self::Java(peer, values) if values.contains(&("joint", "red".to_owned())) => {
                return drop(peer.call("unlock", values).await);
            }
            Self::Multi(_, guards) => guards.pop().expect("it held").unlock().await.is_err(),
            Self::Red(_, guards) => guards.pop().expect("it held").unlock().await.is_err(),
            Self::Java(peer, values) => peer.call("unlock", values).await.is_err(),
        };
        assert!(refused, "not held any more");
    }
}

async fn exclusion(fixture: Fixture, kind: Kind) {
    let mut field = Field::open(&fixture, kind).await;
    for _ in 0..3 {
        field.first.lock(None).await;
        field.is_held().await;
        assert!(!field.second.try_lock().await, "held by the first");
        field.first.unlock().await;
        field.is_free().await;
        assert!(field.second.try_lock().await, "free");
        assert!(!field.first.try_lock().await, "held by the second");
        field.second.unlock().await;
        field.is_free().await;
    }
    field.close().await;
}

/// A plain lock of the other side is one of them.
async fn one_member_is_held(fixture: Fixture) {
    let mut field = Field::open(&fixture, Kind::Multi).await;
    for nth in 0..2 {
        // The clients of the first party come first.
        let plain = field.clients[nth].worker();
        plain.lock(&field.key, None).await.expect("free");
        assert!(!field.second.try_lock().await, "one is held");
        eventually("the other one is free again", || {
            field.counts()[1 - nth] == 0
        })
        .await;
        plain.unlock(&field.key).await.expect("held");
        assert!(field.second.try_lock().await, "free");
        assert_eq!(plain.try_lock(&field.key, None, None).await, Ok(false));
        field.second.unlock().await;
        field.is_free().await;
    }
    field.close().await;
}

async fn nested_holds(fixture: Fixture) {
    let mut field = Field::open(&fixture, Kind::Multi).await;
    field.first.lock(None).await;
    field.first.lock(None).await;
    assert_eq!(field.counts(), [2, 2]);
    field.first.unlock().await;
    assert_eq!(field.counts(), [1, 1]);
    assert!(!field.second.try_lock().await, "held");
    field.first.unlock().await;
    field.is_free().await;
    assert!(field.second.try_lock().await, "free");
    field.second.unlock().await;
    field.close().await;
}

async fn lease(fixture: Fixture, kind: Kind) {
    let mut field = Field::open(&fixture, kind).await;
    field.first.lock(Some(ms(3_000))).await;
    // One across several servers is held before the last of them has answered.
    field.is_held().await;
    for server in &field.servers {
        let left = server.control().pttl(&field.key);
        assert!((500..=3_000).contains(&left), "{left}");
    }
    let start = Instant::now();
    assert!(!field.second.try_lock().await, "held");
    field.second.lock(None).await;
    between("the end of the lease", start.elapsed(), 1_000, 12_000);
    field.second.unlock().await;
    field.is_free().await;
    field.close().await;
}

async fn waiter(fixture: Fixture, kind: Kind) {
    let mut field = Field::open(&fixture, kind).await;
    for _ in 0..2 {
        field.first.lock(None).await;
        is_served(&mut field).await;
    }
    field.close().await;
}

/// The second waits until the first, which holds, unlocks.
async fn is_served(field: &mut Field) {
    let (first, second) = (&mut field.first, &mut field.second);
    let released = AtomicUsize::new(0);
    tokio::join!(
        async {
            second.lock(None).await;
            assert_eq!(released.load(Ordering::SeqCst), 1, "not before");
        },
        async {
            tokio::time::sleep(ms(500)).await;
            released.store(1, Ordering::SeqCst);
            first.unlock().await;
        },
    );
    field.second.unlock().await;
    field.is_free().await;
}

/// Three watchdog timeouts long no member ends.
async fn watchdog(fixture: Fixture, kind: Kind) {
    let mut field = Field::with(&fixture, kind, QUICK, "").await;
    field.first.lock(None).await;
    field.is_held().await;
    let start = Instant::now();
    while start.elapsed() < QUICK * 7 / 2 {
        for server in &field.servers {
            assert!(server.control().pttl(&field.key) > 0, "it has a lease");
        }
        assert!(!field.second.try_lock().await, "held");
        tokio::time::sleep(ms(100)).await;
    }
    assert!(field.counts().iter().all(|count| *count == 1));
    is_served(&mut field).await;
    field.close().await;
}

/// The process that holds is gone, and its locks with their leases.
async fn killed_holder(fixture: Fixture, kind: Kind) {
    let mut field = Field::with(&fixture, kind, QUICK, "").await;
    let urls: Vec<String> = field.servers.iter().map(Server::url).collect();
    let holder = doomed(&fixture, kind, &urls).await;
    field.is_held().await;
    assert!(!field.second.try_lock().await, "held");
    holder.signal("-KILL");
    let killed = Instant::now();
    field.second.lock(None).await;
    // Redisson looks again after a part of the time that it gives each round.
    between("taking over", killed.elapsed(), 300, 12_000);
    field.second.unlock().await;
    field.is_free().await;
    field.close().await;
}

/// Somebody frees every member by force: the other side has the lock, and the holder's unlock does not touch it.
async fn force_unlock(fixture: Fixture, kind: Kind) {
    let mut field = Field::open(&fixture, kind).await;
    field.first.lock(None).await;
    field.is_held().await;
    let (_, theirs) = field.clients.split_at(field.servers.len());
    for client in theirs {
        let worker = client.worker();
        worker.force_unlock(&field.key).await.expect("answered");
    }
    field.is_free().await;
    assert!(field.second.try_lock().await, "free");
    field.first.unlock_too_late().await;
    assert!(field.counts().iter().all(|count| *count == 1), "untouched");
    field.second.unlock().await;
    field.is_free().await;
    field.close().await;
}

/// The key is the name, whether it has braces or not.
async fn names(fixture: Fixture, kind: Kind) {
    let mut field = Field::open(&fixture, kind).await;
    for name in ["{tag}:a", "a{tag}b", "un{closed", "Zürich 東京"] {
        field.rename(format!("{name} {}", fixture.name));
        field.first.lock(None).await;
        field.is_held().await;
        assert!(!field.second.try_lock().await, "held");
        is_served(&mut field).await;
    }
    field.close().await;
}

/// Our `key_prefix` is Redisson's name mapper that puts it before each name.
async fn prefix(fixture: Fixture, kind: Kind) {
    for prefix in ["shop:", "{shop}:"] {
        let mut field = Field::with(&fixture, kind, ms(30_000), prefix).await;
        field.first.lock(None).await;
        field.is_held().await;
        assert!(!field.second.try_lock().await, "held");
        is_served(&mut field).await;
        field.close().await;
    }
}

/// Starts a process of the first party's side that takes the locks of the fixture's name at all these servers once.
async fn doomed(fixture: &Fixture, kind: Kind, urls: &[String]) -> Doomed {
    let name = fixture.name.clone();
    if fixture.first.is_rust() {
        let order = format!("{} {} {name}", kind.word(), urls.join(","));
        return Doomed::this_program("INTEROP_JOINT", order);
    }
    let jvm = fixture.another_jvm().await;
    let mut parties = Vec::new();
    for url in urls {
        parties.push(Party::java(&jvm, url, QUICK, &[]).await);
    }
    let mut caller = Caller::new(kind, &parties, &name);
    tokio::spawn(async move { caller.lock(None).await });
    let worker = parties[0].worker();
    Doomed::Java { jvm, worker }
}

/// What the child process does: it holds until it is killed.
pub async fn hold(order: &str) -> Caller {
    let mut words = order.splitn(3, ' ');
    let mut word = || words.next().expect("kind, addresses and name");
    let (kind, urls, name) = (Kind::of(word()), word(), word());
    let mut parties = Vec::new();
    for url in urls.split(',') {
        parties.push(Party::rust(url, QUICK).await);
    }
    let mut caller = Caller::new(kind, &parties, name);
    caller.lock(None).await;
    caller
}

/// Redisson holds some while it waits for others, ours holds none: they exclude each other, and neither blocks.
async fn taking_turns(fixture: Fixture, kind: Kind) {
    let field = Field::open(&fixture, kind).await;
    let inside = Arc::new(AtomicUsize::new(0));
    let turns = |mut caller: Caller| {
        let inside = Arc::clone(&inside);
        tokio::spawn(async move {
            for _ in 0..8 {
                caller.lock(None).await;
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "alone");
                tokio::time::sleep(ms(5)).await;
                inside.fetch_sub(1, Ordering::SeqCst);
                caller.unlock().await;
            }
        })
    };
    let Field {
        servers,
        clients,
        first,
        second,
        ..
    } = field;
    for task in [turns(first), turns(second)] {
        task.await.expect("no panic");
    }
    for client in clients {
        client.close().await;
    }
    drop(servers);
}

/// Another client has the lock at one server: two of three are a quorum, and one is none.
async fn one_server_is_taken(fixture: Fixture) {
    let mut field = Field::open(&fixture, Kind::Red).await;
    let single = field.clients[0].worker();
    single.lock(&field.key, None).await.expect("free");
    assert!(field.second.try_lock().await, "two of three");
    assert!(!field.first.try_lock().await, "one of three is none");
    field.second.unlock().await;
    single.unlock(&field.key).await.expect("held");
    field.is_free().await;
    field.close().await;
}
