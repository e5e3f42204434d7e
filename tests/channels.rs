//! The subscription of a waiter: classic channels on one server and in a cluster, and sharded ones.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use redisson_lock::{Announce, Error, LockClient, LockClientBuilder};
use test_support::{
    ACQUIRE, FakeCluster, Proxy, TestServer, eventually, is_script, ms, stalls, tokio,
};
use tokio::task::JoinHandle;

/// What a waiter subscribes to, and in which words.
struct Kind {
    /// `None`: one server instead of a cluster.
    announce: Option<Announce>,
    subscribe: &'static str,
    unsubscribe: &'static str,
    publish: &'static str,
    numsub: &'static str,
}

const ONE_SERVER: Kind = Kind {
    announce: None,
    subscribe: "SUBSCRIBE",
    unsubscribe: "UNSUBSCRIBE",
    publish: "PUBLISH",
    numsub: "NUMSUB",
};

const CLASSIC: Kind = Kind {
    announce: Some(Announce::Classic),
    ..ONE_SERVER
};

const SHARDED: Kind = Kind {
    announce: Some(Announce::Sharded),
    subscribe: "SSUBSCRIBE",
    unsubscribe: "SUNSUBSCRIBE",
    publish: "SPUBLISH",
    numsub: "SHARDNUMSUB",
};

/// Each row becomes a test of each kind.
macro_rules! rows {
    ($($row:ident)*) => { rows! { ($($row)*) one_server ONE_SERVER, classic CLASSIC, sharded SHARDED } };
    ($rows:tt $($module:ident $kind:ident),*) => { $(rows! { @ $module $kind $rows })* };
    (@ $module:ident $kind:ident ($($row:ident)*)) => {
        mod $module {
            $(#[tokio::test]
            async fn $row() {
                super::$row(super::$kind).await
            })*
        }
    };
}

rows! {
    an_unlock_between_the_attempt_and_the_subscription_is_not_missed
    a_connection_that_ends_wakes_every_waiter
    a_waiter_rides_through_an_outage
    a_flood_of_messages_hides_none
    a_silent_connection_is_found_by_its_heartbeat
    a_call_survives_a_connection_that_falls_silent_when_it_subscribes
    a_heartbeat_comes_once_in_a_command_timeout_and_only_while_something_is_listened_to
    connections_that_are_of_no_use_are_replaced_after_growing_pauses
    a_refused_channel_is_reported_to_its_waiter_and_requested_again
    one_refused_channel_refuses_no_other_of_its_batch
    a_subscription_under_way_when_its_connection_ends_is_requested_again
    a_channel_that_is_wanted_while_it_is_unsubscribed_is_subscribed_to
    a_channel_is_unsubscribed_a_second_after_its_last_waiter_left
}

/// Servers and a client. All locks are on the first of them, and so are the listeners, until their connection is
/// replaced.
struct Scene {
    kind: Kind,
    cluster: FakeCluster,
    client: LockClient,
}

impl Scene {
    async fn start(kind: Kind) -> Self {
        Self::start_with(kind, |builder| builder.command_timeout(ms(600)), "").await
    }

    /// The same with other settings, and with credentials.
    async fn start_with(
        kind: Kind,
        set: impl FnOnce(LockClientBuilder) -> LockClientBuilder,
        credentials: &str,
    ) -> Self {
        let cluster = FakeCluster::start().await;
        for nth in 0..3 {
            let mut control = cluster.control(nth);
            control.run(&["ACL", "SETUSER", "u", "on", ">p", "~*", "&*", "+@all"]);
        }
        let builder = set(LockClient::builder());
        let (builder, url) = match kind.announce {
            None => (builder, cluster.proxy(0).url()),
            Some(announce) => (builder.announce(announce), cluster.url_from(0)),
        };
        let url = url.replace("://", &format!("://{credentials}"));
        let client = builder.connect(&url).await.expect("it responds");
        Self {
            kind,
            cluster,
            client,
        }
    }

    fn proxies(&self) -> impl Iterator<Item = &Proxy> {
        (0..3).map(|nth| self.cluster.proxy(nth))
    }

    /// How many connections were opened so far, refused ones included.
    fn connections(&self) -> usize {
        self.proxies().map(|proxy| proxy.arrivals().len()).sum()
    }

    /// How many connections are held back.
    fn stuck(&self) -> usize {
        self.proxies().map(Proxy::stuck).sum()
    }

    fn hold_commands(&self, command: &'static str) {
        self.proxies()
            .for_each(|proxy| proxy.hold_commands(move |words| words[0] == command));
    }

    fn let_commands_go(&self) {
        self.proxies().for_each(Proxy::let_commands_go);
    }

    fn cut_all(&self) {
        self.proxies().for_each(Proxy::cut_all);
    }

    fn permit(&self, channels: &[String]) {
        let words = ["ACL", "SETUSER", "u", "resetchannels"];
        let channels = channels.iter().map(String::as_str);
        let words: Vec<_> = words.into_iter().chain(channels).collect();
        (0..3).for_each(|nth| _ = self.cluster.control(nth).run(&words));
    }

    /// A lock that another program holds.
    fn held(&self, name: &str) -> String {
        let key = self.cluster.key_at(0, name);
        let mut control = self.cluster.control(0);
        control.run(&["HSET", &key, "other:1", "1"]);
        control.run(&["PEXPIRE", &key, "60000"]);
        key
    }

    fn free(&self, key: &str) {
        self.cluster.control(0).run(&["DEL", key]);
    }

    /// Publishes a release wherever the client may listen.
    fn publish(&self, key: &str) {
        for nth in 0..3 {
            let mut control = self.cluster.control(nth);
            control.run(&[self.kind.publish, &channel(key), "0"]);
        }
    }

    fn waits(&self, key: &str) -> JoinHandle<Result<(), Error>> {
        let lock = self.client.lock(key);
        tokio::spawn(async move { lock.lock().await?.unlock().await })
    }

    fn listens(&self, key: &str) -> bool {
        (0..3).any(|nth| {
            let words = ["PUBSUB", self.kind.numsub, &channel(key)];
            self.cluster.control(nth).run(&words).ends_with(" 1")
        })
    }

    async fn is_listening(&self, key: &str) {
        eventually("it listens", ms(5_000), || self.listens(key)).await;
    }

    /// A waiter that listens.
    async fn listening(&self, key: &str) -> JoinHandle<Result<(), Error>> {
        let waiter = self.waits(key);
        self.is_listening(key).await;
        waiter
    }

    async fn end(self) {
        self.client.close(Duration::ZERO).await;
    }
}

fn channel(key: &str) -> String {
    format!("redisson_lock__channel:{{{key}}}")
}

async fn has_it_within(limit: Duration, waiter: JoinHandle<Result<(), Error>>) {
    let start = Instant::now();
    let done = tokio::time::timeout(ms(30_000), waiter).await;
    done.expect("before the lease is over")
        .expect("no panic")
        .expect("free");
    let took = start.elapsed().saturating_sub(stalls(start));
    assert!(took <= limit, "after {took:?}");
}

fn is_denied(ended: &Result<(), Error>, key: &str) -> bool {
    matches!(ended, Err(Error::PermissionDenied { permission, .. }) if *permission == format!("&{}", channel(key)))
}

async fn an_unlock_between_the_attempt_and_the_subscription_is_not_missed(kind: Kind) {
    let scene = Scene::start(kind).await;
    let key = scene.held("a");
    let attempts = || {
        let calls = scene.cluster.proxy(0).script_calls();
        // The first call of a script is repeated with its text.
        let by_name = calls.iter().filter(|words| words[0] == "EVALSHA");
        by_name.filter(|words| is_script(words, ACQUIRE)).count()
    };
    scene.hold_commands(scene.kind.subscribe);
    let waiter = scene.waits(&key);
    eventually("it subscribes", ms(5_000), || scene.stuck() == 1).await;
    scene.free(&key);
    assert!(!scene.listens(&key), "the message has no listeners");
    scene.publish(&key);
    scene.let_commands_go();
    has_it_within(ms(1_000), waiter).await;
    assert_eq!(
        attempts(),
        2,
        "one before the subscription, one after it is in force"
    );
    scene.end().await;
}

async fn a_connection_that_ends_wakes_every_waiter(kind: Kind) {
    let scene = Scene::start(kind).await;
    let keys = ["a", "b", "c"].map(|name| scene.held(name));
    let mut waiters = Vec::new();
    for key in &keys {
        waiters.push(scene.listening(key).await);
    }
    // Freed in silence while no connection listens: only the wake-up after that can help.
    let mut control = scene.cluster.control(0);
    control.run(&["MULTI"]);
    control.run(&["DEL", &keys[0], &keys[1], &keys[2]]);
    control.run(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    control.run(&["EXEC"]);
    let start = Instant::now();
    for waiter in waiters {
        has_it_within(ms(1_500), waiter).await;
    }
    let took = start.elapsed().saturating_sub(stalls(start));
    assert!(took < ms(1_500), "{took:?}");
    scene.end().await;
}

async fn a_waiter_rides_through_an_outage(kind: Kind) {
    let scene = Scene::start(kind).await;
    let key = scene.held("a");
    // The server has subscribed it, of which it may not have heard when the connections end.
    let lock = scene.client.lock(&key).retry_for(Duration::from_secs(30));
    let waiter = tokio::spawn(async move { lock.lock().await?.unlock().await });
    scene.is_listening(&key).await;
    scene.proxies().for_each(|proxy| proxy.refuse(true));
    let before = scene.connections();
    scene.cut_all();
    eventually("it tries to connect", ms(5_000), || {
        scene.connections() > before + 6
    })
    .await;
    assert!(!waiter.is_finished());
    scene.proxies().for_each(|proxy| proxy.refuse(false));
    scene.is_listening(&key).await;
    scene.free(&key);
    scene.publish(&key);
    has_it_within(ms(1_000), waiter).await;
    scene.end().await;
}

async fn a_flood_of_messages_hides_none(kind: Kind) {
    // No heartbeat comes in this time, which would wake some of them too.
    let long = |builder: LockClientBuilder| {
        builder
            .watchdog_timeout(ms(60_000))
            .command_timeout(ms(9_000))
    };
    let scene = Scene::start_with(kind, long, "").await;
    let keys: Vec<_> = (0..11).map(|nth| scene.held(&format!("a{nth}"))).collect();
    let mut waiters = Vec::new();
    for key in &keys {
        waiters.push(scene.listening(key).await);
    }
    // One thread runs everything here. Among many messages for the last channel is a single one for each of the others.
    let flood = "local function announce(key) \
                   redis.call(ARGV[1], 'redisson_lock__channel:{' .. key .. '}', '0') \
                 end \
                 for n = 0, 19999 do \
                   announce(KEYS[11]) \
                   if n % 2000 == 1000 then \
                     local key = KEYS[(n - 1000) / 2000 + 1] \
                     redis.call('del', key) \
                     announce(key) \
                   end \
                 end";
    let mut words = vec!["EVAL", flood, "11"];
    words.extend(keys.iter().map(String::as_str));
    words.push(scene.kind.publish);
    scene.cluster.control(0).run(&words);
    let start = Instant::now();
    let flooded = waiters.pop().expect("the last");
    for waiter in waiters {
        has_it_within(ms(5_000), waiter).await;
    }
    let took = start.elapsed().saturating_sub(stalls(start));
    assert!(took < ms(5_000), "{took:?}");
    scene.free(&keys[10]);
    scene.publish(&keys[10]);
    has_it_within(ms(1_000), flooded).await;
    scene.end().await;
}

async fn a_silent_connection_is_found_by_its_heartbeat(kind: Kind) {
    let scene = Scene::start(kind).await;
    let key = scene.held("a");
    let waiter = scene.listening(&key).await;
    let proxy = scene.cluster.proxy(0);
    let before = scene.connections();
    proxy.rule(test_support::Fate::Silence, 1, move |words| {
        words[0] == "PING"
    });
    eventually("a heartbeat", ms(5_000), || {
        proxy.hit.load(Ordering::SeqCst) == 1
    })
    .await;
    scene.free(&key);
    scene.publish(&key);
    has_it_within(ms(2_000), waiter).await;
    eventually("it is replaced", ms(2_000), || scene.connections() > before).await;
    scene.end().await;
}

/// The connection is doubted after half of the time in which the confirmation must come.
async fn a_call_survives_a_connection_that_falls_silent_when_it_subscribes(kind: Kind) {
    let scene = Scene::start_with(kind, |builder| builder.command_timeout(ms(2_000)), "").await;
    let key = scene.held("a");
    let (proxy, subscribe) = (scene.cluster.proxy(0), scene.kind.subscribe);
    let before = scene.connections();
    proxy.rule(test_support::Fate::Silence, 1, move |words| {
        words[0] == subscribe
    });
    let waiter = scene.waits(&key);
    eventually("it is replaced", ms(10_000), || {
        scene.connections() > before
    })
    .await;
    // The call would have failed by then.
    tokio::time::sleep(ms(2_500)).await;
    assert!(!waiter.is_finished());
    scene.free(&key);
    scene.publish(&key);
    has_it_within(ms(1_000), waiter).await;
    scene.end().await;
}

async fn a_heartbeat_comes_once_in_a_command_timeout_and_only_while_something_is_listened_to(
    kind: Kind,
) {
    const HEARTBEATS: usize = 6;
    let scene = Scene::start(kind).await;
    let key = scene.held("a");
    let waiter = scene.listening(&key).await;
    let heartbeats = || {
        let seen = scene.proxies().flat_map(Proxy::seen);
        let heartbeats = seen.filter(|words| words[0] == "PING");
        heartbeats.count()
    };
    let (start, before, opened) = (Instant::now(), heartbeats(), scene.connections());
    let asked = || heartbeats() >= before + HEARTBEATS;
    eventually("it is asked", ms(20_000), asked).await;
    let took = start.elapsed();
    assert!(took >= ms(2_000), "{HEARTBEATS} heartbeats in {took:?}");
    // Another one is opened only beside one that is slow to respond.
    let opened = scene.connections() - opened;
    assert!(opened <= HEARTBEATS / 2, "{opened} connections");
    scene.free(&key);
    scene.publish(&key);
    has_it_within(ms(1_000), waiter).await;
    let left = || !scene.listens(&key);
    eventually("it does not listen any more", ms(5_000), left).await;
    let before = heartbeats();
    tokio::time::sleep(ms(2_000)).await;
    // One more shows whether a connection is still slow.
    let more = heartbeats() - before;
    assert!(more <= 1, "{more} heartbeats");
    scene.end().await;
}

async fn connections_that_are_of_no_use_are_replaced_after_growing_pauses(kind: Kind) {
    const CONNECTIONS: usize = 10;
    let scene = Scene::start_with(kind, |builder| builder.command_timeout(ms(9_000)), "").await;
    let key = scene.held("a");
    let subscribe = scene.kind.subscribe;
    for proxy in scene.proxies() {
        let fate = test_support::Fate::LoseCommand;
        proxy.rule(fate, usize::MAX, move |words| words[0] == subscribe);
    }
    let (start, before) = (Instant::now(), scene.connections());
    let waiter = scene.waits(&key);
    let tried = || scene.connections() >= before + CONNECTIONS;
    eventually("it is tried", ms(20_000), tried).await;
    let took = start.elapsed();
    assert!(took >= ms(500), "{CONNECTIONS} connections in {took:?}");
    waiter.abort();
    scene.end().await;
}

async fn a_refused_channel_is_reported_to_its_waiter_and_requested_again(kind: Kind) {
    let short = |builder: LockClientBuilder| builder.command_timeout(ms(600));
    let scene = Scene::start_with(kind, short, "u:p@").await;
    scene.permit(&[]);
    let key = scene.held("a");
    for _ in 0..2 {
        let ended = scene.waits(&key).await.expect("no panic");
        assert!(is_denied(&ended, &key), "{ended:?}");
        assert_eq!(scene.client.stats().subscriptions, 0);
    }
    scene.permit(&["&*".to_owned()]);
    let waiter = scene.listening(&key).await;
    scene.free(&key);
    scene.publish(&key);
    has_it_within(ms(1_000), waiter).await;
    scene.end().await;
}

async fn one_refused_channel_refuses_no_other_of_its_batch(kind: Kind) {
    let short = |builder: LockClientBuilder| builder.command_timeout(ms(600));
    let scene = Scene::start_with(kind, short, "u:p@").await;
    let keys = ["a", "b", "c"].map(|name| scene.held(name));
    let mut waiters = Vec::new();
    for key in &keys {
        waiters.push(scene.listening(key).await);
    }
    // Those that are left are requested together by the next connection.
    let permitted = [&keys[0], &keys[2]].map(|key| format!("&{}", channel(key)));
    scene.permit(&permitted);
    let _ = scene
        .cluster
        .control(0)
        .try_run(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    let refused = tokio::time::timeout(ms(5_000), waiters.remove(1)).await;
    let refused = refused.expect("in time").expect("no panic");
    assert!(is_denied(&refused, &keys[1]), "{refused:?}");
    for (key, waiter) in [&keys[0], &keys[2]].into_iter().zip(waiters) {
        scene.is_listening(key).await;
        assert!(!waiter.is_finished());
        scene.free(key);
        scene.publish(key);
        has_it_within(ms(1_000), waiter).await;
    }
    scene.end().await;
}

async fn a_subscription_under_way_when_its_connection_ends_is_requested_again(kind: Kind) {
    let scene = Scene::start(kind).await;
    let key = scene.held("a");
    scene.hold_commands(scene.kind.subscribe);
    let waiter = scene.waits(&key);
    eventually("it subscribes", ms(5_000), || scene.stuck() >= 1).await;
    scene.cut_all();
    scene.let_commands_go();
    scene.is_listening(&key).await;
    scene.free(&key);
    scene.publish(&key);
    has_it_within(ms(1_000), waiter).await;
    scene.end().await;
}

/// A call that waited for it in vain.
async fn gave_up(scene: &Scene, key: &str) {
    let waited = scene.client.lock(key).try_lock_for(ms(300)).await;
    assert!(waited.expect("answered").is_none());
    assert!(scene.listens(key), "it lingers");
}

async fn a_channel_that_is_wanted_while_it_is_unsubscribed_is_subscribed_to(kind: Kind) {
    let scene = Scene::start(kind).await;
    let key = scene.held("a");
    gave_up(&scene, &key).await;
    scene.hold_commands(scene.kind.unsubscribe);
    eventually("it unsubscribes", ms(5_000), || scene.stuck() == 1).await;
    let waiter = scene.waits(&key);
    let wanted = || scene.client.stats().subscriptions == 1;
    eventually("it is wanted again", ms(5_000), wanted).await;
    scene.let_commands_go();
    let subscribed = || {
        let seen = scene.proxies().flat_map(Proxy::seen);
        let asked = seen.filter(|words| words[0] == scene.kind.subscribe);
        asked.count() >= 2 && scene.listens(&key)
    };
    eventually("it listens again", ms(5_000), subscribed).await;
    scene.free(&key);
    scene.publish(&key);
    has_it_within(ms(1_000), waiter).await;
    scene.end().await;
}

async fn a_channel_is_unsubscribed_a_second_after_its_last_waiter_left(kind: Kind) {
    let scene = Scene::start(kind).await;
    let key = scene.held("a");
    gave_up(&scene, &key).await;
    let start = Instant::now();
    eventually("it does not listen any more", ms(3_000), || {
        !scene.listens(&key)
    })
    .await;
    let took = start.elapsed();
    assert!(took > ms(800), "{took:?}");
    assert_eq!(scene.client.stats().subscriptions, 0);
    scene.end().await;
}

/// It speaks the older protocol, in which a connection with channels executes nothing else.
#[tokio::test]
async fn a_server_without_hello_has_its_messages_heard() {
    let server = TestServer::with(&["--rename-command", "HELLO", ""]);
    let (owner, waiting) = (server.client().await, server.client().await);
    let mut control = server.control();
    for name in ["a", "b", "a"] {
        let guard = owner.lock(name).lock().await.expect("free");
        let lock = waiting.lock(name);
        let waiter = tokio::spawn(async move { lock.lock().await?.unlock().await });
        let channel = format!("redisson_lock__channel:{{{name}}}");
        let numsub = ["PUBSUB", "NUMSUB", &channel];
        eventually("a listener", ms(5_000), || {
            control.run(&numsub).contains("1")
        })
        .await;
        guard.unlock().await.expect("held");
        has_it_within(ms(1_000), waiter).await;
    }
    server.finish([owner, waiting]).await;
}

/// Scripts stay where they are.
#[tokio::test]
async fn a_proxy_that_ends_connections_that_subscribe_gets_one_for_channels() {
    let server = TestServer::new();
    let proxy = Proxy::start(server.port).await;
    let client = LockClient::builder().command_timeout(ms(9_000));
    let client = client.connect(&proxy.url()).await.expect("it responds");
    let mut control = server.control();
    proxy.rule(test_support::Fate::LoseCommand, 3, |words| {
        words[0] == "SUBSCRIBE"
    });
    let waits = async |client: &LockClient, control: &mut test_support::Control| {
        control.run(&["HSET", "a", "other:1", "1"]);
        control.run(&["PEXPIRE", "a", "60000"]);
        let lock = client.lock("a");
        let waiter = tokio::spawn(async move { lock.lock().await?.unlock().await });
        let numsub = ["PUBSUB", "NUMSUB", "redisson_lock__channel:{a}"];
        eventually("a listener", ms(9_000), || {
            control.run(&numsub).ends_with(" 1")
        })
        .await;
        control.run(&["DEL", "a"]);
        control.run(&["PUBLISH", "redisson_lock__channel:{a}", "0"]);
        has_it_within(ms(1_000), waiter).await;
    };
    waits(&client, &mut control).await;
    assert_eq!(control.connections(), 2);
    // That one may be replaced as well.
    let reconnects = client.stats().reconnects_total;
    control.run(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    let replaced = || client.stats().reconnects_total > reconnects;
    eventually("it is replaced", ms(5_000), replaced).await;
    waits(&client, &mut control).await;
    assert_eq!(control.connections(), 2);
    client.close(Duration::ZERO).await;
    proxy.stop().await;
    server.finish([]).await;
}
